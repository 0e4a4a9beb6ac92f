"""The whole operation: values against a loop and against PyTorch, and what must be true of them."""

import math
import warnings

import numpy as np
import pytest
from helpers import normal, rounding
from hypothesis import given, settings
from hypothesis import strategies as st

from sdpa_course import with_numpy as ours

pytestmark = pytest.mark.filterwarnings("error")  # a NumPy warning is a mistake of ours

EPS = np.finfo(np.float64).eps
size = st.integers(1, 5)
shapes = st.fixed_dictionaries({"L": size, "S": size, "d_k": size, "d_v": size})
seeds = st.integers(0, 2**32 - 4)


def qkv(L=3, S=4, d_k=5, d_v=2, lead=(2, 3), seed=0, dtype=np.float64):
    """Scores with a standard deviation of about 2, so that a wrong scale shows."""
    query = 2 * normal(*lead, L, d_k, seed=seed)
    key, value = normal(*lead, S, d_k, seed=seed + 1), normal(*lead, S, d_v, seed=seed + 2)
    return tuple(x.astype(dtype) for x in (query, key, value))


def by_hand(query, key, value, keep=None, scale=None):
    """The definition, one query at a time, with Python's own arithmetic."""
    lead, L, S = query.shape[:-2], query.shape[-2], key.shape[-2]
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    keep = np.broadcast_to(True if keep is None else keep, (*lead, L, S))
    output = np.zeros((*lead, L, value.shape[-1]))
    for row in np.ndindex(*lead, L):
        b = row[:-1]
        seen = [j for j in range(S) if keep[(*row, j)]]
        scores = [scale * math.fsum(query[row] * key[(*b, j)]) for j in seen]
        exps = [math.exp(s - max(scores)) for s in scores]
        for e, j in zip(exps, seen, strict=True):
            output[row] += e / math.fsum(exps) * value[(*b, j)]
    return output


def tolerance(*tensors):
    """The scores' rounding is amplified by the softmax as much as it is large."""
    query, key, value = tensors
    largest = np.abs(query).max(initial=1) * np.abs(key).max(initial=1) * query.shape[-1]
    terms = query.shape[-1] + key.shape[-2]
    return rounding(np.float64, terms, (1 + largest) * np.abs(value).max(initial=1))


@settings(max_examples=60)
@given(shape=shapes, seed=seeds, masked=st.booleans())
def test_it_is_the_definition(backend, shape, seed, masked):
    inputs = qkv(**shape, seed=seed)
    keep = None
    if masked:
        keep = np.random.default_rng(seed).random((2, 3, shape["L"], shape["S"])) < 0.6
    output = backend.scaled_dot_product_attention(*inputs, attn_mask=keep)
    np.testing.assert_allclose(output, by_hand(*inputs, keep), atol=tolerance(*inputs))


def test_a_worked_example_that_fits_on_paper(backend):
    # scores (ln 3 · √2, 0) / √2 = (ln 3, 0): weights 3/4 and 1/4
    query = np.array([[math.log(3) * math.sqrt(2), 0.0]])
    key, value = np.eye(2), np.array([[4.0, 0.0], [0.0, 8.0]])
    output, weights = backend.scaled_dot_product_attention(query, key, value, return_weights=True)
    np.testing.assert_allclose(weights, [[0.75, 0.25]], rtol=8 * EPS)
    np.testing.assert_allclose(output, [[3, 2]], rtol=8 * EPS)


@settings(max_examples=30)
@given(shape=shapes, seed=seeds)
def test_the_output_lies_between_the_values(backend, shape, seed):
    query, key, value = qkv(**shape, seed=seed)
    output = backend.scaled_dot_product_attention(query, key, value)
    room = rounding(np.float64, shape["S"], np.abs(value).max())
    assert (output <= value.max(axis=-2, keepdims=True) + room).all()
    assert (output >= value.min(axis=-2, keepdims=True) - room).all()


@settings(max_examples=30)
@given(shape=shapes, seed=seeds)
def test_the_order_of_keys_with_their_values_does_not_matter(backend, shape, seed):
    query, key, value = qkv(**shape, seed=seed)
    order = np.random.default_rng(seed).permutation(shape["S"])
    one = backend.scaled_dot_product_attention(query, key, value)
    other = backend.scaled_dot_product_attention(query, key[..., order, :], value[..., order, :])
    np.testing.assert_allclose(one, other, atol=tolerance(query, key, value))


@settings(max_examples=30)
@given(shape=shapes, seed=seeds)
def test_permuting_queries_permutes_outputs(backend, shape, seed):
    query, key, value = qkv(**shape, seed=seed)
    order = np.random.default_rng(seed).permutation(shape["L"])
    one = backend.scaled_dot_product_attention(query, key, value)[..., order, :]
    other = backend.scaled_dot_product_attention(query[..., order, :], key, value)
    np.testing.assert_allclose(one, other, atol=tolerance(query, key, value))


def test_samples_and_heads_do_not_mix(backend):
    query, key, value = qkv(lead=(2, 3))
    before = backend.scaled_dot_product_attention(query, key, value)
    for x in query, key, value:
        x[1, 2] += 1
    after = backend.scaled_dot_product_attention(query, key, value)
    changed = (before != after).any(axis=(-2, -1))
    np.testing.assert_array_equal(changed, [[False] * 3, [False, False, True]])


@settings(max_examples=30)
@given(shape=shapes, seed=seeds)
def test_the_returned_weights_are_the_ones_that_were_used(backend, shape, seed):
    query, key, value = qkv(**shape, seed=seed)
    output, weights = backend.scaled_dot_product_attention(query, key, value, return_weights=True)
    assert weights.shape == (2, 3, shape["L"], shape["S"])
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=rounding(np.float64, shape["S"]))
    np.testing.assert_allclose(weights @ value, output, atol=tolerance(query, key, value))


def test_the_default_scale_comes_from_the_size_of_a_query_not_of_a_value(backend):
    inputs = qkv(d_k=6, d_v=3)
    default = backend.scaled_dot_product_attention(*inputs)
    explicit = backend.scaled_dot_product_attention(*inputs, scale=6**-0.5)
    np.testing.assert_allclose(default, explicit, atol=tolerance(*inputs))
    for wrong in 3**-0.5, 1.0, 1 / 6, 18**-0.5:
        other = backend.scaled_dot_product_attention(*inputs, scale=wrong)
        assert np.abs(other - default).max() > 1e-3


def test_scale_zero_averages_all_values(backend):
    query, key, value = qkv()
    output = backend.scaled_dot_product_attention(query, key, value, scale=0.0)
    mean = np.broadcast_to(value.mean(axis=-2, keepdims=True), output.shape)
    np.testing.assert_allclose(output, mean, atol=8 * EPS)


def test_query_head_h_reads_key_value_head_h_over_group_size(backend):
    query = normal(2, 6, 3, 5)
    key, value = normal(2, 2, 4, 5, seed=1), normal(2, 2, 4, 3, seed=2)
    output, weights = backend.scaled_dot_product_attention(
        query, key, value, enable_gqa=True, return_weights=True
    )
    assert weights.shape == (2, 6, 3, 4)
    for h in range(6):
        alone = backend.scaled_dot_product_attention(query[:, h], key[:, h // 3], value[:, h // 3])
        np.testing.assert_allclose(output[:, h], alone, atol=tolerance(query, key, value))


def test_softcap_bounds_scores_and_comes_before_the_mask(backend):
    query, key, value = qkv(L=4, S=4, d_v=4)
    capped = backend.scaled_dot_product_attention(10 * query, key, value, softcap=2.0)
    scores = backend.scaled_scores(10 * query, key)
    expected = backend.softmax(2 * np.tanh(scores / 2)) @ value
    np.testing.assert_allclose(capped, expected, atol=tolerance(10 * query, key, value))
    _, weights = backend.scaled_dot_product_attention(
        10 * query, key, value, is_causal=True, softcap=2.0, return_weights=True
    )
    assert (weights[..., ~np.tri(4, dtype=bool)] == 0).all()
    wide = backend.scaled_dot_product_attention(query, key, value, softcap=1e9)
    plain = backend.scaled_dot_product_attention(query, key, value)
    np.testing.assert_allclose(wide, plain, atol=tolerance(query, key, value))


def test_a_float_mask_is_added_after_the_scale(backend):
    query, key, value = qkv()
    bias = normal(2, 1, 3, 4, seed=5)
    output = backend.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=0.7)
    expected = backend.softmax(backend.scaled_scores(query, key, scale=0.7) + bias) @ value
    np.testing.assert_allclose(output, expected, atol=tolerance(query, key, value))


def test_one_key_gets_all_the_weight(backend):
    query, key, value = qkv(S=1)
    output = backend.scaled_dot_product_attention(query, key, value)
    np.testing.assert_array_equal(output, np.broadcast_to(value, output.shape))


def test_huge_scores_are_finite(backend):
    query, key, value = qkv()
    output = backend.scaled_dot_product_attention(1e150 * query, 1e150 * key, value)
    best = (query @ key.swapaxes(-1, -2)).argmax(axis=-1)[..., None]
    np.testing.assert_allclose(output, np.take_along_axis(value, best, axis=-2), atol=EPS)


# Dropout


def test_no_dropout_is_the_default_and_zero_probability_changes_nothing(backend):
    inputs = qkv()
    plain = backend.scaled_dot_product_attention(*inputs)
    zero = backend.scaled_dot_product_attention(*inputs, dropout_p=0.0, rng=1)
    np.testing.assert_array_equal(plain, zero)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_drops_the_asked_share_of_weights_and_keeps_the_mean(backend, p):
    S = 400
    query, key = np.zeros((1, 50, 2)), np.zeros((1, S, 2))  # every weight is 1/S
    value = np.eye(S)[None]  # so the output is the weights after dropout
    output, weights = backend.scaled_dot_product_attention(
        query, key, value, dropout_p=p, rng=0, return_weights=True
    )
    np.testing.assert_allclose(weights, 1 / S, rtol=8 * EPS)  # before dropout
    dropped = output == 0
    np.testing.assert_allclose(output[~dropped], 1 / S / (1 - p), rtol=8 * EPS)
    n = output.size
    assert abs(dropped.mean() - p) < 5 * math.sqrt(p * (1 - p) / n)
    assert abs(output.mean() * S - 1) < 5 * math.sqrt(p / (1 - p) / n)


def test_dropout_is_repeatable_from_a_seed_and_not_the_same_everywhere(backend):
    inputs = qkv(L=6, S=7)
    one, same, other = (
        backend.scaled_dot_product_attention(*inputs, dropout_p=0.5, rng=seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_dropping_everything_gives_zeros(backend):
    output = backend.scaled_dot_product_attention(*qkv(), dropout_p=1.0, rng=0)
    np.testing.assert_array_equal(output, np.zeros_like(output))


def test_dropout_takes_a_generator_and_moves_it_on():
    rng = np.random.default_rng(3)
    first = ours.scaled_dot_product_attention(*qkv(), dropout_p=0.5, rng=rng)
    second = ours.scaled_dot_product_attention(*qkv(), dropout_p=0.5, rng=rng)
    assert (first != second).any()


# Against PyTorch


CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "boolean": {"attn_mask": np.random.default_rng(0).random((2, 1, 6, 6)) < 0.5},
    "float": {"attn_mask": normal(3, 6, 6)},
    "one row of nothing": {"attn_mask": np.arange(6)[:, None] * np.ones(6) != 2},
    "padding": {"attn_mask": np.arange(6) < np.array([4, 1])[:, None, None, None]},
    "scale": {"scale": 0.3},
    "grouped": {"enable_gqa": True},
}
DTYPES = ["float64", "float32", "float16", "bfloat16"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_torch_version_agrees_with_pytorch(case, dtype):
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    dtype = getattr(torch, dtype)
    kv_heads = 1 if case == "grouped" else 3
    tensors = [
        torch.from_numpy(x).to(dtype)
        for x in (normal(2, 3, 6, 5), normal(2, kv_heads, 6, 5, seed=1), normal(2, kv_heads, 6, 4))
    ]
    options = dict(CASES[case])
    if "attn_mask" in options:
        mask = torch.from_numpy(options["attn_mask"])
        options["attn_mask"] = mask if mask.dtype == torch.bool else mask.to(dtype)
    expected = torch.nn.functional.scaled_dot_product_attention(*tensors, **options)
    output = with_torch.scaled_dot_product_attention(*tensors, **options)
    assert output.dtype == dtype
    # both round the result once; PyTorch may round half-precision weights on the way as well
    eps = torch.finfo(dtype).eps
    size = tensors[2].abs().max().item()
    steps = 4 if eps > 1e-6 else 5 + 6 + 8
    torch.testing.assert_close(output, expected, rtol=0, atol=steps * eps * size)


@pytest.mark.parametrize("align", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("L", "S"), [(3, 5), (5, 3), (4, 4)])
def test_alignments_agree_with_pytorch_bias_classes(align, L, S):
    torch = pytest.importorskip("torch")
    from torch.nn.attention import bias

    from sdpa_course import with_torch

    tensors = [torch.from_numpy(x) for x in qkv(L=L, S=S, d_v=5)]
    make = bias.causal_upper_left if align == "top-left" else bias.causal_lower_right
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it fears NaN for L > S; its attention gives zeros
        keep = make(L, S)._materialize(torch.device("cpu"))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    expected = sdpa(*tensors, attn_mask=keep)
    output = with_torch.scaled_dot_product_attention(*tensors, is_causal=align)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("case", CASES)
def test_numpy_and_torch_agree(case, dtype):
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    kv_heads = 1 if case == "grouped" else 3
    inputs = [
        normal(2, 3, 6, 5, dtype=dtype),
        normal(2, kv_heads, 6, 5, seed=1, dtype=dtype),
        normal(2, kv_heads, 6, 4, seed=2, dtype=dtype),
    ]
    options = CASES[case]
    translated = {
        name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in options.items()
    }
    expected = ours.scaled_dot_product_attention(*inputs, **options)
    output = with_torch.scaled_dot_product_attention(*map(torch.from_numpy, inputs), **translated)
    assert output.numpy().dtype == expected.dtype == dtype
    working = np.promote_types(dtype, np.float32)
    size = float(np.abs(inputs[2]).max())
    atol = rounding(working, 5 + 6, size) + float(np.finfo(dtype).eps) * size
    np.testing.assert_allclose(output.numpy(), expected, rtol=0, atol=atol)


GRADIENT_CASES = {
    "plain": {},
    "causal": {"is_causal": "bottom-right"},
    "rows of nothing": {"is_causal": "bottom-right", "attn_mask": np.arange(3) < 1},
    "padding": {"attn_mask": np.arange(3) < np.array([2, 0])[:, None, None, None]},
    "softcap": {"softcap": 1.5, "scale": 0.6},
    "grouped": {"enable_gqa": True},
}


@pytest.mark.parametrize("case", GRADIENT_CASES)
def test_torch_gradients_are_right(case):
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    heads = 1 if case == "grouped" else 2
    query, key, value = (
        torch.from_numpy(x).requires_grad_()
        for x in (normal(2, 2, 4, 3), normal(2, heads, 3, 3, seed=1), normal(2, heads, 3, 2))
    )
    options = {
        name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x
        for name, x in GRADIENT_CASES[case].items()
    }

    def attend(query, key, value):
        return with_torch.scaled_dot_product_attention(
            query, key, value, return_weights=True, **options
        )

    assert torch.autograd.gradcheck(attend, (query, key, value))


def test_a_float_mask_learns_and_its_minus_infinities_stay():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    query, key, value = (torch.from_numpy(x) for x in qkv(lead=()))
    bias = torch.from_numpy(normal(3, 4)).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda b: with_torch.scaled_dot_product_attention(query, key, value, attn_mask=b), (bias,)
    )
    with torch.no_grad():
        bias[0] = -torch.inf
        bias[1, 2] = -torch.inf
    with_torch.scaled_dot_product_attention(query, key, value, attn_mask=bias).sum().backward()
    assert torch.isfinite(bias.grad).all()
    assert (bias.grad[bias == -torch.inf] == 0).all()
