"""Multi-head attention: project, split, attend, merge, project.

>>> import numpy as np
>>> split_heads(np.arange(8).reshape(2, 4), n_heads=2).tolist()
[[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sdpa_course.formulas import (
    AttentionCost,
    attention_cost,
    count_parameters,
    head_sizes,
    transformer_parameters,
)
from sdpa_course.with_numpy._checks import Array, as_floats, cast_back, check_rank
from sdpa_course.with_numpy.attention import Causal, Rng, scaled_dot_product_attention

__all__ = [
    "split_heads",
    "merge_heads",
    "multi_head_attention",
    "init_multi_head",
    "count_parameters",
    "transformer_parameters",
    "AttentionCost",
    "attention_cost",
]


def split_heads(x: ArrayLike, n_heads: int) -> NDArray[Any]:
    """Cuts the last axis into heads and puts them before length: (..., L, H·d) → (..., H, L, d).

    Head h gets the features h·d … (h+1)·d - 1 of every token. Raises ValueError where the last axis
    cannot be cut into n_heads equal parts. Source: Vaswani et al. 2017, section 3.2.2.
    """
    x = np.asarray(x)
    if x.ndim < 2 or n_heads < 1 or x.shape[-1] % n_heads:
        raise ValueError(
            f"expected (..., L, H·d) with a last axis that {n_heads} heads share equally,"
            f" got {x.shape}."
        )
    *lead, L, width = x.shape
    x = x.reshape(*lead, L, n_heads, width // n_heads)  # (..., L, H, d)
    return x.swapaxes(-2, -3)  # (..., H, L, d)


def merge_heads(x: ArrayLike) -> NDArray[Any]:
    """The heads side by side again, as before `split_heads`: (..., H, L, d) → (..., L, H·d).

    Raises ValueError for fewer than three axes.
    """
    x = np.asarray(x)
    if x.ndim < 3:
        raise ValueError(f"expected (..., H, L, d), got {x.shape}.")
    *lead, H, L, d = x.shape
    return x.swapaxes(-2, -3).reshape(*lead, L, H * d)  # (..., L, H·d)


@overload
def multi_head_attention(
    x: ArrayLike, W_q: ArrayLike, W_k: ArrayLike, W_v: ArrayLike, W_o: ArrayLike, n_heads: int,
    context: ArrayLike | None = None, attn_mask: ArrayLike | None = None, dropout_p: float = 0.0,
    is_causal: Causal = False, *, n_kv_heads: int | None = None,
    biases: Sequence[ArrayLike] | None = None, scale: float | None = None,
    softcap: float | None = None, return_weights: Literal[False] = False, rng: Rng = None,
) -> Array: ...  # fmt: skip
@overload
def multi_head_attention(
    x: ArrayLike, W_q: ArrayLike, W_k: ArrayLike, W_v: ArrayLike, W_o: ArrayLike, n_heads: int,
    context: ArrayLike | None = None, attn_mask: ArrayLike | None = None, dropout_p: float = 0.0,
    is_causal: Causal = False, *, n_kv_heads: int | None = None,
    biases: Sequence[ArrayLike] | None = None, scale: float | None = None,
    softcap: float | None = None, return_weights: Literal[True], rng: Rng = None,
) -> tuple[Array, Array]: ...  # fmt: skip


def multi_head_attention(
    x: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    W_v: ArrayLike,
    W_o: ArrayLike,
    n_heads: int,
    context: ArrayLike | None = None,
    attn_mask: ArrayLike | None = None,
    dropout_p: float = 0.0,
    is_causal: Causal = False,
    *,
    n_kv_heads: int | None = None,
    biases: Sequence[ArrayLike] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    return_weights: bool = False,
    rng: Rng = None,
) -> Array | tuple[Array, Array]:
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
    output = cast_back(merge_heads(heads) @ W_o + b_o, dtype)  # (..., L, d_out)
    return (output, cast_back(weights, dtype)) if return_weights else output


def check_projections(
    x: Array,
    context: Array,
    W_q: Array,
    W_k: Array,
    W_v: Array,
    W_o: Array,
    biases: Sequence[ArrayLike] | None,
) -> list[Array]:
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
                f"{weight_name}: expected ({source.shape[-1]}, …) to multiply {name} {source.shape}"
                f" from the right, got {weight.shape}. A torch.nn.Linear stores its transpose."
            )
    if biases is None:
        return [np.zeros(1, x.dtype)] * 4
    if len(biases) != 4:
        raise ValueError(f"biases: expected four, (b_q, b_k, b_v, b_o), got {len(biases)}.")
    return [np.asarray(b, x.dtype) for b in biases]


def init_multi_head(
    d_model: int,
    n_heads: int,
    d_k: int | None = None,
    d_v: int | None = None,
    rng: Rng = None,
) -> tuple[Array, Array, Array, Array]:
    """Random (W_q, W_k, W_v, W_o) of standard deviation 1/√(rows), so that variances stay 1.

    W_q, W_k (d_model, H·d_k), W_v (d_model, H·d_v), W_o (H·d_v, d_model), float64.
    """
    rng = np.random.default_rng(rng)
    d_k, d_v = head_sizes(d_model, n_heads, d_k, d_v)
    width_k, width_v = n_heads * d_k, n_heads * d_v
    W_q, W_k = rng.normal(size=(2, d_model, width_k)) / np.sqrt(d_model)
    W_v = rng.normal(size=(d_model, width_v)) / np.sqrt(d_model)
    return W_q, W_k, W_v, rng.normal(size=(width_v, d_model)) / np.sqrt(width_v)
