"""The contract of scaled_dot_product_attention, held by both backends."""

import inspect
import subprocess
import sys

import numpy as np
import pytest
from helpers import Backend, normal, rounding
from hypothesis import given, settings
from hypothesis import strategies as st

from sdpa_course import with_numpy

pytestmark = pytest.mark.filterwarnings("error")  # a NumPy warning is a mistake of ours

HALF, EPS = np.finfo(np.float16).eps, np.finfo(np.float64).eps
seeds = st.integers(0, 2**32 - 4)


def qkv(L=3, S=4, d_k=5, d_v=2, lead=(2, 3), seed=0, dtype=np.float64):
    return tuple(
        normal(*lead, *shape, seed=seed + n, dtype=dtype)
        for n, shape in enumerate([(L, d_k), (S, d_k), (S, d_v)])
    )


# Shapes


@pytest.mark.parametrize(
    ("query", "key", "value", "output"),
    [
        ((3, 5), (4, 5), (4, 2), (3, 2)),
        ((7, 3, 5), (7, 4, 5), (7, 4, 2), (7, 3, 2)),
        ((2, 7, 3, 5), (4, 5), (4, 2), (2, 7, 3, 2)),
        ((3, 5), (2, 7, 4, 5), (2, 7, 4, 2), (2, 7, 3, 2)),
        ((2, 1, 3, 5), (1, 7, 4, 5), (7, 4, 2), (2, 7, 3, 2)),
        ((3, 5), (4, 5), (6, 4, 2), (6, 3, 2)),
        ((2, 3, 4, 7, 3, 5), (2, 3, 4, 7, 4, 5), (2, 3, 4, 7, 4, 2), (2, 3, 4, 7, 3, 2)),
        ((2, 0, 5), (2, 4, 5), (2, 4, 3), (2, 0, 3)),
        ((2, 3, 5), (2, 4, 5), (2, 4, 0), (2, 3, 0)),
        ((0, 3, 5), (0, 4, 5), (0, 4, 2), (0, 3, 2)),
    ],
)
def test_any_leading_axes_that_broadcast(backend, query, key, value, output):
    inputs = [normal(*shape) for shape in (query, key, value)]
    result = backend.scaled_dot_product_attention(*inputs)
    assert result.shape == output
    lead = np.broadcast_shapes(query[:-2], key[:-2], value[:-2])
    expanded = [np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in inputs]
    whole = backend.scaled_dot_product_attention(*expanded)
    np.testing.assert_allclose(whole, result, atol=rounding(np.float64, 9, 8))


def test_no_keys_at_all_give_zeros(backend):
    output, weights = backend.scaled_dot_product_attention(*qkv(S=0), return_weights=True)
    np.testing.assert_array_equal(output, np.zeros((2, 3, 3, 2)))
    assert weights.shape == (2, 3, 3, 0)


def test_inputs_need_not_be_contiguous(backend):
    query, key, value = (np.asfortranarray(x)[..., ::-1] for x in qkv())
    packed = backend.scaled_dot_product_attention(*map(np.ascontiguousarray, (query, key, value)))
    output = backend.scaled_dot_product_attention(query, key, value)
    np.testing.assert_allclose(output, packed, atol=rounding(np.float64, 9, 4))


# Masks


def test_true_means_may_attend(backend):
    mask = np.array([True, False, True, False])
    _, weights = backend.scaled_dot_product_attention(*qkv(), attn_mask=mask, return_weights=True)
    assert (weights[..., mask] > 0).all()
    assert (weights[..., ~mask] == 0).all()


@settings(max_examples=30)
@given(seed=seeds)
def test_an_additive_mask_of_zeros_and_minus_infinities_is_the_boolean_one(backend, seed):
    keep = np.random.default_rng(seed).random((2, 1, 3, 4)) < 0.5
    inputs = qkv(seed=seed)
    boolean = backend.scaled_dot_product_attention(*inputs, attn_mask=keep)
    additive = backend.scaled_dot_product_attention(*inputs, attn_mask=backend.to_additive(keep))
    np.testing.assert_array_equal(boolean, additive)


@settings(max_examples=30)
@given(seed=seeds)
def test_masking_a_key_is_leaving_it_out(backend, seed):
    query, key, value = qkv(seed=seed)
    keep = np.random.default_rng(seed).random(4) < 0.5
    masked = backend.scaled_dot_product_attention(query, key, value, attn_mask=keep)
    without = backend.scaled_dot_product_attention(query, key[..., keep, :], value[..., keep, :])
    np.testing.assert_allclose(masked, without, atol=rounding(np.float64, 9, 8))


@settings(max_examples=30)
@given(seed=seeds, L=st.integers(1, 6))
def test_future_tokens_never_leak(backend, seed, L):
    query, key, value = qkv(L=L, S=L, seed=seed)
    before = backend.scaled_dot_product_attention(query, key, value, is_causal=True)
    now = seed % L
    for x in query, key, value:
        x[..., now + 1 :, :] = np.nan
    after = backend.scaled_dot_product_attention(query, key, value, is_causal=True)
    np.testing.assert_array_equal(before[..., : now + 1, :], after[..., : now + 1, :])


def test_causal_with_unequal_lengths_must_say_which_corner(backend):
    inputs = qkv(L=2, S=4)
    with pytest.raises(ValueError, match=r"2 queries and 4 keys.*top-left.*bottom-right"):
        backend.scaled_dot_product_attention(*inputs, is_causal=True)
    for corner, expected in (
        ("top-left", [[1, 0, 0, 0], [1, 1, 0, 0]]),
        (
            "bottom-right",
            [[1, 1, 1, 0], [1, 1, 1, 1]],
        ),
    ):
        _, weights = backend.scaled_dot_product_attention(
            *inputs, is_causal=corner, return_weights=True
        )
        np.testing.assert_array_equal(weights[0, 0] > 0, expected)


def test_both_corners_are_one_where_lengths_are_equal(backend):
    inputs = qkv(L=4, S=4)
    plain, left, right = (
        backend.scaled_dot_product_attention(*inputs, is_causal=how)
        for how in (True, "top-left", "bottom-right")
    )
    np.testing.assert_array_equal(plain, left)
    np.testing.assert_array_equal(plain, right)


def test_a_mask_and_is_causal_must_both_allow_a_key(backend):
    inputs = qkv(L=4, S=4)
    keep = np.random.default_rng(0).random((2, 1, 1, 4)) < 0.7
    both = backend.scaled_dot_product_attention(*inputs, attn_mask=keep, is_causal=True)
    combined = keep & np.tri(4, dtype=bool)
    by_mask = backend.scaled_dot_product_attention(*inputs, attn_mask=combined)
    np.testing.assert_array_equal(both, by_mask)
    bias = np.where(keep, normal(4, 4), -np.inf)
    both = backend.scaled_dot_product_attention(*inputs, attn_mask=bias, is_causal=True)
    by_mask = backend.scaled_dot_product_attention(
        *inputs, attn_mask=np.where(combined, bias, -np.inf)
    )
    np.testing.assert_array_equal(both, by_mask)


# Rows with nothing to attend to


@pytest.mark.parametrize("kind", ["boolean", "additive", "causal", "no keys"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_query_with_nothing_to_attend_to_gives_zeros(backend, kind, dtype):
    keep = np.ones((3, 4), bool)
    keep[1] = False
    L = 6 if kind == "causal" else 3
    options = {
        "boolean": {"attn_mask": keep},
        "additive": {"attn_mask": np.where(keep, 0.5, -np.inf).astype(dtype)},
        "causal": {"is_causal": "bottom-right"},
        "no keys": {"attn_mask": np.zeros((3, 4), bool)},
    }[kind]
    empty = {"causal": [0, 1], "no keys": [0, 1, 2]}.get(kind, [1])
    output, weights = backend.scaled_dot_product_attention(
        *qkv(L=L, dtype=dtype), return_weights=True, **options
    )
    assert np.isfinite(output).all()
    for row in range(L):
        assert (output[..., row, :] == 0).all() == (row in empty)
        assert (weights[..., row, :] == 0).all() == (row in empty)


def test_a_query_with_nothing_to_attend_to_has_zero_gradients():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    for dtype in torch.float64, torch.float32, torch.float16, torch.bfloat16:
        query, key, value = (torch.from_numpy(x).to(dtype).requires_grad_() for x in qkv())
        keep = torch.ones(3, 4, dtype=torch.bool)
        keep[1] = False
        keep[:, 2] = False
        with_torch.scaled_dot_product_attention(query, key, value, keep).sum().backward()
        for gradient in query.grad, key.grad, value.grad:
            assert torch.isfinite(gradient).all()
        assert (query.grad[..., 1, :] == 0).all()
        assert (key.grad[..., 2, :] == 0).all()
        assert (value.grad[..., 2, :] == 0).all()


# NaN and inf behind a mask


@settings(max_examples=40)
@given(seed=seeds, bad=st.sampled_from([np.nan, np.inf, -np.inf]), where=st.integers(0, 2))
def test_nan_and_inf_in_a_masked_key_or_value_never_reach_the_output(backend, seed, bad, where):
    rng = np.random.default_rng(seed)
    query, key, value = qkv(seed=seed)
    keep = rng.random((2, 3, 1, 4)) < 0.5
    options = {"attn_mask": keep}
    if where == 2:
        options = {"attn_mask": np.where(keep, rng.normal(size=keep.shape), -np.inf)}
    before = backend.scaled_dot_product_attention(query, key, value, **options)
    hidden = np.broadcast_to(~keep.swapaxes(-1, -2), key.shape[:-1] + (1,))
    if where != 0:
        key = np.where(hidden & (rng.random(key.shape) < 0.5), bad, key)
    if where != 1:
        value = np.where(hidden & (rng.random(value.shape) < 0.5), bad, value)
    after = backend.scaled_dot_product_attention(query, key, value, **options)
    np.testing.assert_allclose(before, after, rtol=0, atol=8 * EPS)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_some_queries_may_see_reaches_exactly_those(backend, bad):
    query, key, value = qkv(L=4, S=4, lead=())
    clean = backend.scaled_dot_product_attention(query, key, value, is_causal=True)
    value[2, 1] = bad
    output = backend.scaled_dot_product_attention(query, key, value, is_causal=True)
    reached = np.zeros((4, 2), bool)
    reached[2:, 1] = True
    np.testing.assert_array_equal(output[reached], bad)
    np.testing.assert_allclose(output[~reached], clean[~reached], rtol=0, atol=8 * EPS)
    key[2] = np.nan
    output = backend.scaled_dot_product_attention(query, key, value, is_causal=True)
    np.testing.assert_allclose(output[:2], clean[:2], rtol=0, atol=8 * EPS)
    assert np.isnan(output[2:]).all()


def test_a_mask_that_hides_nothing_changes_nothing_even_for_inf(backend):
    query, key, value = qkv()
    value[0, 0, 1, 0], value[1, 2, 3, 1] = np.inf, np.nan
    plain = backend.scaled_dot_product_attention(query, key, value)
    masked = backend.scaled_dot_product_attention(query, key, value, attn_mask=np.ones(4, bool))
    np.testing.assert_allclose(masked, plain, rtol=0, atol=8 * EPS)


def test_nan_and_inf_behind_a_mask_never_reach_the_gradients():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    keep = np.arange(4) < np.array([4, 2])[:, None, None, None]
    hidden = ~keep.swapaxes(-1, -2)
    causal = {"is_causal": "bottom-right"}
    clean = qkv()
    planted = [
        clean[0],
        *(np.where(hidden, bad, x) for bad, x in zip((np.inf, np.nan), clean[1:], strict=True)),
    ]
    gradients = []
    for inputs in clean, planted:
        leaves = [torch.from_numpy(np.array(x)).requires_grad_() for x in inputs]
        output = with_torch.scaled_dot_product_attention(
            *leaves, attn_mask=torch.from_numpy(keep), **causal
        )
        (output**2).sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=64 * EPS)


def test_a_nan_in_the_future_never_reaches_the_gradients_of_earlier_queries():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    query, key, value = (torch.from_numpy(x) for x in qkv(L=4, S=4))
    key[..., 3, :], value[..., 3, :] = torch.nan, torch.nan
    output = with_torch.scaled_dot_product_attention(
        query.requires_grad_(), key, value, is_causal=True
    )
    output[..., :3, :].sum().backward()
    assert torch.isfinite(query.grad[..., :3, :]).all()
    assert (query.grad[..., 1:3, :] != 0).all()


# Types


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_result_has_the_dtype_of_the_inputs(backend, dtype):
    output, weights = backend.scaled_dot_product_attention(*qkv(dtype=dtype), return_weights=True)
    assert output.dtype == weights.dtype == dtype


def test_half_precision_is_computed_in_single_precision(backend):
    query, key, value = qkv(L=8, S=500, d_k=64, dtype=np.float16)
    query, key = 3 * query, 3 * key
    exact = backend.scaled_dot_product_attention(
        *(x.astype(np.float64) for x in (query, key, value))
    )
    output = backend.scaled_dot_product_attention(query, key, value)
    single = rounding(np.float32, 64, 64) * float(np.abs(value).max())
    np.testing.assert_allclose(output, exact, rtol=HALF, atol=single)
    large = np.full((2, 64), 100, np.float16)  # q·k = 640000 is beyond float16
    assert np.isfinite(backend.scaled_dot_product_attention(large, large, large)).all()


def test_float64_is_not_rounded_to_single_precision(backend):
    query, key = np.array([[1.0]]), np.array([[0.0], [1e-9]])
    value = np.array([[0.0], [1.0]])
    output = backend.scaled_dot_product_attention(query, key, value)
    assert output[0, 0] - 0.5 == pytest.approx(0.25e-9, rel=1e-6)


def test_bfloat16_is_computed_in_single_precision():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    query, key, value = (torch.from_numpy(x).bfloat16() for x in qkv(L=8, S=300, d_k=64))
    output = with_torch.scaled_dot_product_attention(query, key, value)
    exact = with_torch.scaled_dot_product_attention(query.double(), key.double(), value.double())
    eps = torch.finfo(torch.bfloat16).eps
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.double(), exact, rtol=eps, atol=rounding(np.float32, 64, 64))


def test_integers_become_floats(backend):
    query, key, value = (np.round(3 * x).astype(np.int64) for x in qkv())
    output = backend.scaled_dot_product_attention(query, key, value)
    exact = backend.scaled_dot_product_attention(*(x.astype(float) for x in (query, key, value)))
    expected = {"numpy": np.float64, "torch": np.float32}[backend.name]
    assert output.dtype == expected
    np.testing.assert_allclose(output, exact, atol=rounding(expected, 9, 64))


def test_python_lists_are_welcome():
    output = with_numpy.scaled_dot_product_attention([[1]], [[1], [1]], [[2], [4]])
    np.testing.assert_array_equal(output, [[3.0]])


# Calls


def test_neither_inputs_nor_masks_are_changed_and_two_calls_agree(backend):
    keep = np.random.default_rng(0).random((3, 4)) < 0.5
    for mask in keep, np.where(keep, 0.3, -np.inf):
        originals = [*qkv(), mask]
        originals[1][0, 0, 0] = np.nan
        args = [backend.array(x) for x in originals]
        attend = backend.module.scaled_dot_product_attention
        results = [attend(*args, softcap=3.0, is_causal="top-left") for _ in range(2)]
        np.testing.assert_array_equal(*map(backend.numpy, results))
        for before, after in zip(originals, args, strict=True):
            np.testing.assert_array_equal(backend.numpy(after), before)


def test_the_output_shares_no_memory_with_the_inputs(backend):
    args = [backend.array(x) for x in qkv(S=1)]
    output = backend.module.scaled_dot_product_attention(*args)
    output += 1
    np.testing.assert_array_equal(backend.numpy(args[2]), qkv(S=1)[2])


# Errors


ERRORS = {
    "integer mask": (
        TypeError,
        {"attn_mask": np.ones((3, 4), int)},
        r"boolean.*float.*int64.*== 1",
    ),
    "mask shape": (ValueError, {"attn_mask": np.ones((3, 5), bool)}, r"\(2, 3, 3, 4\).*\(3, 5\)"),
    "mask too large": (ValueError, {"attn_mask": np.ones((7, 2, 3, 3, 4), bool)}, r"\(7, 2, 3"),
    "padding mask": (ValueError, {"attn_mask": np.ones((2, 4), bool)}, r"\[:, None, None, :\]"),
    "causal word": (ValueError, {"is_causal": "lower"}, r"top-left.*got 'lower'"),
    "causal number": (ValueError, {"is_causal": 1}, r"top-left.*got 1"),
    "dropout": (ValueError, {"dropout_p": 1.5}, r"probability from 0 to 1, got 1\.5"),
    "softcap": (ValueError, {"softcap": 0.0}, r"above 0, or None.*got 0\.0"),
    "d_k": (
        ValueError,
        {"key": normal(2, 3, 4, 6)},
        r"last axis d_k.*\(2, 3, 3, 5\).*\(2, 3, 4, 6\)",
    ),
    "S": (
        ValueError,
        {"value": normal(2, 3, 5, 2)},
        r"number of rows S.*\(2, 3, 4, 5\).*\(2, 3, 5, 2\)",
    ),
    "batch": (ValueError, {"key": normal(5, 3, 4, 5)}, r"broadcast.*query \(2, 3, 3, 5\)"),
    "rank": (ValueError, {"query": normal(5)}, r"query: expected at least two axes.*\(5,\)"),
    "dtype": (TypeError, {"value": normal(2, 3, 4, 2) > 0}, r"value: expected .* numbers.*bool"),
    "heads": (
        ValueError,
        {"key": normal(2, 2, 4, 5), "value": normal(2, 2, 4, 2)},
        r"Fewer key/value heads than query heads need enable_gqa=True",
    ),
    "groups": (
        ValueError,
        {"key": normal(2, 2, 4, 5), "value": normal(2, 2, 4, 2), "enable_gqa": True},
        r"multiple.*3 query heads, 2 key heads",
    ),
    "no head axis": (
        ValueError,
        {"query": normal(3, 5), "key": normal(4, 5), "value": normal(4, 2), "enable_gqa": True},
        r"head axis.*\(3, 5\)",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_say_what_was_expected_what_came_and_what_to_do(backend, case):
    error, change, message = ERRORS[case]
    query, key, value = qkv()
    arguments = {"query": query, "key": key, "value": value} | change
    with pytest.raises(error, match=message):
        backend.scaled_dot_product_attention(**arguments)


def test_a_mask_on_another_device_is_named():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    query, key, value = (torch.from_numpy(x) for x in qkv())
    mask = torch.ones(3, 4, dtype=torch.bool, device="meta")
    with pytest.raises(ValueError, match=r"attn_mask: expected on cpu.*got on meta"):
        with_torch.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    with pytest.raises(ValueError, match=r"one device.*query on cpu, key on meta"):
        with_torch.scaled_dot_product_attention(query, key.to("meta"), value)


# The two backends


def test_both_backends_offer_the_same_functions_with_the_same_arguments():
    pytest.importorskip("torch")
    one, other = Backend("numpy").module, Backend("torch").module
    assert set(one.__all__) <= set(other.__all__)
    assert set(other.__all__) - set(one.__all__) == {"MultiHeadAttention", "masks_from_torch"}
    for name in one.__all__:
        first, second = (inspect.signature(getattr(m, name)).parameters for m in (one, other))
        assert list(first) == [p for p in second if p != "device"], name
        for parameter in first:
            if name != "to_additive":  # its dtype is NumPy's or PyTorch's
                assert first[parameter].default == second[parameter].default, (name, parameter)


def test_every_public_function_says_what_it_does(backend):
    for name in backend.module.__all__:
        assert inspect.getdoc(getattr(backend.module, name)), name


def run(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)


def test_the_numpy_modules_import_nothing_but_numpy():
    code = "import sys, sdpa_course.with_numpy; print(*{m.split('.')[0] for m in sys.modules})"
    loaded = set(run(code).stdout.split())
    assert "numpy" in loaded
    assert not loaded & {"torch", "matplotlib", "scipy", "pandas", "IPython"}


def test_the_torch_modules_do_not_import_the_numpy_ones():
    pytest.importorskip("torch")
    code = "import sys, sdpa_course.with_torch; print(*sys.modules)"
    assert not [m for m in run(code).stdout.split() if m.startswith("sdpa_course.with_numpy")]
