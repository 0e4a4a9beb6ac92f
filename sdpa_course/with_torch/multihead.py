"""Multi-head attention: project, split, attend, merge, project.

>>> split_heads(torch.arange(8).reshape(2, 4), n_heads=2).tolist()
[[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor, nn

from sdpa_course.formulas import (
    AttentionCost,
    attention_cost,
    count_parameters,
    head_sizes,
    transformer_parameters,
)
from sdpa_course.with_torch._checks import as_floats, check_rank
from sdpa_course.with_torch._random import Rng, generator
from sdpa_course.with_torch.attention import Causal, scaled_dot_product_attention

__all__ = [
    "split_heads",
    "merge_heads",
    "multi_head_attention",
    "MultiHeadAttention",
    "masks_from_torch",
    "init_multi_head",
    "count_parameters",
    "transformer_parameters",
    "AttentionCost",
    "attention_cost",
]


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """Cuts the last axis into heads and puts them before length: (..., L, H·d) → (..., H, L, d).

    Head h gets the features h·d … (h+1)·d - 1 of every token. Raises ValueError where the last axis
    cannot be cut into n_heads equal parts. Source: Vaswani et al. 2017, section 3.2.2.
    """
    if x.ndim < 2 or n_heads < 1 or x.shape[-1] % n_heads:
        raise ValueError(
            f"expected (..., L, H·d) with a last axis that {n_heads} heads share equally,"
            f" got {tuple(x.shape)}."
        )
    *lead, L, width = x.shape
    x = x.reshape(*lead, L, n_heads, width // n_heads)  # (..., L, H, d)
    return x.transpose(-2, -3)  # (..., H, L, d)


def merge_heads(x: Tensor) -> Tensor:
    """The heads side by side again, as before `split_heads`: (..., H, L, d) → (..., L, H·d).

    Raises ValueError for fewer than three axes.
    """
    if x.ndim < 3:
        raise ValueError(f"expected (..., H, L, d), got {tuple(x.shape)}.")
    *lead, H, L, d = x.shape
    return x.transpose(-2, -3).reshape(*lead, L, H * d)  # (..., L, H·d)


@overload
def multi_head_attention(
    x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor, W_o: Tensor, n_heads: int,
    context: Tensor | None = None, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: Causal = False, *, n_kv_heads: int | None = None,
    biases: Sequence[Tensor] | None = None, scale: float | None = None,
    softcap: float | None = None, return_weights: Literal[False] = False, rng: Rng = None,
) -> Tensor: ...  # fmt: skip
@overload
def multi_head_attention(
    x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor, W_o: Tensor, n_heads: int,
    context: Tensor | None = None, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: Causal = False, *, n_kv_heads: int | None = None,
    biases: Sequence[Tensor] | None = None, scale: float | None = None,
    softcap: float | None = None, return_weights: Literal[True], rng: Rng = None,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip


def multi_head_attention(
    x: Tensor,
    W_q: Tensor,
    W_k: Tensor,
    W_v: Tensor,
    W_o: Tensor,
    n_heads: int,
    context: Tensor | None = None,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: Causal = False,
    *,
    n_kv_heads: int | None = None,
    biases: Sequence[Tensor] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    return_weights: bool = False,
    rng: Rng = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Concat(head_1, …, head_H) W_o, where each head attends with its own projection of all of x.

    x (..., L, d_model) asks; context (..., S, d_context) is asked, and is x itself if None.
    W_q (d_model, H·d_k), W_k (d_context, H_kv·d_k), W_v (d_context, H_kv·d_v), W_o (H·d_v, d_out)
    → (..., L, d_out); with return_weights also the weights (..., H, L, S). n_kv_heads = H_kv is
    n_heads unless given. biases are (b_q, b_k, b_v, b_o). The mask broadcasts to (..., H, L, S);
    masks, dropout, scale, softcap, rng and dtypes are as in `scaled_dot_product_attention`.

    Raises ValueError where the sizes do not fit.
    Source: Vaswani et al. 2017, section 3.2.2; fewer key/value heads: Ainslie et al. 2023.
    """
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    (x, context, W_q, W_k, W_v, W_o), dtype = as_floats(
        x=x, context=x if context is None else context, W_q=W_q, W_k=W_k, W_v=W_v, W_o=W_o
    )
    b_q, b_k, b_v, b_o = check_projections(x, context, W_q, W_k, W_v, W_o, biases)
    # project, split
    query = split_heads(x @ W_q + b_q, n_heads)  # (..., H, L, d_k)
    key = split_heads(context @ W_k + b_k, n_kv_heads)  # (..., H_kv, S, d_k)
    value = split_heads(context @ W_v + b_v, n_kv_heads)  # (..., H_kv, S, d_v)
    # attend
    heads, weights = scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal,
        scale=scale, enable_gqa=n_kv_heads != n_heads, softcap=softcap,
        return_weights=True, rng=rng,
    )  # (..., H, L, d_v), (..., H, L, S)  # fmt: skip
    # merge, project
    output = (merge_heads(heads) @ W_o + b_o).to(dtype)  # (..., L, d_out)
    return (output, weights.to(dtype)) if return_weights else output


def check_projections(
    x: Tensor,
    context: Tensor,
    W_q: Tensor,
    W_k: Tensor,
    W_v: Tensor,
    W_o: Tensor,
    biases: Sequence[Tensor] | None,
) -> list[Tensor]:
    """The four weight matrices fit their inputs. → the four biases, zeros if there are none"""
    check_rank(x=x, context=context, W_q=W_q, W_k=W_k, W_v=W_v, W_o=W_o)
    pairs = (
        ("x", x, "W_q", W_q),
        ("context", context, "W_k", W_k),
        ("context", context, "W_v", W_v),
    )
    for name, source, weight_name, weight in pairs:
        if source.shape[-1] != weight.shape[-2]:
            raise ValueError(
                f"{weight_name}: expected ({source.shape[-1]}, …) to multiply {name}"
                f" {tuple(source.shape)} from the right, got {tuple(weight.shape)}."
                " A torch.nn.Linear stores its transpose."
            )
    if biases is None:
        return [x.new_zeros(1)] * 4
    if len(biases) != 4:
        raise ValueError(f"biases: expected four, (b_q, b_k, b_v, b_o), got {len(biases)}.")
    return [torch.as_tensor(b).to(x) for b in biases]


class MultiHeadAttention(nn.Module):
    """Multi-head attention with learned projections W_q, W_k, W_v and W_o.

    Unlike `torch.nn.MultiheadAttention`: True in a mask means may attend, batches come first, a
    query with nothing to attend to gives zeros (before W_o) instead of NaN, the weights are
    returned for each head and before dropout, and there may be fewer key/value heads.
    d_k and d_v are per head, d_model / n_heads unless given; d_context is the size of the context
    (cross-attention). Dropout acts in training mode only.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_k: int | None = None,
        d_v: int | None = None,
        d_context: int | None = None,
        bias: bool = False,
        dropout_p: float = 0.0,
    ) -> None:
        super().__init__()
        d_k, d_v = head_sizes(d_model, n_heads, d_k, d_v)
        d_context = d_model if d_context is None else d_context
        self.n_heads, self.dropout_p = n_heads, dropout_p
        self.n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        self.W_q = nn.Linear(d_model, n_heads * d_k, bias)
        self.W_k = nn.Linear(d_context, self.n_kv_heads * d_k, bias)
        self.W_v = nn.Linear(d_context, self.n_kv_heads * d_v, bias)
        self.W_o = nn.Linear(n_heads * d_v, d_model, bias)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: Causal = False,
        *,
        return_weights: bool = False,
        rng: Rng = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """x (..., L, d_model), context (..., S, d_context) → (..., L, d_model), and the weights."""
        layers = self.W_q, self.W_k, self.W_v, self.W_o
        W_q, W_k, W_v, W_o = (layer.weight.T for layer in layers)  # (in, out)
        output, weights = multi_head_attention(
            x, W_q, W_k, W_v, W_o, self.n_heads, context, attn_mask,
            self.dropout_p if self.training else 0.0, is_causal, n_kv_heads=self.n_kv_heads,
            biases=None if self.W_q.bias is None else [layer.bias for layer in layers],
            return_weights=True, rng=rng,
        )  # fmt: skip
        return (output, weights) if return_weights else output

    @classmethod
    def from_torch(cls, layer: nn.MultiheadAttention) -> MultiHeadAttention:
        """The same layer with the same weights. `masks_from_torch` translates its masks.

        Raises ValueError for add_bias_kv, add_zero_attn and kdim ≠ vdim.
        """
        if layer.bias_k is not None or layer.add_zero_attn or layer.kdim != layer.vdim:
            raise ValueError(
                "expected a MultiheadAttention without add_bias_kv and add_zero_attn, with"
                f" kdim = vdim; got add_bias_kv={layer.bias_k is not None},"
                f" add_zero_attn={layer.add_zero_attn}, kdim={layer.kdim}, vdim={layer.vdim}."
            )
        bias = layer.in_proj_bias is not None
        ours = cls(
            layer.embed_dim, layer.num_heads, d_context=layer.kdim, bias=bias,
            dropout_p=layer.dropout,
        )  # fmt: skip
        ours = ours.to(layer.out_proj.weight).train(layer.training)
        if layer.in_proj_weight is not None:
            weights = layer.in_proj_weight.chunk(3)  # three (d_model, d_model), one on the other
        else:
            weights = layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight
        with torch.no_grad():
            for linear, weight in zip((ours.W_q, ours.W_k, ours.W_v), weights, strict=True):
                linear.weight.copy_(weight)
            ours.W_o.weight.copy_(layer.out_proj.weight)
            if bias:
                in_biases = layer.in_proj_bias.chunk(3)
                for linear, b in zip((ours.W_q, ours.W_k, ours.W_v), in_biases, strict=True):
                    linear.bias.copy_(b)
                ours.W_o.bias.copy_(layer.out_proj.bias)
        return ours


def masks_from_torch(
    attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, n_heads: int = 1
) -> Tensor | None:
    """The two masks of `torch.nn.MultiheadAttention` as one mask of ours, or None for none.

    There, True means ignore; here, True means may attend. attn_mask (L, S) or (B·H, L, S),
    key_padding_mask (S,) or (B, S); each boolean or float. → a mask that broadcasts to
    (B, H, L, S): boolean if all that was given is, else float, -inf where a boolean one ignores.
    """
    masks = []
    if attn_mask is not None:
        if attn_mask.ndim == 3:
            attn_mask = attn_mask.unflatten(0, (-1, n_heads))  # (B, H, L, S)
        masks.append(attn_mask)
    if key_padding_mask is not None:
        masks.append(key_padding_mask[..., None, None, :])  # (B, 1, 1, S)
    if not masks:
        return None
    if all(mask.dtype == torch.bool for mask in masks):
        ignored = masks[0] if len(masks) == 1 else masks[0] | masks[1]
        return ~ignored
    floats = [
        torch.zeros(mask.shape, device=mask.device).masked_fill(mask, -torch.inf)
        if mask.dtype == torch.bool
        else mask
        for mask in masks
    ]
    return floats[0] if len(floats) == 1 else floats[0] + floats[1]


def init_multi_head(
    d_model: int,
    n_heads: int,
    d_k: int | None = None,
    d_v: int | None = None,
    rng: Rng = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random (W_q, W_k, W_v, W_o) of standard deviation 1/√(rows), so that variances stay 1.

    W_q, W_k (d_model, H·d_k), W_v (d_model, H·d_v), W_o (H·d_v, d_model), in the default dtype.
    """
    rng = generator(rng, torch.device("cpu"))
    d_k, d_v = head_sizes(d_model, n_heads, d_k, d_v)
    widths = n_heads * d_k, n_heads * d_k, n_heads * d_v
    W_q, W_k, W_v = (torch.randn(d_model, w, generator=rng) / d_model**0.5 for w in widths)
    W_o = torch.randn(n_heads * d_v, d_model, generator=rng) / (n_heads * d_v) ** 0.5
    return W_q, W_k, W_v, W_o
