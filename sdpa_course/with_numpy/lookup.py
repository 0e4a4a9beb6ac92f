"""Attention as a soft dictionary: a query looks keys up and gets a blend of their values.

>>> import numpy as np
>>> key, value = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[10.0], [20.0]])
>>> hard_lookup([[0.9, 0.1]], key, value)
array([[10.]])
>>> soft_lookup([[0.9, 0.1]], key, value).round(1)
array([[13.1]])
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sdpa_course.with_numpy._checks import Array, as_floats, cast_back, check_attention
from sdpa_course.with_numpy.dot_product import dot_product_scores
from sdpa_course.with_numpy.softmax import softmax, softmax_with_temperature


def hard_lookup(query: ArrayLike, key: ArrayLike, value: ArrayLike) -> Array:
    """The value of the key with the largest dot product, as a dictionary would give it.

    query (..., L, d_k), key (..., S, d_k), value (..., S, d_v) → (..., L, d_v). Of equal keys the
    first one wins. Raises ValueError where the shapes do not fit or S = 0.
    """
    (query, key, value), dtype = as_floats(query=query, key=key, value=value)
    lead = check_attention(query, key, value)[:-2]
    if key.shape[-2] == 0:
        raise ValueError(f"key: expected at least one key to find, got {key.shape}.")
    best = dot_product_scores(query, key).argmax(axis=-1)[..., None]  # (..., L, 1)
    value = np.broadcast_to(value, (*lead, *value.shape[-2:]))
    best = np.broadcast_to(best, (*lead, *best.shape[-2:]))
    return cast_back(np.take_along_axis(value, best, axis=-2), dtype)  # (..., L, d_v)


def soft_lookup(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, temperature: float = 1.0
) -> Array:
    """softmax(Q Kᵀ / temperature) V: every key answers, the better it matches the louder.

    query (..., L, d_k), key (..., S, d_k), value (..., S, d_v) → (..., L, d_v). As the temperature
    falls to 0 it becomes `hard_lookup`; temperature √d_k is scaled dot-product attention.
    Raises ValueError where the shapes do not fit or unless temperature > 0.
    """
    (query, key, value), dtype = as_floats(query=query, key=key, value=value)
    check_attention(query, key, value)
    scores = dot_product_scores(query, key)  # (..., L, S)
    weights = softmax_with_temperature(scores, temperature)  # (..., L, S)
    return cast_back(weights @ value, dtype)  # (..., L, d_v)


def kernel_smoother(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, bandwidth: float = 1.0
) -> Array:
    """Nadaraya-Watson regression with a Gaussian kernel: an average of the values near a query.

    weight ∝ exp(-‖q - k‖² / (2·bandwidth²)), with query (..., L, d), key (..., S, d) and value
    (..., S, d_v) → (..., L, d_v). For keys of one length it equals `soft_lookup` at temperature
    bandwidth².
    Raises ValueError where the shapes do not fit or unless bandwidth > 0.
    Source: Nadaraya 1964; Watson 1964.
    """
    if not bandwidth > 0:
        raise ValueError(f"bandwidth: expected a number above 0, got {bandwidth!r}.")
    (query, key, value), dtype = as_floats(query=query, key=key, value=value)
    check_attention(query, key, value)
    gaps = query[..., :, None, :] - key[..., None, :, :]  # (..., L, S, d)
    scores = -(gaps**2).sum(axis=-1) / (2 * bandwidth**2)  # (..., L, S)
    return cast_back(softmax(scores) @ value, dtype)  # (..., L, d_v)
