"""Checks at the door, shared by the modules of this package.

They turn what came in into tensors to compute with, or say what was expected, what came and what
to do.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor


def as_floats(**inputs: Any) -> tuple[list[Tensor], torch.dtype]:
    """The inputs in one dtype to compute in, and the dtype that results are cast back to.

    Computing is done in at least float32. Integers and lists take PyTorch's default dtype.
    """
    tensors = [torch.as_tensor(x) for x in inputs.values()]
    for name, x in zip(inputs, tensors, strict=True):
        if x.is_complex() or x.dtype == torch.bool:
            raise TypeError(
                f"{name}: expected a tensor of numbers (float16, bfloat16, float32 or float64),"
                f" got dtype {x.dtype} with shape {tuple(x.shape)}."
                f" Convert it, for instance with {name}.float()."
            )
    check_device(**dict(zip(inputs, tensors, strict=True)))
    default = torch.get_default_dtype()
    dtypes = [x.dtype if x.is_floating_point() else default for x in tensors]
    result = reduce(torch.promote_types, dtypes)
    working = torch.promote_types(result, torch.float32)
    return [x.to(working) for x in tensors], result


def check_device(**tensors: Tensor) -> None:
    """All tensors are on one device."""
    if len({x.device for x in tensors.values()}) > 1:
        places = ", ".join(f"{name} on {x.device}" for name, x in tensors.items())
        raise ValueError(
            f"all tensors must be on one device, got {places}. Move them with .to(...)."
        )


def check_rank(**inputs: Tensor) -> None:
    """Every input has a length axis and a feature axis."""
    for name, x in inputs.items():
        if x.ndim < 2:
            raise ValueError(
                f"{name}: expected at least two axes, (..., length, features), got shape"
                f" {tuple(x.shape)}. A single vector needs an axis in front: {name}[None, :]."
            )


def leading_shape(advice: str = "", **inputs: Tensor) -> tuple[int, ...]:
    """The broadcast shape of all axes before (length, features)."""
    try:
        return tuple(torch.broadcast_shapes(*(x.shape[:-2] for x in inputs.values())))
    except RuntimeError:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in inputs.items())
        raise ValueError(
            f"the axes before (length, features) must be equal or broadcast, got {shapes}.{advice}"
        ) from None


def check_query_key(query: Tensor, key: Tensor) -> None:
    """query (..., L, d_k) meets key (..., S, d_k)."""
    check_rank(query=query, key=key)
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            "query and key must share their last axis d_k,"
            f" got query {tuple(query.shape)} and key {tuple(key.shape)}."
            " A dot product needs vectors of one size; the key is transposed for you."
        )
    leading_shape(query=query, key=key)


def check_attention(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool = False
) -> tuple[int, ...]:
    """query (..., L, d_k), key (..., S, d_k) and value (..., S, d_v) → scores' (..., L, S)"""
    check_rank(query=query, key=key, value=value)
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"key and value must have the same number of rows S,"
            f" got key {tuple(key.shape)} and value {tuple(value.shape)}."
            " Every key belongs to one value."
        )
    advice = "" if enable_gqa else " Fewer key/value heads than query heads need enable_gqa=True."
    lead = leading_shape(advice, query=query, key=key, value=value)
    check_query_key(query, key)
    return (*lead, query.shape[-2], key.shape[-2])


def check_probability(dropout_p: float) -> None:
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p: expected a probability from 0 to 1, got {dropout_p!r}.")


def check_boolean(mask: Any, name: str = "mask") -> Tensor:
    """The mask as a boolean tensor, or an error that says how to make one."""
    tensor = torch.as_tensor(mask)
    if tensor.dtype != torch.bool:
        raise TypeError(
            f"{name}: expected a boolean tensor in which True = may attend,"
            f" got dtype {tensor.dtype} with shape {tuple(tensor.shape)}."
            f" For 0 and 1 use {name} == 1; for an additive mask use {name} == 0."
        )
    return tensor


def split_mask(
    attn_mask: Any, shape: tuple[int, ...], device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """An attention mask as (what may be attended to, what is added to the scores); None = nothing.

    A boolean mask says where a query may attend. A float mask is added, and its -inf say where it
    may not.
    """
    if attn_mask is None:
        return None, None
    mask = torch.as_tensor(attn_mask)
    if not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise TypeError(
            "attn_mask: expected a boolean tensor (True = may attend) or a float tensor"
            f" (added to the scores), got dtype {mask.dtype} with shape {tuple(mask.shape)}."
            " If 1 means 'may attend', pass attn_mask == 1."
        )
    if mask.device != device:
        raise ValueError(
            f"attn_mask: expected on {device} with the query, got on {mask.device}."
            " Create it there (device=query.device) or move it with attn_mask.to(query.device)."
        )
    check_mask_shape(tuple(mask.shape), shape)
    if mask.dtype == torch.bool:
        return mask, None
    return mask != -torch.inf, mask


def check_mask_shape(mask_shape: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """The mask broadcasts to the scores (..., L, S) and does not enlarge them."""
    try:
        fits = tuple(torch.broadcast_shapes(mask_shape, shape)) == shape
    except RuntimeError:
        fits = False
    if not fits:
        advice = ""
        if len(mask_shape) == 2 and len(shape) == 4:
            advice = " A padding mask (B, S) over the keys needs two axes: mask[:, None, None, :]."
        elif len(mask_shape) == 3 and len(shape) == 4:
            advice = " A mask (B, L, S) needs a head axis: mask[:, None, :, :]."
        raise ValueError(
            f"attn_mask: expected a shape that broadcasts to the scores (..., L, S) = {shape},"
            f" got {mask_shape}.{advice}"
        )
