"""Scaling: why scores are divided by √d_k, and what real initialisations make of the argument.

>>> default_scale(64)
0.125
"""

from __future__ import annotations

import torch
from torch import Tensor

from sdpa_course.formulas import (
    INITIALISATIONS,
    default_scale,
    init_score_variance,
    init_std,
    score_mean,
    score_variance,
)
from sdpa_course.with_torch._checks import as_floats
from sdpa_course.with_torch._random import Rng, generator
from sdpa_course.with_torch.dot_product import dot_product_scores

__all__ = [
    "INITIALISATIONS",
    "default_scale",
    "init_projections",
    "init_score_variance",
    "init_std",
    "scaled_scores",
    "score_mean",
    "score_variance",
]


def scaled_scores(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """Q Kᵀ · scale; `scale=None` means 1/√d_k.

    query (..., L, d_k), key (..., S, d_k) → (..., L, S), in the inputs' dtype. Half precision is
    multiplied and scaled in float32, so a score that only the scale brings back into range is not
    lost on the way. Errors as in `dot_product_scores`.

    >>> scaled_scores(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[4.0, 3.0, 2.0, 1.0]]))
    tensor([[10.]])
    """
    (query, key), dtype = as_floats(query=query, key=key)
    scores = dot_product_scores(query, key)  # (..., L, S)
    scale = default_scale(query.shape[-1]) if scale is None else scale
    return (scores * scale).to(dtype)


def init_projections(name: str, d_model: int, d_k: int, rng: Rng = None) -> tuple[Tensor, Tensor]:
    """Gaussian (W_q, W_k), each (d_model, d_k), with the standard deviations of `init_std`."""
    rng = generator(rng, torch.device("cpu"))
    std_q, std_k = init_std(name, d_model, d_k)
    W_q = std_q * torch.randn(d_model, d_k, generator=rng)
    return W_q, std_k * torch.randn(d_model, d_k, generator=rng)
