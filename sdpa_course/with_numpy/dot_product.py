"""Scores: how well a query matches a key. Dot product, cosine, and additive, which came first.

>>> import numpy as np
>>> query = np.array([[1.0, 0.0], [0.0, 2.0]])
>>> key = np.array([[1.0, 1.0], [3.0, 0.0], [-1.0, 0.5]])
>>> dot_product_scores(query, key)
array([[ 1.,  3., -1.],
       [ 2.,  0.,  1.]])
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sdpa_course.formulas import ScoreCost, score_cost
from sdpa_course.with_numpy._checks import (
    Array,
    as_floats,
    cast_back,
    check_query_key,
    check_rank,
    leading_shape,
)

__all__ = [
    "ScoreCost",
    "additive_scores",
    "additive_scores_shared",
    "cosine_scores",
    "dot_product_scores",
    "score_cost",
    "unit_vectors",
]


def dot_product_scores(query: ArrayLike, key: ArrayLike) -> Array:
    """The dot product of every query with every key: Q Kᵀ.

    query (..., L, d_k), key (..., S, d_k) → scores (..., L, S), in the inputs' dtype; half
    precision is multiplied in float32 and cast back.

    Raises ValueError where d_k differs or the leading axes do not broadcast, TypeError for dtypes
    that are not numbers.
    Source: Luong et al. 2015, section 3.1 ("dot"); Vaswani et al. 2017, section 3.2.1.
    """
    (query, key), dtype = as_floats(query=query, key=key)
    check_query_key(query, key)
    scores = query @ key.swapaxes(-1, -2)  # (..., L, S)
    return cast_back(scores, dtype)


def cosine_scores(query: ArrayLike, key: ArrayLike) -> Array:
    """The cosine of the angle of every query with every key: the dot product of unit vectors.

    query (..., L, d_k), key (..., S, d_k) → (..., L, S), from -1 to 1. A zero vector scores 0 with
    everything.

    >>> cosine_scores([[1.0, 0.0]], [[5.0, 0.0], [0.0, 0.1], [-2.0, 0.0]])
    array([[ 1.,  0., -1.]])
    """
    (query, key), dtype = as_floats(query=query, key=key)
    return cast_back(dot_product_scores(unit_vectors(query), unit_vectors(key)), dtype)


def unit_vectors(x: Array) -> Array:
    """Every vector (..., d) divided by its length; a zero vector stays zero.

    The largest entry is divided out first, so that squaring neither overflows nor underflows.
    """
    largest = np.abs(x).max(axis=-1, keepdims=True, initial=0.0)  # (..., 1)
    x = x / np.where(largest == 0, 1, largest)
    length = np.sqrt((x * x).sum(axis=-1, keepdims=True))  # (..., 1)
    return x / np.where(length == 0, 1, length)


def additive_scores(
    query: ArrayLike, key: ArrayLike, W_q: ArrayLike, W_k: ArrayLike, v: ArrayLike
) -> Array:
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
    pairs = np.empty((*lead, L, S, query.shape[-1] + key.shape[-1]), query.dtype)
    pairs[..., : query.shape[-1]] = query[..., :, None, :]  # (..., L, S, d_q)
    pairs[..., query.shape[-1] :] = key[..., None, :, :]  # (..., L, S, d_k)
    hidden = np.tanh(pairs @ np.concatenate([W_q, W_k]))  # (..., L, S, d_a)
    return cast_back(hidden @ v, dtype)  # (..., L, S)


def additive_scores_shared(
    query: ArrayLike, key: ArrayLike, W_q: ArrayLike, W_k: ArrayLike, v: ArrayLike
) -> Array:
    """The same scores as `additive_scores`, but each token is projected once, not once per pair.

    score(q, k) = v · tanh(q W_q + k W_k). What is left for each pair is d_a additions, d_a tanh and
    d_a multiplications; L·S·d_a numbers are still stored. Arguments, result and errors as in
    `additive_scores`.
    """
    (query, key, W_q, W_k, v), dtype = as_floats(query=query, key=key, W_q=W_q, W_k=W_k, v=v)
    check_additive(query, key, W_q, W_k, v)
    left = (query @ W_q)[..., :, None, :]  # (..., L, 1, d_a)
    right = (key @ W_k)[..., None, :, :]  # (..., 1, S, d_a)
    hidden = np.tanh(left + right)  # (..., L, S, d_a)
    return cast_back(hidden @ v, dtype)  # (..., L, S)


def check_additive(query: Array, key: Array, W_q: Array, W_k: Array, v: Array) -> None:
    check_rank(query=query, key=key)
    leading_shape(query=query, key=key)
    expected = (query.shape[-1], *v.shape), (key.shape[-1], *v.shape)
    if v.ndim != 1 or (W_q.shape, W_k.shape) != expected:
        raise ValueError(
            "expected W_q (d_q, d_a), W_k (d_k, d_a) and v (d_a,), got"
            f" query {query.shape}, key {key.shape}, W_q {W_q.shape}, W_k {W_k.shape}, v {v.shape}."
        )
