"""Scaled dot-product attention: softmax(Q Kᵀ / √d_k) V, in five steps.

>>> import numpy as np
>>> query, key, value = np.array([[0.0, 1.0]]), np.eye(2), np.array([[10.0], [20.0]])
>>> output, weights = scaled_dot_product_attention(query, key, value, return_weights=True)
>>> weights.round(3), output.round(2)
(array([[0.33, 0.67]]), array([[16.7]]))
"""

from __future__ import annotations

from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from sdpa_course.with_numpy._checks import (
    Array,
    BoolArray,
    as_floats,
    cast_back,
    check_attention,
    check_probability,
    check_rank,
    split_mask,
)
from sdpa_course.with_numpy.dot_product import dot_product_scores
from sdpa_course.with_numpy.masking import causal_mask, combine_masks
from sdpa_course.with_numpy.scaling import default_scale
from sdpa_course.with_numpy.softmax import softmax

Causal = bool | Literal["top-left", "bottom-right"]
Rng = np.random.Generator | int | None


@overload
def scaled_dot_product_attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, attn_mask: ArrayLike | None = None,
    dropout_p: float = 0.0, is_causal: Causal = False, *, scale: float | None = None,
    enable_gqa: bool = False, softcap: float | None = None,
    return_weights: Literal[False] = False, rng: Rng = None,
) -> Array: ...  # fmt: skip
@overload
def scaled_dot_product_attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, attn_mask: ArrayLike | None = None,
    dropout_p: float = 0.0, is_causal: Causal = False, *, scale: float | None = None,
    enable_gqa: bool = False, softcap: float | None = None,
    return_weights: Literal[True], rng: Rng = None,
) -> tuple[Array, Array]: ...  # fmt: skip


def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    attn_mask: ArrayLike | None = None,
    dropout_p: float = 0.0,
    is_causal: Causal = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
    return_weights: bool = False,
    rng: Rng = None,
) -> Array | tuple[Array, Array]:
    """softmax(Q Kᵀ · scale) V: every query gets a weighted average of the values.

    Shapes: query (..., L, d_k), key (..., S, d_k), value (..., S, d_v) → (..., L, d_v). Leading
    axes broadcast; heads come before length, (B, H, L, d). d_k ≠ d_v and L ≠ S are ordinary.

    - attn_mask: broadcasts to (..., L, S). Boolean: True = may attend. Float: added to the scores,
      and -inf counts as masked. Any other dtype is a TypeError.
    - is_causal: True where L = S; "top-left" or "bottom-right" where they may differ. With
      attn_mask as well, a key must be allowed by both (PyTorch documents that combination as an
      error).
    - scale: None means 1/√d_k.
    - softcap: c·tanh(scores/c), before the mask.
    - enable_gqa: fewer key/value heads (axis -3) than query heads; query head h reads key/value
      head h // (H / H_kv).
    - dropout_p: acts on the weights whenever it is above 0, kept weights are multiplied by 1/(1-p).
      rng is a NumPy Generator or a seed.
    - return_weights: returns (output, weights), with the weights (..., L, S) before dropout: their
      rows sum to 1.

    A query with nothing to attend to gives zeros. NaN or inf in a key or value that a query may not
    attend to never reaches its output. The result has the inputs' dtype; half precision is computed
    in float32, integers become float64. Inputs are never changed.

    Raises TypeError or ValueError that say what was expected, what came and what to do.
    Source: Vaswani et al. 2017, section 3.2.1, equation 1; grouped heads: Ainslie et al. 2023,
    section 2.2.
    """
    (query, key, value), dtype = as_floats(query=query, key=key, value=value)
    key, value = repeat_heads(query, key, value) if enable_gqa else (key, value)
    shape = check_attention(query, key, value, enable_gqa)  # of the scores
    visible, bias = split_masks(attn_mask, is_causal, shape)
    # 1 scores
    with np.errstate(invalid="ignore"):  # an inf in a masked key is nobody's business
        scores = dot_product_scores(query, key)  # (..., L, S)
    # 2 scale
    scores = scores * (default_scale(query.shape[-1]) if scale is None else scale)
    scores = scores if softcap is None else soft_cap(scores, softcap)
    # 3 mask
    scores = mask_scores(scores, visible, bias)
    # 4 softmax
    weights = softmax(scores)  # (..., L, S)
    # 5 mix
    output = mix(dropout(weights, dropout_p, rng), value, visible)  # (..., L, d_v)
    output, weights = cast_back(output, dtype), cast_back(weights, dtype)
    return (output, weights) if return_weights else output


def soft_cap(scores: Array, softcap: float) -> Array:
    """c·tanh(scores/c): small scores keep their value, none gets beyond ±c. Source: Gemma 2."""
    if not softcap > 0:
        raise ValueError(
            f"softcap: expected a number above 0, or None for no cap, got {softcap!r}."
        )
    capped: Array = softcap * np.tanh(scores / softcap)
    return capped


def mask_scores(scores: Array, visible: BoolArray | None, bias: Array | None = None) -> Array:
    """The scores plus the bias, and -inf wherever a query may not attend, NaN or not."""
    if bias is not None:
        scores = scores + np.where(bias == -np.inf, 0, bias)  # (..., L, S); inf - inf would warn
    if visible is not None:
        scores = np.where(visible, scores, -np.inf)  # (..., L, S)
    return scores


def dropout(weights: Array, dropout_p: float, rng: Rng = None) -> Array:
    """Each weight is set to 0 with probability p, the others are multiplied by 1/(1-p)."""
    check_probability(dropout_p)
    if dropout_p == 0.0:
        return weights
    if dropout_p == 1.0:
        return np.zeros_like(weights)
    kept = np.random.default_rng(rng).random(weights.shape) >= dropout_p  # (..., L, S)
    return np.where(kept, weights / (1.0 - dropout_p), 0)


def mix(weights: Array, value: Array, visible: BoolArray | None = None) -> Array:
    """weights (..., L, S) @ value (..., S, d_v) → (..., L, d_v), where a masked value has no say.

    A plain product would let it in when it is NaN or inf, since 0 · NaN = NaN. So those are taken
    out, and put back only into the rows that may attend to them.
    """
    if visible is None or np.isfinite(value).all():
        return weights @ value
    output = weights @ np.where(np.isfinite(value), value, 0)  # (..., L, d_v)
    visible = np.broadcast_to(visible, weights.shape)
    with np.errstate(invalid="ignore"):  # inf - inf = NaN is meant
        for bad in np.inf, -np.inf, np.nan:
            where = np.isnan(value) if np.isnan(bad) else value == bad  # (..., S, d_v)
            output = output + np.where(visible @ where, bad, 0)  # (..., L, d_v)
    return output


def repeat_heads(query: Array, key: Array, value: Array) -> tuple[Array, Array]:
    """Key and value with each head repeated, so that query head h meets head h // (H / H_kv).

    query (..., H, L, d_k), key (..., H_kv, S, d_k), value (..., H_kv, S, d_v) → (..., H, S, d_k),
    (..., H, S, d_v)
    """
    check_rank(query=query, key=key, value=value)
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if min(query.ndim, key.ndim, value.ndim) < 3:
        raise ValueError(f"enable_gqa: expected a head axis, (..., H, length, d), got {shapes}.")
    H, H_k, H_v = query.shape[-3], key.shape[-3], value.shape[-3]
    if not H_k or not H_v or H % H_k or H % H_v:
        raise ValueError(
            f"enable_gqa: the number of query heads must be a multiple of the key/value heads,"
            f" got {shapes} ({H} query heads, {H_k} key heads, {H_v} value heads)."
        )
    return np.repeat(key, H // H_k, axis=-3), np.repeat(value, H // H_v, axis=-3)


def split_masks(
    attn_mask: ArrayLike | None, is_causal: Causal, shape: tuple[int, ...]
) -> tuple[BoolArray | None, Array | None]:
    """Both masks as (visible, bias): where a query may attend, and what is added to the scores."""
    visible, bias = split_mask(attn_mask, shape)
    if isinstance(is_causal, bool | np.bool_) and not is_causal:
        return visible, bias
    L, S = shape[-2:]
    causal = causal_mask(L, S, causal_alignment(is_causal, L, S))  # (L, S)
    return combine_masks(causal, visible), bias


def causal_alignment(is_causal: Causal, L: int, S: int) -> str | None:
    """What `causal_mask` calls align; True is enough only where L = S."""
    if isinstance(is_causal, str) and is_causal in ("top-left", "bottom-right"):
        return is_causal
    if not isinstance(is_causal, bool | np.bool_):
        raise ValueError(
            f'is_causal: expected False, True, "top-left" or "bottom-right", got {is_causal!r}.'
        )
    if L != S:
        raise ValueError(
            f"is_causal=True is clear only where L = S, got {L} queries and {S} keys."
            ' Say is_causal="top-left" (query i sits at position i, as PyTorch does it)'
            ' or is_causal="bottom-right" (the last query sits at the last key, as with a cache).'
        )
    return None
