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
