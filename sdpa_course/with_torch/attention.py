"""Scaled dot-product attention: softmax(Q Kᵀ / √d_k) V, in five steps.

>>> query, key = torch.tensor([[0.0, 1.0]]), torch.eye(2)
>>> output, weights = scaled_dot_product_attention(query, key, 10 * key, return_weights=True)
>>> weights, output
(tensor([[0.3302, 0.6698]]), tensor([[3.3024, 6.6976]]))
"""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from sdpa_course.with_torch._checks import (
    as_floats,
    check_attention,
    check_probability,
    check_rank,
    split_mask,
)
from sdpa_course.with_torch._random import Rng, generator
from sdpa_course.with_torch.dot_product import dot_product_scores
from sdpa_course.with_torch.masking import causal_mask, combine_masks
from sdpa_course.with_torch.scaling import default_scale
from sdpa_course.with_torch.softmax import softmax

Causal = bool | Literal["top-left", "bottom-right"]


@overload
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: Causal = False, *, scale: float | None = None,
    enable_gqa: bool = False, softcap: float | None = None,
    return_weights: Literal[False] = False, rng: Rng = None,
) -> Tensor: ...  # fmt: skip
@overload
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: Causal = False, *, scale: float | None = None,
    enable_gqa: bool = False, softcap: float | None = None,
    return_weights: Literal[True], rng: Rng = None,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: Causal = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
    return_weights: bool = False,
    rng: Rng = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(Q Kᵀ · scale) V: every query gets a weighted average of the values.

    Shapes: query (..., L, d_k), key (..., S, d_k), value (..., S, d_v) → (..., L, d_v). Leading
    axes broadcast; heads come before length, (B, H, L, d). d_k ≠ d_v and L ≠ S are ordinary.
    Any device; differentiable in query, key, value and a float mask.

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
      rng is a `torch.Generator` on the query's device or a seed.
    - return_weights: returns (output, weights), with the weights (..., L, S) before dropout: their
      rows sum to 1.

    A query with nothing to attend to gives zeros. NaN or inf in a key or value that a query may not
    attend to never reaches its output or its gradient. The result has the inputs' dtype; half
    precision is computed in float32, integers take PyTorch's default dtype. Inputs are never
    changed.

    Raises TypeError or ValueError that say what was expected, what came and what to do.
    Source: Vaswani et al. 2017, section 3.2.1, equation 1; grouped heads: Ainslie et al. 2023,
    section 2.2.
    """
    (query, key, value), dtype = as_floats(query=query, key=key, value=value)
    key, value = repeat_heads(query, key, value) if enable_gqa else (key, value)
    shape = check_attention(query, key, value, enable_gqa)  # of the scores
    visible, bias = split_masks(attn_mask, is_causal, shape, query.device)
    # 1 scores
    scores = match(query, key, visible)  # (..., L, S)
    # 2 scale
    scores = scores * (default_scale(query.shape[-1]) if scale is None else scale)
    scores = scores if softcap is None else soft_cap(scores, softcap)
    # 3 mask
    scores = mask_scores(scores, visible, bias)
    # 4 softmax
    weights = softmax(scores).to(value.dtype)  # (..., L, S)
    # 5 mix
    output = mix(dropout(weights, dropout_p, rng), value, visible)  # (..., L, d_v)
    output, weights = output.to(dtype), weights.to(dtype)
    return (output, weights) if return_weights else output


def match(query: Tensor, key: Tensor, visible: Tensor | None = None) -> Tensor:
    """Q Kᵀ, whose gradient is not NaN for the sake of a vector that the mask hides.

    The backward product multiplies keys by gradients that are 0 where the mask hides them, and
    0 · NaN = NaN. So where a mask meets NaN or inf, their scores are kept as constants.
    """
    if visible is None or (torch.isfinite(query).all() and torch.isfinite(key).all()):
        return dot_product_scores(query, key)
    clean = torch.isfinite(query).all(-1)[..., :, None] & torch.isfinite(key).all(-1)[..., None, :]
    finite_query, finite_key = (torch.where(torch.isfinite(x), x, 0) for x in (query, key))
    constants = dot_product_scores(query.detach(), key.detach())  # (..., L, S)
    return torch.where(clean, dot_product_scores(finite_query, finite_key), constants)


def soft_cap(scores: Tensor, softcap: float) -> Tensor:
    """c·tanh(scores/c): small scores keep their value, none gets beyond ±c. Source: Gemma 2."""
    if not softcap > 0:
        raise ValueError(
            f"softcap: expected a number above 0, or None for no cap, got {softcap!r}."
        )
    return softcap * torch.tanh(scores / softcap)


def mask_scores(scores: Tensor, visible: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """The scores plus the bias, and -inf wherever a query may not attend, NaN or not."""
    if bias is not None:
        scores = scores + bias  # (..., L, S)
    if visible is not None:
        scores = torch.where(visible, scores, -torch.inf)  # (..., L, S)
    return scores


def dropout(weights: Tensor, dropout_p: float, rng: Rng = None) -> Tensor:
    """Each weight is set to 0 with probability p, the others are multiplied by 1/(1-p)."""
    check_probability(dropout_p)
    if dropout_p == 0.0:
        return weights
    if dropout_p == 1.0:
        return torch.zeros_like(weights)
    rng = generator(rng, weights.device)
    noise = torch.rand(weights.shape, generator=rng, device=weights.device)  # (..., L, S)
    return torch.where(noise >= dropout_p, weights / (1.0 - dropout_p), 0)


def mix(weights: Tensor, value: Tensor, visible: Tensor | None = None) -> Tensor:
    """weights (..., L, S) @ value (..., S, d_v) → (..., L, d_v), where a masked value has no say.

    A plain product would let it in when it is NaN or inf, since 0 · NaN = NaN. So those are taken
    out, and put back only into the rows that may attend to them.
    """
    if visible is None or torch.isfinite(value).all():
        return weights @ value
    output = weights @ torch.where(torch.isfinite(value), value, 0)  # (..., L, d_v)
    attends = visible.expand(weights.shape).to(weights.dtype)
    for bad in torch.inf, -torch.inf, torch.nan:
        where = value.isnan() if bad != bad else value == bad  # (..., S, d_v)
        output = output + torch.where(attends @ where.to(weights.dtype) > 0, bad, 0.0)
    return output


def repeat_heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Key and value with each head repeated, so that query head h meets head h // (H / H_kv).

    query (..., H, L, d_k), key (..., H_kv, S, d_k), value (..., H_kv, S, d_v)
    → (..., H, S, d_k), (..., H, S, d_v)
    """
    check_rank(query=query, key=key, value=value)
    shapes = ", ".join(
        f"{name} {tuple(x.shape)}" for name, x in (("query", query), ("key", key), ("value", value))
    )
    if min(query.ndim, key.ndim, value.ndim) < 3:
        raise ValueError(f"enable_gqa: expected a head axis, (..., H, length, d), got {shapes}.")
    H, H_k, H_v = query.shape[-3], key.shape[-3], value.shape[-3]
    if not H_k or not H_v or H % H_k or H % H_v:
        raise ValueError(
            f"enable_gqa: the number of query heads must be a multiple of the key/value heads,"
            f" got {shapes} ({H} query heads, {H_k} key heads, {H_v} value heads)."
        )
    return key.repeat_interleave(H // H_k, dim=-3), value.repeat_interleave(H // H_v, dim=-3)


def split_masks(
    attn_mask: Tensor | None, is_causal: Causal, shape: tuple[int, ...], device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Both masks as (visible, bias): where a query may attend, and what is added to the scores."""
    visible, bias = split_mask(attn_mask, shape, device)
    if is_causal is False:
        return visible, bias
    L, S = shape[-2:]
    causal = causal_mask(L, S, causal_alignment(is_causal, L, S), device=device)  # (L, S)
    return combine_masks(causal, visible), bias


def causal_alignment(is_causal: Causal, L: int, S: int) -> str | None:
    """What `causal_mask` calls align; True is enough only where L = S."""
    if isinstance(is_causal, str) and is_causal in ("top-left", "bottom-right"):
        return is_causal
    if not isinstance(is_causal, bool):
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
