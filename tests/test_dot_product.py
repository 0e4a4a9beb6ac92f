"""Dot-product, cosine and additive scores."""

import tracemalloc

import numpy as np
import pytest
from helpers import normal, rounding
from hypothesis import given, settings
from hypothesis import strategies as st

from sdpa_course import with_numpy as ours
from sdpa_course.formulas import score_cost

pytestmark = pytest.mark.filterwarnings("error")  # a NumPy warning is a mistake of ours

sizes = st.integers(1, 5)
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=30)
@given(L=sizes, S=sizes, d=st.integers(1, 9), seed=seeds)
def test_each_score_is_the_dot_product_of_its_query_and_its_key(backend, L, S, d, seed):
    query, key = normal(2, L, d, seed=seed), normal(2, S, d, seed=seed + 1)
    scores = backend.dot_product_scores(query, key)
    assert scores.shape == (2, L, S)
    for b, i, j in np.ndindex(2, L, S):
        expected = sum(query[b, i, c] * key[b, j, c] for c in range(d))
        size = np.abs(query[b, i] * key[b, j]).sum()
        assert abs(scores[b, i, j] - expected) <= rounding(np.float64, d, size)


def test_leading_axes_broadcast(backend):
    query, key = normal(3, 1, 4, 5), normal(2, 6, 5, seed=1)
    scores = backend.dot_product_scores(query, key)
    assert scores.shape == (3, 2, 4, 6)
    np.testing.assert_allclose(
        scores, np.einsum("aold,bsd->abls", query, key), atol=rounding(np.float64, 5, 10)
    )


def test_a_long_key_wins_without_pointing_the_right_way(backend):
    query = np.array([[1.0, 0.0]])
    key = np.array([[1.0, 0.0], [3.0, 3.0]])  # the first is aligned, the second is long
    assert backend.dot_product_scores(query, key).argmax() == 1
    assert backend.cosine_scores(query, key).argmax() == 0


@settings(max_examples=30)
@given(seed=seeds, factor=st.floats(1e-3, 1e3))
def test_cosine_does_not_see_the_length_of_a_vector(backend, seed, factor):
    query, key = normal(3, 5, seed=seed), normal(4, 5, seed=seed + 1)
    cosines = backend.cosine_scores(query, key)
    tolerance = rounding(np.float64, 5)
    np.testing.assert_allclose(backend.cosine_scores(factor * query, key), cosines, atol=tolerance)
    assert np.abs(cosines).max() <= 1 + tolerance
    self_scores = backend.cosine_scores(query, query)
    np.testing.assert_allclose(np.diagonal(self_scores), 1, atol=tolerance)


def test_cosine_of_a_zero_vector_is_zero_and_of_huge_vectors_is_right(backend):
    query = np.array([[0.0, 0.0], [1e200, 1e200], [1e-200, 0.0]])
    key = np.array([[1e200, 0.0], [0.0, 0.0]])
    half = np.sqrt(0.5)
    np.testing.assert_allclose(
        backend.cosine_scores(query, key), [[0, 0], [half, 0], [1, 0]], rtol=1e-15
    )


@settings(max_examples=20)
@given(L=sizes, S=sizes, d_q=sizes, d_k=sizes, d_a=sizes, seed=seeds)
def test_both_ways_to_compute_additive_scores_agree_with_the_formula(
    backend, L, S, d_q, d_k, d_a, seed
):
    query, key = normal(2, L, d_q, seed=seed), normal(2, S, d_k, seed=seed + 1)
    W_q, W_k, v = (normal(*n, seed=seed + 2) for n in ((d_q, d_a), (d_k, d_a), (d_a,)))
    naive = backend.additive_scores(query, key, W_q, W_k, v)
    shared = backend.additive_scores_shared(query, key, W_q, W_k, v)
    tolerance = rounding(np.float64, d_q + d_k + d_a, 10 * np.abs(v).sum())
    np.testing.assert_allclose(shared, naive, atol=tolerance)
    for b, i, j in np.ndindex(2, L, S):
        expected = v @ np.tanh(W_q.T @ query[b, i] + W_k.T @ key[b, j])
        assert abs(naive[b, i, j] - expected) <= tolerance


def test_additive_scores_need_the_memory_that_the_cost_says():
    L = S = d = 48
    query, key, W_q, W_k, v = normal(L, d), normal(S, d), normal(d, d), normal(d, d), normal(d)
    for kind, function, args in (
        ("dot", ours.dot_product_scores, (query, key)),
        ("additive", ours.additive_scores, (query, key, W_q, W_k, v)),
        ("additive_shared", ours.additive_scores_shared, (query, key, W_q, W_k, v)),
    ):
        function(*args)
        tracemalloc.start()
        function(*args)
        peak = tracemalloc.get_traced_memory()[1] / 8
        tracemalloc.stop()
        stored = score_cost(kind, L, S, d).stored
        # not less than the largest intermediate, and not more than it with its successors
        assert stored <= peak <= 2.5 * stored + 8 * L * d, kind


def test_costs_are_those_of_the_products():
    assert score_cost("dot", 2, 3, 5) == (2 * 2 * 3 * 5, 0, 6)
    assert score_cost("additive", 2, 3, 5).tanh == score_cost("additive_shared", 2, 3, 5).tanh == 30
    with pytest.raises(ValueError, match='expected "dot", "additive" or "additive_shared"'):
        score_cost("cosine", 2, 3, 5)


def test_half_precision_is_multiplied_in_single_precision(backend):
    query = normal(4, 64, dtype=np.float16)
    scores = backend.dot_product_scores(query, query)
    assert scores.dtype == np.float16
    exact = query.astype(np.float64) @ query.astype(np.float64).T
    np.testing.assert_allclose(scores, exact, rtol=np.finfo(np.float16).eps, atol=1e-4)


def test_inputs_are_not_changed(backend):
    query, key = normal(3, 4), normal(5, 4, seed=1)
    args = backend.array(query), backend.array(key)
    backend.module.dot_product_scores(*args)
    backend.module.cosine_scores(*args)
    np.testing.assert_array_equal(backend.numpy(args[0]), query)
    np.testing.assert_array_equal(backend.numpy(args[1]), key)


def test_errors_say_what_was_expected_and_what_came(backend):
    with pytest.raises(ValueError, match=r"share their last axis d_k.*\(3, 4\).*\(3, 5\)"):
        backend.dot_product_scores(normal(3, 4), normal(3, 5))
    with pytest.raises(ValueError, match=r"at least two axes.*\(4,\).*query\[None, :\]"):
        backend.dot_product_scores(normal(4), normal(3, 4))
    with pytest.raises(ValueError, match=r"broadcast.*\(2, 3, 4\).*\(5, 3, 4\)"):
        backend.dot_product_scores(normal(2, 3, 4), normal(5, 3, 4))
    with pytest.raises(TypeError, match=r"key: expected .* of numbers.*complex128"):
        backend.dot_product_scores(normal(3, 4), normal(3, 4) * 1j)
    with pytest.raises(ValueError, match=r"W_q \(d_q, d_a\).*W_k \(7, 6\)"):
        backend.additive_scores(normal(3, 4), normal(3, 5), normal(4, 6), normal(7, 6), normal(6))
    with pytest.raises(ValueError, match=r"W_q \(d_q, d_a\)"):
        backend.additive_scores_shared(
            normal(3, 4), normal(3, 5), normal(4, 6), normal(5, 6), normal(6, 1)
        )


def test_torch_scores_are_differentiable():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    def leaf(*shape, seed):
        return torch.from_numpy(normal(*shape, seed=seed)).requires_grad_()

    query, key = leaf(2, 3, 4, seed=0), leaf(2, 5, 4, seed=1)
    additive = query, key, leaf(4, 3, seed=2), leaf(4, 3, seed=3), leaf(3, seed=4)
    assert torch.autograd.gradcheck(with_torch.dot_product_scores, (query, key))
    assert torch.autograd.gradcheck(with_torch.cosine_scores, (query, key))
    assert torch.autograd.gradcheck(with_torch.additive_scores, additive)
    assert torch.autograd.gradcheck(with_torch.additive_scores_shared, additive)


def test_the_gradient_of_the_cosine_of_a_zero_vector_is_finite():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    query = torch.zeros(1, 3, requires_grad=True)
    with_torch.cosine_scores(query, torch.ones(2, 3)).sum().backward()
    assert torch.isfinite(query.grad).all()
