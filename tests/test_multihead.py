"""Multi-head attention: project, split, attend, merge, project."""

import itertools

import numpy as np
import pytest
from helpers import normal, rounding
from hypothesis import given, settings
from hypothesis import strategies as st

from sdpa_course import formulas

pytestmark = pytest.mark.filterwarnings("error")  # a NumPy warning is a mistake of ours


def projections(d_model=12, n_heads=3, d_k=4, d_v=5, d_context=12, n_kv_heads=3, d_out=12, seed=0):
    shapes = [
        (d_model, n_heads * d_k),
        (d_context, n_kv_heads * d_k),
        (d_context, n_kv_heads * d_v),
        (n_heads * d_v, d_out),
    ]
    return [normal(*n, seed=seed + i) / n[0] ** 0.5 for i, n in enumerate(shapes)]


@settings(max_examples=30)
@given(H=st.integers(1, 4), d=st.integers(1, 3), L=st.integers(0, 4), seed=st.integers(0, 1000))
def test_splitting_gives_head_h_its_own_features_and_merging_undoes_it(backend, H, d, L, seed):
    x = normal(2, L, H * d, seed=seed)
    heads = backend.split_heads(x, H)
    assert heads.shape == (2, H, L, d)
    for h in range(H):
        np.testing.assert_array_equal(heads[:, h], x[..., h * d : (h + 1) * d])
    np.testing.assert_array_equal(backend.merge_heads(heads), x)


def test_every_head_is_attention_with_its_own_projection_of_the_whole_vector(backend):
    x = normal(2, 6, 12, seed=9)
    W_q, W_k, W_v, W_o = projections()
    output, weights = backend.multi_head_attention(
        x, W_q, W_k, W_v, W_o, 3, is_causal=True, return_weights=True
    )
    assert weights.shape == (2, 3, 6, 6)
    heads = [
        backend.scaled_dot_product_attention(
            x @ W_q[:, 4 * h : 4 * h + 4],
            x @ W_k[:, 4 * h : 4 * h + 4],
            x @ W_v[:, 5 * h : 5 * h + 5],
            is_causal=True,
        )
        for h in range(3)
    ]
    expected = np.concatenate(heads, axis=-1) @ W_o
    np.testing.assert_allclose(output, expected, atol=rounding(np.float64, 12 + 15, 16))
    shuffled = x[..., np.roll(np.arange(12), 1)]
    _, other = backend.multi_head_attention(
        shuffled, W_q, W_k, W_v, W_o, 3, is_causal=True, return_weights=True
    )
    # mixing coordinates changes every head, since no head owns a slice of the embedding
    assert (np.abs(other - weights)[..., 1:, :].max(axis=(0, 2, 3)) > 1e-3).all()


def test_queries_may_ask_another_sequence(backend):
    x, context = normal(2, 3, 12), normal(2, 7, 8, seed=1)
    weights = projections(d_context=8)
    output = backend.multi_head_attention(x, *weights, 3, context)
    assert output.shape == (2, 3, 12)
    order = np.random.default_rng(0).permutation(7)
    permuted = backend.multi_head_attention(x, *weights, 3, context[:, order])
    np.testing.assert_allclose(permuted, output, atol=1e-14)


def test_fewer_key_value_heads_equal_repeated_projections(backend):
    x = normal(2, 5, 12)
    W_q, W_k, W_v, W_o = projections(n_heads=6, n_kv_heads=2)
    grouped = backend.multi_head_attention(x, W_q, W_k, W_v, W_o, 6, n_kv_heads=2)
    repeat = [
        np.concatenate([W[:, n * (h // 3) : n * (h // 3 + 1)] for h in range(6)], axis=-1)
        for W, n in ((W_k, 4), (W_v, 5))
    ]
    full = backend.multi_head_attention(x, W_q, *repeat, W_o, 6)
    np.testing.assert_allclose(grouped, full, atol=1e-14)


def test_biases_are_added_to_every_projection(backend):
    x = normal(2, 5, 12)
    weights = projections()
    biases = [normal(n, seed=n) for n in (12, 12, 15, 12)]
    with_biases = backend.multi_head_attention(x, *weights, 3, biases=[*map(backend.array, biases)])
    padded = np.concatenate([x, np.ones((2, 5, 1))], axis=-1)  # a bias is a weight of a constant 1
    folded = [np.vstack([W, b]) for W, b in zip(weights[:3], biases[:3], strict=True)]
    expected = backend.multi_head_attention(padded, *folded, weights[3], 3) + biases[3]
    np.testing.assert_allclose(with_biases, expected, atol=1e-13)


def test_options_reach_the_attention_inside(backend):
    x, weights = normal(2, 5, 12), projections()
    plain = backend.multi_head_attention(x, *weights, 3)
    for options in (
        {"scale": 0.1},
        {"softcap": 0.5},
        {"is_causal": True},
        {"attn_mask": np.arange(5) < 3},
        {"dropout_p": 0.5, "rng": 0},
    ):
        other = backend.multi_head_attention(x, *weights, 3, **options)
        assert np.abs(other - plain).max() > 1e-3, options


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_dtype_stays(backend, dtype):
    x, weights = normal(2, 5, 12), projections()
    exact = backend.multi_head_attention(x, *weights, 3)
    narrow = [a.astype(dtype) for a in (x, *weights)]
    output, attention = backend.multi_head_attention(*narrow, 3, return_weights=True)
    assert output.dtype == attention.dtype == dtype
    # inputs rounded once, each through two products of a dozen terms
    np.testing.assert_allclose(output, exact, atol=rounding(dtype, 8, 4))


def test_errors_say_what_was_expected_and_what_came(backend):
    x, (W_q, W_k, W_v, W_o) = normal(2, 5, 12), projections()
    with pytest.raises(ValueError, match=r"5 heads share equally.*\(2, 5, 12\)"):
        backend.split_heads(x, 5)
    with pytest.raises(ValueError, match=r"expected \(\.\.\., H, L, d\), got \(5, 12\)"):
        backend.merge_heads(x[0])
    with pytest.raises(ValueError, match=r"W_q: expected \(12, …\).*\(7, 12\).*nn\.Linear"):
        backend.multi_head_attention(x, normal(7, 12), W_k, W_v, W_o, 3)
    with pytest.raises(ValueError, match=r"W_k: expected \(8, …\) to multiply context"):
        backend.multi_head_attention(x, W_q, W_k, W_v, W_o, 3, normal(2, 4, 8))
    with pytest.raises(ValueError, match=r"biases: expected four.*got 1"):
        backend.multi_head_attention(x, W_q, W_k, W_v, W_o, 3, biases=[backend.array(normal(12))])


def test_random_projections_keep_the_variance_and_repeat_from_a_seed(backend):
    W_q, W_k, W_v, W_o = backend.init_multi_head(64, 4, d_v=8, rng=0)
    assert [W.shape for W in (W_q, W_k, W_v, W_o)] == [(64, 64), (64, 64), (64, 32), (32, 64)]
    for W in W_q, W_k, W_v, W_o:
        assert W.std() * W.shape[0] ** 0.5 == pytest.approx(1, abs=5 / (2 * W.size) ** 0.5)
    np.testing.assert_array_equal(backend.init_multi_head(64, 4, d_v=8, rng=0)[3], W_o)
    assert (W_q != W_k).any()


# Counting


def test_parameters_do_not_depend_on_the_number_of_heads():
    assert {formulas.count_parameters(512, h) for h in (1, 4, 8, 16, 32)} == {4 * 512**2}
    assert formulas.count_parameters(512, 8, bias=True) == 4 * 512**2 + 4 * 512
    assert formulas.count_parameters(512, 8, n_kv_heads=2) == 2 * 512**2 + 2 * 512 * 128
    with pytest.raises(ValueError, match=r"multiple of n_heads, got d_model 512 and n_heads 7"):
        formulas.count_parameters(512, 7)


def test_differences_of_the_2017_parameter_table_are_reproduced():
    base = formulas.transformer_parameters()
    assert base == pytest.approx(63.0e6, rel=2e-3)
    assert formulas.transformer_parameters(n_heads=1) == base
    change = {
        "d_k 16": formulas.transformer_parameters(d_k=16) - base,
        "d_k 32": formulas.transformer_parameters(d_k=32) - base,
        "d_ff 1024": formulas.transformer_parameters(d_ff=1024) - base,
        "d_ff 4096": formulas.transformer_parameters(d_ff=4096) - base,
    }
    millions = {name: round(n / 1e6, 1) for name, n in change.items()}
    assert millions == {"d_k 16": -7.1, "d_k 32": -4.7, "d_ff 1024": -12.6, "d_ff 4096": 25.2}
    big = formulas.transformer_parameters(d_model=1024, d_ff=4096, n_heads=16)
    assert round(big / 1e6, 1) == 214.2


def test_flops_stay_and_exponentials_grow_with_the_number_of_heads():
    one, eight = (formulas.attention_cost(1024, 512, h) for h in (1, 8))
    assert one.attention_flops == eight.attention_flops == 4 * 1024**2 * 512
    assert one.projection_flops == eight.projection_flops == 8 * 1024 * 512**2
    assert (one.exponentials, eight.exponentials) == (1024**2, 8 * 1024**2)


def test_parameters_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    def count(layer):
        return sum(p.numel() for p in layer.parameters())

    theirs = torch.nn.MultiheadAttention(24, 4)
    assert count(theirs) == formulas.count_parameters(24, 4, bias=True)
    ours = with_torch.MultiHeadAttention(24, 4, n_kv_heads=2, d_k=5, d_v=7)
    assert count(ours) == formulas.count_parameters(24, 4, 5, 7, n_kv_heads=2)


# Against torch.nn.MultiheadAttention

L, S, B, H, E = 5, 7, 2, 3, 12


def torch_masks():
    """Every kind of mask that torch.nn.MultiheadAttention takes, in its own polarity."""
    torch = pytest.importorskip("torch")
    g = torch.Generator().manual_seed(0)
    attn = torch.rand(L, S, generator=g) < 0.3
    attn_per_head = torch.rand(B * H, L, S, generator=g) < 0.3
    attn[:, 0] = attn_per_head[..., 0] = False  # no row is left with nothing: theirs is NaN there
    padding = torch.arange(S) >= torch.tensor([S, 4])[:, None]
    return {
        "attn_mask": {
            "none": None,
            "boolean": attn,
            "boolean per head": attn_per_head,
            "float": torch.randn(L, S, generator=g, dtype=torch.float64),
            "float per head": torch.randn(B * H, L, S, generator=g, dtype=torch.float64),
        },
        "key_padding_mask": {
            "none": None,
            "boolean": padding,
            "float": torch.zeros(B, S, dtype=torch.float64).masked_fill(padding, -torch.inf),
        },
    }


KINDS = list(
    itertools.product(
        ["none", "boolean", "boolean per head", "float", "float per head"],
        ["none", "boolean", "float"],
    )
)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kdim", [E, 10])
@pytest.mark.parametrize(("attn_kind", "padding_kind"), KINDS)
def test_with_copied_weights_it_is_the_module_of_pytorch(attn_kind, padding_kind, kdim, bias):
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(
        E, H, bias=bias, kdim=kdim, vdim=kdim, batch_first=True, dtype=torch.float64
    )
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    ours = with_torch.MultiHeadAttention.from_torch(theirs)
    masks = torch_masks()
    attn_mask = masks["attn_mask"][attn_kind]
    padding_mask = masks["key_padding_mask"][padding_kind]
    x, context = (torch.from_numpy(normal(B, *n)) for n in ((L, E), (S, kdim)))
    given = [attn_mask, padding_mask]
    if {m.dtype for m in given if m is not None} == {torch.bool, torch.float64}:
        # theirs wants both masks of one kind
        zero = torch.zeros((), dtype=torch.float64)
        given = [torch.where(m, -torch.inf, zero) if m.dtype == torch.bool else m for m in given]
    expected, their_weights = theirs(
        x, context, context, attn_mask=given[0], key_padding_mask=given[1],
        average_attn_weights=False,
    )  # fmt: skip
    mask = with_torch.masks_from_torch(attn_mask, padding_mask, n_heads=H)
    output, weights = ours(x, context, attn_mask=mask, return_weights=True)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(weights, their_weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch", [True, False])
def test_causal_self_attention_is_that_of_pytorch_in_single_precision(batch):
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(E, H, batch_first=True)
    ours = with_torch.MultiHeadAttention.from_torch(theirs)
    x = torch.randn(B, L, E) if batch else torch.randn(L, E)
    ignored = torch.nn.Transformer.generate_square_subsequent_mask(L)
    expected, _ = theirs(x, x, x, attn_mask=ignored, is_causal=True)
    torch.testing.assert_close(ours(x, is_causal=True), expected, rtol=0, atol=1e-6)


def test_where_pytorch_gives_nan_for_nothing_to_attend_to_ours_gives_the_output_bias():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    theirs = torch.nn.MultiheadAttention(E, H, batch_first=True)
    torch.nn.init.normal_(theirs.out_proj.bias)
    ours = with_torch.MultiHeadAttention.from_torch(theirs)
    x = torch.randn(B, L, E)
    padding = torch.tensor([[False] * L, [True] * L])
    expected, _ = theirs(x, x, x, key_padding_mask=padding)
    output = ours(x, attn_mask=with_torch.masks_from_torch(None, padding, H))
    assert expected[1].isnan().all()
    torch.testing.assert_close(output[0], expected[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(output[1], theirs.out_proj.bias.expand(L, E), rtol=0, atol=0)


def test_the_module_trains_and_drops_out_only_in_training():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    torch.manual_seed(0)
    layer = with_torch.MultiHeadAttention(E, H, bias=True, dropout_p=0.5)
    x = torch.randn(B, L, E)
    assert not torch.equal(layer(x, rng=0), layer(x, rng=1))
    layer.eval()
    assert torch.equal(layer(x, rng=0), layer(x, rng=1))
    layer(x).sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in layer.parameters())


def test_a_module_that_cannot_be_copied_is_refused():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    for options in {"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 5, "vdim": 6}:
        theirs = torch.nn.MultiheadAttention(E, H, **options)
        with pytest.raises(ValueError, match=r"without add_bias_kv and add_zero_attn"):
            with_torch.MultiHeadAttention.from_torch(theirs)


def test_numpy_and_torch_agree():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_numpy, with_torch

    arrays = [normal(2, 5, 12), *projections(n_kv_heads=1)]
    expected = with_numpy.multi_head_attention(*arrays, 3, n_kv_heads=1, is_causal=True)
    output = with_torch.multi_head_attention(
        *map(torch.from_numpy, arrays), 3, n_kv_heads=1, is_causal=True
    )
    np.testing.assert_allclose(output.numpy(), expected, atol=1e-14)
