"""The backward pass of attention by hand: from stored weights, and from log-sum-exp alone.

The five steps are walked backwards. For each step: what came out has a gradient, what went in gets
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from sdpa_course.with_numpy._checks import Array, as_floats, cast_back, check_attention
from sdpa_course.with_numpy.attention import (
    Causal,
    mask_scores,
    mix,
    repeat_heads,
    soft_cap,
    split_masks,
)
from sdpa_course.with_numpy.scaling import default_scale, scaled_scores
from sdpa_course.with_numpy.softmax import logsumexp, softmax_vjp


def attention_backward(
    d_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    weights: ArrayLike,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Array, Array, Array]:
    """(d_query, d_key, d_value) from the gradient of the output and the stored weights.

    d_output (..., L, d_v), query (..., L, d_k), key (..., S, d_k), value (..., S, d_v), weights
    (..., L, S), as `scaled_dot_product_attention(..., return_weights=True)` gave them, without
    dropout or softcap. The gradients have the shapes and the dtype of query, key and value. The
    mask is not needed: where it hides a key the weight is 0, and so is the gradient.

    Raises ValueError where the shapes do not fit. Source: Dao et al. 2022, appendix B.2.
    """
    dtype = as_floats(query=query, key=key, value=value)[1]
    (d_output, query, key, value, weights), _ = as_floats(
        d_output=d_output, query=query, key=key, value=value, weights=weights
    )
    shapes = query.shape, key.shape, value.shape
    key, value = repeat_heads(query, key, value) if enable_gqa else (key, value)
    check_gradient(d_output, query, key, value, weights=weights)
    scale = default_scale(query.shape[-1]) if scale is None else scale
    seen = weights != 0
    # 5 mix
    d_value = weights.swapaxes(-1, -2) @ d_output  # (..., S, d_v)
    with np.errstate(invalid="ignore"):  # an inf in a masked value is nobody's business
        d_weights = np.where(seen, d_output @ value.swapaxes(-1, -2), 0)  # (..., L, S)
    # 4 softmax; 3 mask: weights of 0 let nothing through
    d_scores = softmax_vjp(weights, d_weights)  # (..., L, S)
    # 2 scale
    d_scores = d_scores * scale
    # 1 scores
    d_query = mix(d_scores, key, seen)  # (..., L, d_k)
    d_key = mix(d_scores.swapaxes(-1, -2), query, seen.swapaxes(-1, -2))  # (..., S, d_k)
    return like_inputs((d_query, d_key, d_value), shapes, dtype)


def attention_with_lse(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    attn_mask: ArrayLike | None = None,
    is_causal: Causal = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
) -> tuple[Array, Array]:
    """(output, lse): attention, and the log-sum-exp of each row of scores, all that has to be kept.

    Arguments, output and errors as in `scaled_dot_product_attention`; lse (..., L) is in at least
    float32, and -inf for a query with nothing to attend to. Source: Dao 2023, section 3.1.
    """
    (query, key, value), dtype = as_floats(query=query, key=key, value=value)
    key, value = repeat_heads(query, key, value) if enable_gqa else (key, value)
    shape = check_attention(query, key, value, enable_gqa)
    visible, bias = split_masks(attn_mask, is_causal, shape)
    scores = mask_scores(capped_scores(query, key, scale, softcap), visible, bias)  # (..., L, S)
    lse = logsumexp(scores)  # (..., L)
    output = mix(weights_from_lse(scores, lse), value, visible)  # (..., L, d_v)
    return cast_back(output, dtype), lse


def attention_backward_from_lse(
    d_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    output: ArrayLike,
    lse: ArrayLike,
    attn_mask: ArrayLike | None = None,
    is_causal: Causal = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
) -> tuple[Array, Array, Array]:
    """(d_query, d_key, d_value) without stored weights: they are computed again from lse.

    output (..., L, d_v) and lse (..., L) are those of `attention_with_lse` with the same arguments.
    The sum that the softmax needs, Σ_j P_ij dP_ij, is taken as Σ dO_i ∘ O_i, which is the same and
    shorter. Gradients, shapes and errors as in `attention_backward`. Source: Dao 2023, section 3.1.
    """
    dtype = as_floats(query=query, key=key, value=value)[1]
    (d_output, query, key, value, output, lse), _ = as_floats(
        d_output=d_output, query=query, key=key, value=value, output=output, lse=lse
    )
    shapes = query.shape, key.shape, value.shape
    key, value = repeat_heads(query, key, value) if enable_gqa else (key, value)
    check_gradient(d_output, query, key, value, output=output, lse=lse[..., None])
    shape = check_attention(query, key, value, enable_gqa)
    visible, bias = split_masks(attn_mask, is_causal, shape)
    scores = capped_scores(query, key, scale, softcap)  # (..., L, S)
    weights = weights_from_lse(mask_scores(scores, visible, bias), lse)  # (..., L, S)
    scale = default_scale(query.shape[-1]) if scale is None else scale
    seen = weights != 0
    # 5 mix
    d_value = weights.swapaxes(-1, -2) @ d_output  # (..., S, d_v)
    with np.errstate(invalid="ignore"):  # an inf in a masked value is nobody's business
        d_weights = np.where(seen, d_output @ value.swapaxes(-1, -2), 0)  # (..., L, S)
    # 4 softmax; 3 mask: weights of 0 let nothing through
    row_sum = (d_output * output).sum(axis=-1, keepdims=True)  # (..., L, 1)
    d_scores = weights * (d_weights - row_sum)  # (..., L, S)
    # 2 scale
    if softcap is not None:  # d tanh = 1 - tanh²
        d_scores = d_scores * (1 - np.where(seen, scores / softcap, 0) ** 2)
    d_scores = d_scores * scale
    # 1 scores
    d_query = mix(d_scores, key, seen)  # (..., L, d_k)
    d_key = mix(d_scores.swapaxes(-1, -2), query, seen.swapaxes(-1, -2))  # (..., S, d_k)
    return like_inputs((d_query, d_key, d_value), shapes, dtype)


def capped_scores(query: Array, key: Array, scale: float | None, softcap: float | None) -> Array:
    """Steps 1 and 2 again: scaled scores (..., L, S), capped if asked."""
    with np.errstate(invalid="ignore"):  # an inf in a masked key is nobody's business
        scores = scaled_scores(query, key, scale)
    return scores if softcap is None else soft_cap(scores, softcap)


def weights_from_lse(scores: Array, lse: Array) -> Array:
    """exp(scores - lse): the softmax of scores (..., L, S) with log-sum-exp lse (..., L).

    A row with nothing to attend to has lse = -inf and gets zeros.
    """
    lse = np.where(lse == -np.inf, 0, lse)[..., None]  # (..., L, 1)
    return np.exp(scores - lse)


def check_gradient(
    d_output: Array, query: Array, key: Array, value: Array, **of_forward: Array
) -> None:
    """d_output has the shape of the output, and what the forward pass left fits the scores."""
    *lead, L, S = check_attention(query, key, value, enable_gqa=True)
    if d_output.shape != (*lead, L, value.shape[-1]):
        raise ValueError(
            f"d_output: expected the shape of the output, {(*lead, L, value.shape[-1])},"
            f" got {d_output.shape}."
        )
    last = {"weights": S, "lse": 1, "output": value.shape[-1]}
    for name, x in of_forward.items():
        expected = (*lead, L, last[name])
        if x.shape[-2:] != expected[-2:] or not broadcasts(x.shape, expected):
            raise ValueError(
                f"{name}: expected what the forward pass gave, {expected}, got {x.shape}."
            )


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of the shape can be broadcast to the target."""
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def like_inputs(
    gradients: Sequence[Array], shapes: Sequence[tuple[int, ...]], dtype: DTypeLike
) -> tuple[Array, Array, Array]:
    """Gradients in the shapes and the dtype of the inputs: what was repeated is summed."""
    d_query, d_key, d_value = (
        cast_back(sum_to(gradient, shape), dtype)
        for gradient, shape in zip(gradients, shapes, strict=True)
    )
    return d_query, d_key, d_value


def sum_to(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Sums a gradient over the axes along which its input, of this shape, was repeated."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    if len(shape) > 2 and 1 < shape[-3] < gradient.shape[-3]:  # grouped heads: H_kv of H
        *lead, H, S, d = gradient.shape
        gradient = gradient.reshape(*lead, shape[-3], H // shape[-3], S, d).sum(axis=-3)
    repeated = tuple(n for n, size in enumerate(shape) if size < gradient.shape[n])
    summed: Array = gradient.sum(axis=repeated, keepdims=True)
    return summed


def finite_differences(loss: Callable[[Array], Any], x: ArrayLike, step: float = 1e-6) -> Array:
    """The gradient of a scalar loss at x, measured: (loss(x + step) - loss(x - step)) / (2·step).

    One entry of x at a time, in float64, on copies of x. The error is about step² from the formula
    and 1e-16/step from rounding.

    >>> finite_differences(lambda x: (x**2).sum(), [1.0, -3.0]).round(6)
    array([ 2., -6.])
    """
    x = np.array(x, dtype=np.float64)
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        above, below = x.copy(), x.copy()
        above[index] += step
        below[index] -= step
        gradient[index] = (float(loss(above)) - float(loss(below))) / (2 * step)
    return gradient
