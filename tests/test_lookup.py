"""Attention as a soft dictionary."""

import math

import numpy as np
import pytest
from helpers import normal, rounding
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.filterwarnings("error")  # a NumPy warning is a mistake of ours

seeds = st.integers(0, 10**6)


def qkv(seed=0, lead=(2,)):
    return tuple(
        normal(*lead, *shape, seed=seed + n) for n, shape in enumerate([(3, 5), (6, 5), (6, 2)])
    )


@settings(max_examples=30)
@given(seed=seeds)
def test_a_hard_lookup_returns_the_value_of_the_best_key(backend, seed):
    query, key, value = qkv(seed)
    found = backend.hard_lookup(query, key, value)
    for b, i in np.ndindex(2, 3):
        best = max(range(6), key=lambda j: query[b, i] @ key[b, j])
        np.testing.assert_array_equal(found[b, i], value[b, best])


@settings(max_examples=30)
@given(seed=seeds)
def test_as_the_temperature_falls_a_soft_lookup_becomes_a_hard_one(backend, seed):
    query, key, value = qkv(seed)
    scores = np.sort(query @ key.swapaxes(-1, -2), axis=-1)
    gap = (scores[..., -1] - scores[..., -2]).min()
    cold = backend.soft_lookup(query, key, value, temperature=gap / 50)  # runner-up weighs e^-50
    hard = backend.hard_lookup(query, key, value)
    np.testing.assert_allclose(cold, hard, atol=rounding(np.float64, 6, 8))
    hot = backend.soft_lookup(query, key, value, temperature=1e12)
    mean = np.broadcast_to(value.mean(axis=-2, keepdims=True), hot.shape)
    np.testing.assert_allclose(hot, mean, atol=1e-9)


def test_at_temperature_root_d_k_it_is_scaled_dot_product_attention(backend):
    query, key, value = qkv()
    soft = backend.soft_lookup(query, key, value, temperature=math.sqrt(5))
    attention = backend.scaled_dot_product_attention(query, key, value)
    np.testing.assert_allclose(soft, attention, atol=rounding(np.float64, 11, 16))


@settings(max_examples=30)
@given(seed=seeds, bandwidth=st.floats(0.3, 3))
def test_for_keys_of_one_length_the_kernel_smoother_is_a_soft_lookup(backend, seed, bandwidth):
    query, key, value = qkv(seed)
    key = key / np.linalg.norm(key, axis=-1, keepdims=True)
    smooth = backend.kernel_smoother(query, key, value, bandwidth)
    soft = backend.soft_lookup(query, key, value, temperature=bandwidth**2)
    size = 40 / bandwidth**2 * np.abs(value).max()
    np.testing.assert_allclose(smooth, soft, atol=rounding(np.float64, 11, size))


def test_the_kernel_smoother_is_the_weighted_mean_of_its_name(backend):
    query, key, value = qkv(lead=())
    smooth = backend.kernel_smoother(query, key, value, bandwidth=0.8)
    for i in range(3):
        kernel = [math.exp(-sum((query[i] - k) ** 2) / (2 * 0.8**2)) for k in key]
        expected = sum(w * v for w, v in zip(kernel, value, strict=True)) / sum(kernel)
        np.testing.assert_allclose(smooth[i], expected, rtol=1e-12)


def test_values_broadcast_like_queries(backend):
    query, key, value = normal(4, 1, 3, 5), normal(2, 6, 5), normal(6, 2)
    for lookup in backend.hard_lookup, backend.soft_lookup, backend.kernel_smoother:
        assert lookup(query, key, value).shape == (4, 2, 3, 2)


def test_errors_say_what_was_expected_and_what_came(backend):
    query, key, value = qkv()
    with pytest.raises(ValueError, match=r"at least one key"):
        backend.hard_lookup(query, key[:, :0], value[:, :0])
    with pytest.raises(ValueError, match=r"number of rows S"):
        backend.soft_lookup(query, key, value[:, :2])
    with pytest.raises(ValueError, match=r"temperature: expected a number above 0, got 0"):
        backend.soft_lookup(query, key, value, temperature=0)
    with pytest.raises(ValueError, match=r"bandwidth: expected a number above 0, got -1"):
        backend.kernel_smoother(query, key, value, bandwidth=-1)


def test_torch_soft_lookups_are_differentiable():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    leaves = [torch.from_numpy(x).requires_grad_() for x in qkv()]
    assert torch.autograd.gradcheck(with_torch.soft_lookup, leaves)
    assert torch.autograd.gradcheck(with_torch.kernel_smoother, leaves)
