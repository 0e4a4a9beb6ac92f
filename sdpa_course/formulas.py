"""Arithmetic about attention that needs no arrays: both backends share it."""

from __future__ import annotations

import math
from typing import NamedTuple


class ScoreCost(NamedTuple):
    """What L·S scores cost: FLOPs, calls of tanh, and the most numbers stored at once."""

    flops: int
    tanh: int
    stored: int


def score_cost(kind: str, L: int, S: int, d: int) -> ScoreCost:
    """The cost of all scores of L queries and S keys of size d (with d_a = d), leading terms only.

    kind is "dot", "additive" (a network on every pair) or "additive_shared" (projections once per
    token). stored counts the largest intermediate, the scores included. Raises ValueError for
    another kind.

    >>> score_cost("additive_shared", 256, 256, 64).stored // score_cost("dot", 256, 256, 64).stored
    64
    """
    pairs = L * S
    if kind == "dot":
        return ScoreCost(flops=2 * pairs * d, tanh=0, stored=pairs)
    if kind == "additive":
        return ScoreCost(flops=2 * pairs * (2 * d * d + d), tanh=pairs * d, stored=pairs * 2 * d)
    if kind == "additive_shared":
        return ScoreCost(
            flops=2 * (L + S) * d * d + 3 * pairs * d, tanh=pairs * d, stored=pairs * d
        )
    raise ValueError(f'kind: expected "dot", "additive" or "additive_shared", got {kind!r}.')


def default_scale(d_k: int) -> float:
    """1/√d_k, for d_k the size of one query (of one head, not of the model).

    Raises ValueError for d_k < 1. Source: Vaswani et al. 2017, section 3.2.1.
    """
    if d_k < 1:
        raise ValueError(f"d_k: expected the size of one query vector, at least 1, got {d_k}.")
    return 1.0 / math.sqrt(d_k)


def score_mean(d_k: int, rho: float = 0.0, mean: float = 0.0) -> float:
    """E[q·k] for components of variance 1 and the given mean; rho is corr(q_i, k_i).

    >>> score_mean(64, rho=0.5)
    32.0
    """
    return d_k * (rho + mean**2)


def score_variance(d_k: int, rho: float = 0.0, mean: float = 0.0) -> float:
    """Var[q·k] for components of variance 1 and the given mean; rho is corr(q_i, k_i).

    With rho = 0 it holds for every distribution of independent components; with rho ≠ 0 for
    Gaussian ones. Source: Vaswani et al. 2017, footnote 4, is the case rho = mean = 0.

    >>> score_variance(64), score_variance(64, rho=0.5), score_variance(64, mean=1.0)
    (64.0, 80.0, 192.0)
    """
    return d_k * (1.0 + rho**2 + 2.0 * mean**2 * (1.0 + rho))


INITIALISATIONS = ("xavier_per_head", "xavier_fused", "torch_mha", "linear_default", "gpt2", "t5")


def init_std(name: str, d_model: int, d_k: int) -> tuple[float, float]:
    """Standard deviations (of W_q, of W_k) that a known initialisation gives to one head.

    name is one of INITIALISATIONS: Xavier on each head's (d_model, d_k) matrix, Xavier on one fused
    (d_model, d_model) matrix, `torch.nn.MultiheadAttention` (Xavier on the stacked (3·d_model,
    d_model)), the default of `torch.nn.Linear`, GPT-2's fixed 0.02, and T5's, which puts the scale
    into W_q. Raises ValueError for another name.
    """
    stds = {
        "xavier_per_head": (math.sqrt(2 / (d_model + d_k)),) * 2,
        "xavier_fused": (math.sqrt(2 / (d_model + d_model)),) * 2,
        "torch_mha": (math.sqrt(2 / (d_model + 3 * d_model)),) * 2,
        "linear_default": (1 / math.sqrt(3 * d_model),) * 2,
        "gpt2": (0.02, 0.02),
        "t5": (1 / math.sqrt(d_model * d_k), 1 / math.sqrt(d_model)),
    }
    if name not in stds:
        raise ValueError(f"name: expected one of {', '.join(INITIALISATIONS)}, got {name!r}.")
    return stds[name]


def init_score_variance(name: str, d_model: int, d_k: int, scale: float | None = None) -> float:
    """Var of scale · q·k at initialisation, for tokens with independent components of variance 1.

    Var(q_i) = d_model · std², so the score has scale² · d_k · Var(q_i) · Var(k_i). T5 uses scale=1.

    >>> round(init_score_variance("torch_mha", 512, 64), 3)
    0.25
    >>> round(init_score_variance("t5", 512, 64, scale=1.0), 3)
    1.0
    """
    std_q, std_k = init_std(name, d_model, d_k)
    scale = default_scale(d_k) if scale is None else scale
    return scale**2 * d_k * (d_model * std_q**2) * (d_model * std_k**2)


def count_parameters(
    d_model: int,
    n_heads: int,
    d_k: int | None = None,
    d_v: int | None = None,
    n_kv_heads: int | None = None,
    bias: bool = False,
) -> int:
    """Parameters of one multi-head attention layer: W_q, W_k, W_v, W_o, and their biases if asked.

    d_k and d_v are per head and default to d_model / n_heads; n_kv_heads defaults to n_heads.
    Raises ValueError where d_model is not a multiple of n_heads and d_k or d_v is left out.

    >>> count_parameters(512, 8) == count_parameters(512, 1) == 4 * 512 * 512
    True
    """
    d_k, d_v = head_sizes(d_model, n_heads, d_k, d_v)
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    widths = n_heads * d_k, n_kv_heads * d_k, n_kv_heads * d_v  # of W_q, W_k, W_v
    biases = sum(widths) + d_model if bias else 0
    return d_model * sum(widths) + n_heads * d_v * d_model + biases


def head_sizes(
    d_model: int, n_heads: int, d_k: int | None = None, d_v: int | None = None
) -> tuple[int, int]:
    """(d_k, d_v) of one head, d_model / n_heads where left out."""
    if n_heads < 1 or ((d_k is None or d_v is None) and d_model % n_heads):
        raise ValueError(
            f"d_model must be a multiple of n_heads, got d_model {d_model} and n_heads {n_heads}."
            " Otherwise give d_k and d_v."
        )
    return d_model // n_heads if d_k is None else d_k, d_model // n_heads if d_v is None else d_v


def transformer_parameters(
    n_layers: int = 6,
    d_model: int = 512,
    d_ff: int = 2048,
    n_heads: int = 8,
    d_k: int | None = None,
    d_v: int | None = None,
    vocabulary: int = 37_000,
) -> int:
    """Parameters of the whole encoder-decoder of Vaswani et al. 2017 (the defaults are its base).

    One embedding serves source, target and output; feed-forward layers have biases, projections
    have none; every sub-layer has a LayerNorm. Compare with Table 3: differences match its column.

    >>> round(transformer_parameters() / 1e6, 1)
    63.0
    """
    attention = count_parameters(d_model, n_heads, d_k, d_v)
    feed_forward = 2 * d_model * d_ff + d_ff + d_model
    encoder_layer = attention + feed_forward + 2 * (2 * d_model)
    decoder_layer = 2 * attention + feed_forward + 3 * (2 * d_model)
    return vocabulary * d_model + n_layers * (encoder_layer + decoder_layer)


class AttentionCost(NamedTuple):
    """What one multi-head attention layer costs on one sequence, a multiply-add being two FLOPs."""

    projection_flops: int  # the four projections
    attention_flops: int  # Q Kᵀ and weights · V
    exponentials: int  # one for each score
    stored_scores: int


def attention_cost(
    L: int, d_model: int, n_heads: int, S: int | None = None, n_kv_heads: int | None = None
) -> AttentionCost:
    """FLOPs, exponentials and stored scores of multi-head attention of L queries over S keys.

    >>> attention_cost(1024, 512, 1).attention_flops == attention_cost(1024, 512, 8).attention_flops
    True
    >>> attention_cost(1024, 512, 1).exponentials, attention_cost(1024, 512, 8).exponentials
    (1048576, 8388608)
    """
    S = L if S is None else S
    d, _ = head_sizes(d_model, n_heads)
    kv_width = d * (n_heads if n_kv_heads is None else n_kv_heads)
    return AttentionCost(
        projection_flops=2 * d_model * (2 * L * d_model + 2 * S * kv_width),
        attention_flops=4 * L * S * d_model,
        exponentials=n_heads * L * S,
        stored_scores=n_heads * L * S,
    )
