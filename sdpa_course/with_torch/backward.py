"""The backward pass of attention by hand: from stored weights, and from log-sum-exp alone.

The five steps are walked backwards. For each step: what came out has a gradient, what went in gets
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sdpa_course.with_torch._checks import as_floats, check_attention
from sdpa_course.with_torch.attention import (
    Causal,
    mask_scores,
    mix,
    repeat_heads,
    soft_cap,
    split_masks,
)
from sdpa_course.with_torch.scaling import default_scale, scaled_scores
from sdpa_course.with_torch.softmax import logsumexp, softmax_vjp


def attention_backward(
    d_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Tensor,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
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
    shapes = tuple(query.shape), tuple(key.shape), tuple(value.shape)
    key, value = repeat_heads(query, key, value) if enable_gqa else (key, value)
    check_gradient(d_output, query, key, value, weights=weights)
    scale = default_scale(query.shape[-1]) if scale is None else scale
    seen = weights != 0
    # 5 mix
    d_value = weights.transpose(-1, -2) @ d_output  # (..., S, d_v)
    d_weights = torch.where(seen, d_output @ value.transpose(-1, -2), 0)  # (..., L, S)
    # 4 softmax; 3 mask: weights of 0 let nothing through
    d_scores = softmax_vjp(weights, d_weights)  # (..., L, S)
    # 2 scale
    d_scores = d_scores * scale
    # 1 scores
    d_query = mix(d_scores, key, seen)  # (..., L, d_k)
    d_key = mix(d_scores.transpose(-1, -2), query, seen.transpose(-1, -2))  # (..., S, d_k)
    return like_inputs((d_query, d_key, d_value), shapes, dtype)


def attention_with_lse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: Causal = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(output, lse): attention, and the log-sum-exp of each row of scores, all that has to be kept.

    Arguments, output and errors as in `scaled_dot_product_attention`; lse (..., L) is in at least
    float32, and -inf for a query with nothing to attend to. Source: Dao 2023, section 3.1.
    """
    (query, key, value), dtype = as_floats(query=query, key=key, value=value)
    key, value = repeat_heads(query, key, value) if enable_gqa else (key, value)
    shape = check_attention(query, key, value, enable_gqa)
    visible, bias = split_masks(attn_mask, is_causal, shape, query.device)
    scores = mask_scores(capped_scores(query, key, scale, softcap), visible, bias)  # (..., L, S)
    lse = logsumexp(scores)  # (..., L)
    output = mix(weights_from_lse(scores, lse), value, visible)  # (..., L, d_v)
    return output.to(dtype), lse


def attention_backward_from_lse(
    d_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: Causal = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(d_query, d_key, d_value) without stored weights: they are computed again from lse.

    output (..., L, d_v) and lse (..., L) are those of `attention_with_lse` with the same arguments.
    The sum that the softmax needs, Σ_j P_ij dP_ij, is taken as Σ dO_i ∘ O_i, which is the same and
    shorter. Gradients, shapes and errors as in `attention_backward`. Source: Dao 2023, section 3.1.
    """
    dtype = as_floats(query=query, key=key, value=value)[1]
    (d_output, query, key, value, output, lse), _ = as_floats(
        d_output=d_output, query=query, key=key, value=value, output=output, lse=lse
    )
    shapes = tuple(query.shape), tuple(key.shape), tuple(value.shape)
    key, value = repeat_heads(query, key, value) if enable_gqa else (key, value)
    check_gradient(d_output, query, key, value, output=output, lse=lse[..., None])
    shape = check_attention(query, key, value, enable_gqa)
    visible, bias = split_masks(attn_mask, is_causal, shape, query.device)
    scores = capped_scores(query, key, scale, softcap)  # (..., L, S)
    weights = weights_from_lse(mask_scores(scores, visible, bias), lse)  # (..., L, S)
    scale = default_scale(query.shape[-1]) if scale is None else scale
    seen = weights != 0
    # 5 mix
    d_value = weights.transpose(-1, -2) @ d_output  # (..., S, d_v)
    d_weights = torch.where(seen, d_output @ value.transpose(-1, -2), 0)  # (..., L, S)
    # 4 softmax; 3 mask: weights of 0 let nothing through
    row_sum = (d_output * output).sum(dim=-1, keepdim=True)  # (..., L, 1)
    d_scores = weights * (d_weights - row_sum)  # (..., L, S)
    # 2 scale
    if softcap is not None:  # d tanh = 1 - tanh²
        d_scores = d_scores * (1 - torch.where(seen, scores / softcap, 0) ** 2)
    d_scores = d_scores * scale
    # 1 scores
    d_query = mix(d_scores, key, seen)  # (..., L, d_k)
    d_key = mix(d_scores.transpose(-1, -2), query, seen.transpose(-1, -2))  # (..., S, d_k)
    return like_inputs((d_query, d_key, d_value), shapes, dtype)


def capped_scores(query: Tensor, key: Tensor, scale: float | None, softcap: float | None) -> Tensor:
    """Steps 1 and 2 again: scaled scores (..., L, S), capped if asked."""
    scores = scaled_scores(query, key, scale)
    return scores if softcap is None else soft_cap(scores, softcap)


def weights_from_lse(scores: Tensor, lse: Tensor) -> Tensor:
    """exp(scores - lse): the softmax of scores (..., L, S) with log-sum-exp lse (..., L).

    A row with nothing to attend to has lse = -inf and gets zeros.
    """
    lse = torch.where(lse == -torch.inf, 0, lse)[..., None]  # (..., L, 1)
    return torch.exp(scores - lse)


def check_gradient(
    d_output: Tensor, query: Tensor, key: Tensor, value: Tensor, **of_forward: Tensor
) -> None:
    """d_output has the shape of the output, and what the forward pass left fits the scores."""
    *lead, L, S = check_attention(query, key, value, enable_gqa=True)
    if d_output.shape != (*lead, L, value.shape[-1]):
        raise ValueError(
            f"d_output: expected the shape of the output, {(*lead, L, value.shape[-1])},"
            f" got {tuple(d_output.shape)}."
        )
    last = {"weights": S, "lse": 1, "output": value.shape[-1]}
    for name, x in of_forward.items():
        expected = (*lead, L, last[name])
        if x.shape[-2:] != expected[-2:] or not broadcasts(tuple(x.shape), expected):
            raise ValueError(
                f"{name}: expected what the forward pass gave, {expected}, got {tuple(x.shape)}."
            )


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether a tensor of the shape can be broadcast to the target."""
    try:
        return tuple(torch.broadcast_shapes(shape, target)) == target
    except RuntimeError:
        return False


def like_inputs(
    gradients: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in the shapes and the dtype of the inputs: what was repeated is summed."""
    d_query, d_key, d_value = (
        sum_to(gradient, shape).to(dtype) for gradient, shape in zip(gradients, shapes, strict=True)
    )
    return d_query, d_key, d_value


def sum_to(gradient: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Sums a gradient over the axes along which its input, of this shape, was repeated."""
    if len(shape) > 2 and 1 < shape[-3] < gradient.shape[-3]:  # grouped heads: H_kv of H
        *lead, H, S, d = gradient.shape
        gradient = gradient.reshape(*lead, shape[-3], H // shape[-3], S, d).sum(dim=-3)
    return gradient.sum_to_size(shape)


def finite_differences(loss: Callable[[Tensor], Tensor], x: Tensor, step: float = 1e-6) -> Tensor:
    """The gradient of a scalar loss at x, measured: (loss(x + step) - loss(x - step)) / (2·step).

    One entry of x at a time, in float64, on copies of x. The error is about step² from the formula
    and 1e-16/step from rounding.

    >>> finite_differences(lambda x: (x**2).sum(), torch.tensor([1.0, -3.0])).round(decimals=6)
    tensor([ 2., -6.], dtype=torch.float64)
    """
    x = torch.as_tensor(x).detach().double()
    gradient = torch.zeros_like(x)
    for index in torch.cartesian_prod(*map(torch.arange, x.shape)).reshape(-1, x.ndim).tolist():
        above, below = x.clone(), x.clone()
        above[tuple(index)] += step
        below[tuple(index)] -= step
        gradient[tuple(index)] = (float(loss(above)) - float(loss(below))) / (2 * step)
    return gradient
