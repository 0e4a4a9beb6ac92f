"""Scores: how well a query matches a key. Dot product, cosine, and additive, which came first.

>>> query = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
>>> key = torch.tensor([[1.0, 1.0], [3.0, 0.0], [-1.0, 0.5]])
>>> dot_product_scores(query, key)
tensor([[ 1.,  3., -1.],
        [ 2.,  0.,  1.]])
"""

from __future__ import annotations

import torch
from torch import Tensor

from sdpa_course.formulas import ScoreCost, score_cost
from sdpa_course.with_torch._checks import as_floats, check_query_key, check_rank, leading_shape

__all__ = [
    "ScoreCost",
    "additive_scores",
    "additive_scores_shared",
    "cosine_scores",
    "dot_product_scores",
    "score_cost",
    "unit_vectors",
]


def dot_product_scores(query: Tensor, key: Tensor) -> Tensor:
    """The dot product of every query with every key: Q Kᵀ.

    query (..., L, d_k), key (..., S, d_k) → scores (..., L, S), in the inputs' dtype; half
    precision is multiplied in float32 and cast back.

    Raises ValueError where d_k differs or the leading axes do not broadcast, TypeError for dtypes
    that are not numbers.
    Source: Luong et al. 2015, section 3.1 ("dot"); Vaswani et al. 2017, section 3.2.1.
    """
    (query, key), dtype = as_floats(query=query, key=key)
    check_query_key(query, key)
    scores = query @ key.transpose(-1, -2)  # (..., L, S)
    return scores.to(dtype)


def cosine_scores(query: Tensor, key: Tensor) -> Tensor:
    """The cosine of the angle of every query with every key: the dot product of unit vectors.

    query (..., L, d_k), key (..., S, d_k) → (..., L, S), from -1 to 1. A zero vector scores 0 with
    everything, and its gradient is 0.
    """
    (query, key), dtype = as_floats(query=query, key=key)
    return dot_product_scores(unit_vectors(query), unit_vectors(key)).to(dtype)


def unit_vectors(x: Tensor) -> Tensor:
    """Every vector (..., d) divided by its length; a zero vector stays zero.

    The largest entry is divided out first, so that squaring neither overflows nor underflows.
    """
    largest = x.detach().abs().amax(dim=-1, keepdim=True)  # (..., 1)
    x = x / torch.where(largest == 0, 1, largest)
    squared = (x * x).sum(dim=-1, keepdim=True)  # (..., 1)
    return x / torch.where(squared == 0, 1, squared).sqrt()


def additive_scores(query: Tensor, key: Tensor, W_q: Tensor, W_k: Tensor, v: Tensor) -> Tensor:
    """Additive attention as it is drawn: a small network is run on every pair (query, key).

    score(q, k) = v · tanh([q; k] [W_q; W_k]): query (..., L, d_q), key (..., S, d_k),
    W_q (d_q, d_a), W_k (d_k, d_a), v (d_a,) → scores (..., L, S), in the inputs' dtype.
    On the way it stores L·S·(d_q + d_k) numbers for the pairs and L·S·d_a after the first layer.

    Raises ValueError where the sizes do not fit.
    Source: Bahdanau et al. 2014, appendix A.1.2.
    """
    (query, key, W_q, W_k, v), dtype = as_floats(query=query, key=key, W_q=W_q, W_k=W_k, v=v)
    check_additive(query, key, W_q, W_k, v)
    lead, L, S = leading_shape(query=query, key=key), query.shape[-2], key.shape[-2]
    left = query[..., :, None, :].expand(*lead, L, S, -1)  # (..., L, S, d_q)
    right = key[..., None, :, :].expand(*lead, L, S, -1)  # (..., L, S, d_k)
    pairs = torch.cat([left, right], dim=-1)  # (..., L, S, d_q + d_k)
    hidden = torch.tanh(pairs @ torch.cat([W_q, W_k]))  # (..., L, S, d_a)
    return (hidden @ v).to(dtype)  # (..., L, S)


def additive_scores_shared(
    query: Tensor, key: Tensor, W_q: Tensor, W_k: Tensor, v: Tensor
) -> Tensor:
    """The same scores as `additive_scores`, but each token is projected once, not once per pair.

    score(q, k) = v · tanh(q W_q + k W_k). What is left for each pair is d_a additions, d_a tanh and
    d_a multiplications; L·S·d_a numbers are still stored. Arguments, result and errors as in
    `additive_scores`.
    """
    (query, key, W_q, W_k, v), dtype = as_floats(query=query, key=key, W_q=W_q, W_k=W_k, v=v)
    check_additive(query, key, W_q, W_k, v)
    left = (query @ W_q)[..., :, None, :]  # (..., L, 1, d_a)
    right = (key @ W_k)[..., None, :, :]  # (..., 1, S, d_a)
    hidden = torch.tanh(left + right)  # (..., L, S, d_a)
    return (hidden @ v).to(dtype)  # (..., L, S)


def check_additive(query: Tensor, key: Tensor, W_q: Tensor, W_k: Tensor, v: Tensor) -> None:
    check_rank(query=query, key=key)
    leading_shape(query=query, key=key)
    expected = (query.shape[-1], *v.shape), (key.shape[-1], *v.shape)
    if v.ndim != 1 or (tuple(W_q.shape), tuple(W_k.shape)) != expected:
        q, k, wq, wk, vv = (tuple(x.shape) for x in (query, key, W_q, W_k, v))
        raise ValueError(
            "expected W_q (d_q, d_a), W_k (d_k, d_a) and v (d_a,), got"
            f" query {q}, key {k}, W_q {wq}, W_k {wk}, v {vv}."
        )
