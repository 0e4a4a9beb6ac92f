"""The backward pass by hand: against finite differences, against autograd, and its identities."""

import numpy as np
import pytest
from helpers import Backend, normal, rounding

from sdpa_course import with_numpy

pytestmark = pytest.mark.filterwarnings("error")  # a NumPy warning is a mistake of ours

LENGTHS = np.array([4, 0])[:, None, None, None]
MASKS = {
    "none": {},
    "causal": {"is_causal": "top-left"},
    "bottom-right, with rows of nothing": {"is_causal": "bottom-right"},
    "padding, a sample of nothing": {"attn_mask": np.arange(4) < LENGTHS},
    "scattered": {"attn_mask": np.random.default_rng(3).random((2, 1, 5, 4)) < 0.5},
    "float": {"attn_mask": normal(5, 4, seed=8)},
    "float with -inf": {"attn_mask": np.where(np.tri(5, 4, dtype=bool), 0.3, -np.inf)},
    "both": {"attn_mask": np.arange(4) < LENGTHS, "is_causal": "bottom-right"},
    "everything": {"attn_mask": np.zeros((5, 4), bool)},
}


def inputs(dtype=np.float64, heads=2, kv_heads=2, lead=(2,)):
    """d_output, query, key, value with L = 5, S = 4, d_k = 3, d_v = 2"""
    shapes = [(heads, 5, 2), (heads, 5, 3), (kv_heads, 4, 3), (kv_heads, 4, 2)]
    return [normal(*lead, *shape, seed=n, dtype=dtype) for n, shape in enumerate(shapes)]


def by_hand(backend, d_output, query, key, value, **options):
    """The gradients both ways: from stored weights, and from log-sum-exp."""
    softcap, scale, gqa = (options.get(name) for name in ("softcap", "scale", "enable_gqa"))
    gradients = []
    if softcap is None:
        _, weights = backend.scaled_dot_product_attention(
            query, key, value, return_weights=True, **options
        )
        gradients.append(
            backend.attention_backward(
                d_output, query, key, value, weights, scale=scale, enable_gqa=bool(gqa)
            )
        )
    output, lse = backend.attention_with_lse(query, key, value, **options)
    gradients.append(
        backend.attention_backward_from_lse(d_output, query, key, value, output, lse, **options)
    )
    return gradients


CASES = {
    **MASKS,
    "scale": {"scale": 0.9},
    "softcap": {"softcap": 1.5},
    "softcap, masked": {"softcap": 1.5, "is_causal": "bottom-right", "attn_mask": normal(5, 4)},
    "grouped": {"enable_gqa": True},
}


@pytest.mark.parametrize("case", CASES)
def test_it_agrees_with_finite_differences(case):
    kv_heads = 1 if case == "grouped" else 2
    d_output, *qkv = inputs(kv_heads=kv_heads)
    options = CASES[case]
    for n, name in enumerate(("query", "key", "value")):

        def loss(x, n=n):
            moved = [x if i == n else other for i, other in enumerate(qkv)]
            attention = with_numpy.scaled_dot_product_attention(*moved, **options)
            return (d_output * attention).sum()

        measured = with_numpy.finite_differences(loss, qkv[n])
        for gradients in by_hand(Backend("numpy"), d_output, *qkv, **options):
            error = np.abs(gradients[n] - measured).max()
            assert error <= 1e-7 * max(1, np.abs(measured).max()), (case, name)


@pytest.mark.parametrize("case", CASES)
def test_it_agrees_with_autograd(backend, case):
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    d_output, *qkv = inputs(heads=4, kv_heads=2 if case == "grouped" else 4)
    leaves = [torch.from_numpy(x).requires_grad_() for x in qkv]
    options = CASES[case]
    translated = {
        name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in options.items()
    }
    output = with_torch.scaled_dot_product_attention(*leaves, **translated)
    expected = torch.autograd.grad(output, leaves, torch.from_numpy(d_output))
    for gradients in by_hand(backend, d_output, *qkv, **options):
        for ours, theirs in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), atol=rounding(np.float64, 24, 16))


@pytest.mark.parametrize("case", ["none", "scattered", "causal", "float"])
def test_it_agrees_with_the_gradient_of_pytorch_attention(backend, case):
    torch = pytest.importorskip("torch")
    options = MASKS[case]
    translated = {
        name: torch.from_numpy(x) if isinstance(x, np.ndarray) else True
        for name, x in options.items()
    }
    d_output, *qkv = inputs()
    leaves = [torch.from_numpy(x).requires_grad_() for x in qkv]
    output = torch.nn.functional.scaled_dot_product_attention(*leaves, **translated)
    expected = torch.autograd.grad(output, leaves, torch.from_numpy(d_output))
    for gradients in by_hand(backend, d_output, *qkv, **options):
        for ours, theirs in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), atol=rounding(np.float64, 24, 16))


@pytest.mark.parametrize("case", MASKS)
def test_output_and_lse_are_those_of_the_forward_pass(backend, case):
    _, query, key, value = inputs()
    output, lse = backend.attention_with_lse(query, key, value, **MASKS[case])
    expected, weights = backend.scaled_dot_product_attention(
        query, key, value, return_weights=True, **MASKS[case]
    )
    np.testing.assert_allclose(output, expected, atol=rounding(np.float64, 8, 8))
    assert lse.shape == (2, 2, 5)
    np.testing.assert_array_equal(lse == -np.inf, weights.sum(axis=-1) == 0)


def test_the_row_sum_of_the_softmax_is_the_row_sum_of_the_output(backend):
    d_output, query, key, value = inputs()
    output, weights = backend.scaled_dot_product_attention(query, key, value, return_weights=True)
    d_weights = d_output @ value.swapaxes(-1, -2)
    np.testing.assert_allclose(
        (weights * d_weights).sum(axis=-1), (d_output * output).sum(axis=-1), atol=1e-14
    )


def test_moving_every_key_by_the_same_vector_changes_nothing(backend):
    # the softmax sees only differences within a row: its gradient at the scores sums to 0
    d_output, query, key, value = inputs()
    _, weights = backend.scaled_dot_product_attention(query, key, value, return_weights=True)
    d_weights = d_output @ value.swapaxes(-1, -2)
    d_scores = backend.softmax_vjp(weights, d_weights)
    np.testing.assert_allclose(d_scores.sum(axis=-1), 0, atol=1e-14)
    moved = backend.scaled_dot_product_attention(query, key + normal(3, seed=5), value)
    np.testing.assert_allclose(moved, weights @ value, atol=1e-14)


@pytest.mark.parametrize(
    "case", ["bottom-right, with rows of nothing", "padding, a sample of nothing"]
)
def test_rows_with_nothing_and_hidden_keys_get_zero_gradients(backend, case):
    d_output, query, key, value = inputs()
    options = MASKS[case]
    for d_query, d_key, d_value in by_hand(backend, d_output, query, key, value, **options):
        _, weights = backend.scaled_dot_product_attention(
            query, key, value, return_weights=True, **options
        )
        nothing = weights.sum(axis=-1) == 0
        unseen = weights.sum(axis=-2) == 0
        assert nothing.any()
        assert (d_query[nothing] == 0).all()
        assert (d_key[unseen] == 0).all()
        assert (d_value[unseen] == 0).all()
        assert all(np.isfinite(g).all() for g in (d_query, d_key, d_value))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_inf_behind_a_mask_never_reach_the_gradients(backend, bad):
    d_output, query, key, value = inputs()
    hide = {"attn_mask": np.arange(4) < np.array([4, 2])[:, None, None, None]}
    clean = by_hand(backend, d_output, query, key, value, **hide)
    key[1, :, 2:], value[1, :, 3] = bad, bad
    planted = by_hand(backend, d_output, query, key, value, **hide)
    for ours, theirs in zip(planted, clean, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-14)


def test_gradients_of_broadcast_inputs_are_summed(backend):
    d_output, query = normal(6, 2, 5, 2), normal(6, 2, 5, 3, seed=1)
    key, value = normal(2, 4, 3, seed=2), normal(6, 1, 4, 2, seed=3)
    wide_key, wide_value = (np.broadcast_to(x, (6, 2, *x.shape[-2:])) for x in (key, value))
    for one, other in zip(
        by_hand(backend, d_output, query, key, value),
        by_hand(backend, d_output, query, wide_key, wide_value),
        strict=True,
    ):
        assert [g.shape for g in one] == [query.shape, key.shape, value.shape]
        np.testing.assert_allclose(one[0], other[0], atol=1e-14)
        np.testing.assert_allclose(one[1], other[1].sum(axis=0), atol=1e-13)
        np.testing.assert_allclose(one[2], other[2].sum(axis=1, keepdims=True), atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_gradients_have_the_dtype_of_the_inputs(backend, dtype):
    exact = by_hand(backend, *(x.astype(np.float64) for x in inputs(dtype)), is_causal="top-left")
    narrow = by_hand(backend, *inputs(dtype), is_causal="top-left")
    for ours, theirs in zip(narrow, exact, strict=True):
        for gradient, expected in zip(ours, theirs, strict=True):
            assert gradient.dtype == dtype
            # stored weights and output are rounded once, the gradient once more
            np.testing.assert_allclose(gradient, expected, atol=rounding(dtype, 0, 2))


def test_inputs_are_not_changed(backend):
    originals = inputs()
    args = [backend.array(x) for x in originals]
    output, lse = backend.module.attention_with_lse(*args[1:])
    backend.module.attention_backward_from_lse(*args, output, lse)
    _, weights = backend.module.scaled_dot_product_attention(*args[1:], return_weights=True)
    backend.module.attention_backward(*args, weights)
    for before, after in zip(originals, args, strict=True):
        np.testing.assert_array_equal(backend.numpy(after), before)


def test_finite_differences_leave_their_input_alone(backend):
    x = normal(2, 3)
    arg = backend.array(x)
    gradient = backend.numpy(backend.module.finite_differences(lambda x: (x**3).sum(), arg))
    np.testing.assert_allclose(gradient, 3 * x**2, atol=1e-8)
    np.testing.assert_array_equal(backend.numpy(arg), x)


def test_errors_say_what_was_expected_and_what_came(backend):
    d_output, query, key, value = inputs()
    weights = np.ones((2, 2, 5, 4)) / 4
    with pytest.raises(
        ValueError, match=r"d_output: expected .*\(2, 2, 5, 2\), got \(2, 2, 5, 3\)"
    ):
        backend.attention_backward(query, query, key, value, weights)
    with pytest.raises(ValueError, match=r"weights: expected .*\(2, 2, 5, 4\), got \(2, 2, 4, 5\)"):
        backend.attention_backward(d_output, query, key, value, weights.swapaxes(-1, -2))
    output, lse = backend.attention_with_lse(query, key, value)
    with pytest.raises(ValueError, match=r"output: expected what the forward pass gave"):
        backend.attention_backward_from_lse(d_output, query, key, value, query, lse)
    with pytest.raises(ValueError, match=r"lse: expected what the forward pass gave"):
        backend.attention_backward_from_lse(d_output, query, key, value, output, lse[..., :2])
