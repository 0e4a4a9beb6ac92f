"""Softmax: from scores to weights that sum to one, its logarithm, its derivative, and how it fails.

>>> softmax([0.0, 0.0, 0.0, -float("inf")]).round(3)
array([0.333, 0.333, 0.333, 0.   ])
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sdpa_course.with_numpy._checks import Array, as_floats, cast_back


def softmax(x: ArrayLike, axis: int = -1) -> Array:
    """exp(x) / Σ exp(x) along an axis, safe for scores of any size.

    x (..., n) → (..., n), in its dtype; half precision is computed in float32 and cast back.
    The maximum is subtracted first, which changes nothing but the overflow. Where every score is
    -inf there is nothing to attend to, and the weights are zeros. NaN and +inf give NaN.
    """
    (x,), dtype = as_floats(x=x)
    with np.errstate(invalid="ignore"):  # inf - inf, where somebody put +inf
        exps = np.exp(x - row_max(x, axis))
        total = exps.sum(axis=axis, keepdims=True)
        weights = exps / np.where(total == 0, 1, total)
    return cast_back(weights, dtype)


def row_max(x: Array, axis: int) -> Array:
    """The maximum along an axis, kept as an axis of size 1; 0 where there is nothing but -inf."""
    highest = x.max(axis=axis, keepdims=True, initial=-np.inf)
    return np.where(highest == -np.inf, 0, highest)


def softmax_naive(x: ArrayLike, axis: int = -1) -> Array:
    """The formula as it stands, exp(x) / Σ exp(x), in x's own dtype: to see it fail.

    It overflows above ln(largest number): 11.09 in float16, 88.72 in float32, 709.78 in float64.
    """
    x = np.asarray(x)
    exps = np.exp(x)
    weights: Array = exps / exps.sum(axis=axis, keepdims=True)
    return weights


def softmax_with_temperature(x: ArrayLike, temperature: float, axis: int = -1) -> Array:
    """softmax(x / temperature): towards the maximum as it falls to 0, towards uniform as it grows.

    Raises ValueError unless temperature > 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature: expected a number above 0, got {temperature!r}.")
    (x,), dtype = as_floats(x=x)
    return cast_back(softmax(x / temperature, axis), dtype)


def logsumexp(x: ArrayLike, axis: int = -1) -> Array:
    """ln Σ exp(x) along an axis, which is removed: x (..., n) → (...); -inf where all x are -inf.

    >>> float(logsumexp([1000.0, 1000.0]).round(4))
    1000.6931
    """
    (x,), dtype = as_floats(x=x)
    highest = row_max(x, axis)
    with np.errstate(divide="ignore", invalid="ignore"):  # ln 0 = -inf is the answer
        result = highest + np.log(np.exp(x - highest).sum(axis=axis, keepdims=True))
    return cast_back(result.squeeze(axis), dtype)


def log_softmax(x: ArrayLike, axis: int = -1) -> Array:
    """ln softmax(x) = x - logsumexp(x), exact even where softmax itself would round to 0.

    x (..., n) → (..., n). Where every score is -inf, so is every result.
    """
    (x,), dtype = as_floats(x=x)
    total = np.expand_dims(logsumexp(x, axis), axis)
    return cast_back(x - np.where(total == -np.inf, 0, total), dtype)


def softmax_jacobian(p: ArrayLike) -> Array:
    """∂p_i/∂x_j = p_i (δ_ij - p_j): diag(p) - p pᵀ. Weights p (..., n) → (..., n, n).

    >>> softmax_jacobian([0.5, 0.5])
    array([[ 0.25, -0.25],
           [-0.25,  0.25]])
    """
    (p,), dtype = as_floats(p=p)
    diagonal = p[..., :, None] * np.eye(p.shape[-1], dtype=p.dtype)  # (..., n, n)
    outer = p[..., :, None] * p[..., None, :]  # (..., n, n)
    return cast_back(diagonal - outer, dtype)


def softmax_jvp(p: ArrayLike, tangent: ArrayLike) -> Array:
    """How the weights p move when the scores move by the tangent: p ∘ (t - Σ p t).

    p (..., n), tangent (..., n) → (..., n). Source: the product of `softmax_jacobian` with a
    vector.
    """
    (p, t), dtype = as_floats(p=p, tangent=tangent)
    return cast_back(p * (t - (p * t).sum(axis=-1, keepdims=True)), dtype)


def softmax_vjp(p: ArrayLike, d_p: ArrayLike) -> Array:
    """The gradient at the scores, from the gradient d_p at the weights p: p ∘ (dp - Σ p dp).

    The same product as `softmax_jvp`, because the Jacobian is symmetric. Each row of the result
    sums to 0.
    """
    return softmax_jvp(p, d_p)


def softmax_jacobian_norm(p: ArrayLike) -> Array:
    """‖diag(p) - p pᵀ‖ (Frobenius) without the matrix: √(Σp² - 2Σp³ + (Σp²)²).

    Weights p (..., n) → (...).
    """
    (p,), dtype = as_floats(p=p)
    squares, cubes = (p**2).sum(axis=-1), (p**3).sum(axis=-1)  # (...)
    return cast_back(np.sqrt(np.maximum(squares - 2 * cubes + squares**2, 0)), dtype)


def entropy(p: ArrayLike, axis: int = -1) -> Array:
    """-Σ p ln p in nats, with 0 ln 0 = 0: 0 for one-hot weights, ln n for uniform ones.

    Weights p (..., n) → (...).

    >>> float(entropy([0.25, 0.25, 0.25, 0.25]).round(4)), float(entropy([0.0, 1.0]))
    (1.3863, 0.0)
    """
    (p,), dtype = as_floats(p=p)
    return cast_back((p * -np.log(np.where(p == 0, 1, p))).sum(axis=axis), dtype)
