"""Checks at the door, shared by the modules of this package.

They turn what came in into arrays to compute with, or say what was expected, what came and what to
do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

Array = NDArray[np.floating[Any]]
BoolArray = NDArray[np.bool_]


def as_floats(**inputs: ArrayLike) -> tuple[list[Array], np.dtype[Any]]:
    """The inputs in one dtype to compute in, and the dtype that results are cast back to.

    Computing is done in at least float32. Integers and lists become float64, as in NumPy's own
    functions.
    """
    arrays = [np.asarray(x) for x in inputs.values()]
    for name, x in zip(inputs, arrays, strict=True):
        if x.dtype.kind not in "fiu":
            raise TypeError(
                f"{name}: expected an array of numbers (float16, float32 or float64),"
                f" got dtype {x.dtype}"
                f" with shape {x.shape}. Convert it, for instance with {name}.astype(np.float32)."
            )
    dtypes = [x.dtype if x.dtype.kind == "f" else np.dtype(np.float64) for x in arrays]
    result: np.dtype[Any] = np.result_type(*dtypes)
    working = np.result_type(result, np.float32)
    return [x.astype(working, copy=False) for x in arrays], result


def cast_back(x: Array, dtype: DTypeLike) -> Array:
    """x in the dtype of the inputs; a value too large for half precision becomes inf, without a
    warning.
    """
    with np.errstate(over="ignore"):
        return x.astype(dtype, copy=False)


def check_rank(**inputs: Array) -> None:
    """Every input has a length axis and a feature axis."""
    for name, x in inputs.items():
        if x.ndim < 2:
            raise ValueError(
                f"{name}: expected at least two axes, (..., length, features), got shape {x.shape}."
                f" A single vector needs an axis in front: {name}[None, :]."
            )


def leading_shape(advice: str = "", **inputs: Array) -> tuple[int, ...]:
    """The broadcast shape of all axes before (length, features)."""
    try:
        return np.broadcast_shapes(*(x.shape[:-2] for x in inputs.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {x.shape}" for name, x in inputs.items())
        raise ValueError(
            f"the axes before (length, features) must be equal or broadcast, got {shapes}.{advice}"
        ) from None


def check_query_key(query: Array, key: Array) -> None:
    """query (..., L, d_k) meets key (..., S, d_k)."""
    check_rank(query=query, key=key)
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            "query and key must share their last axis d_k,"
            f" got query {query.shape} and key {key.shape}."
            " A dot product needs vectors of one size; the key is transposed for you."
        )
    leading_shape(query=query, key=key)


def check_attention(
    query: Array, key: Array, value: Array, enable_gqa: bool = False
) -> tuple[int, ...]:
    """query (..., L, d_k), key (..., S, d_k) and value (..., S, d_v) → scores' (..., L, S)"""
    check_rank(query=query, key=key, value=value)
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"key and value must have the same number of rows S,"
            f" got key {key.shape} and value {value.shape}. Every key belongs to one value."
        )
    advice = "" if enable_gqa else " Fewer key/value heads than query heads need enable_gqa=True."
    lead = leading_shape(advice, query=query, key=key, value=value)
    check_query_key(query, key)
    return (*lead, query.shape[-2], key.shape[-2])


def check_probability(dropout_p: float) -> None:
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p: expected a probability from 0 to 1, got {dropout_p!r}.")


def check_boolean(mask: ArrayLike, name: str = "mask") -> BoolArray:
    """The mask as a boolean array, or an error that says how to make one."""
    array = np.asarray(mask)
    if array.dtype != np.bool_:
        raise TypeError(
            f"{name}: expected a boolean array in which True = may attend,"
            f" got dtype {array.dtype} with shape {array.shape}."
            f" For 0 and 1 use {name} == 1; for an additive mask use {name} == 0."
        )
    return array


def split_mask(
    attn_mask: ArrayLike | None, shape: tuple[int, ...]
) -> tuple[BoolArray | None, Array | None]:
    """An attention mask as (what may be attended to, what is added to the scores); None = nothing
    to do.

    A boolean mask says where a query may attend. A float mask is added, and its -inf say where it
    may not.
    """
    if attn_mask is None:
        return None, None
    mask = np.asarray(attn_mask)
    if mask.dtype.kind not in "bf":
        raise TypeError(
            "attn_mask: expected a boolean array (True = may attend) or a float array"
            f" (added to the scores), got dtype {mask.dtype} with shape {mask.shape}."
            " If 1 means 'may attend', pass attn_mask == 1."
        )
    check_mask_shape(mask.shape, shape)
    if mask.dtype.kind == "b":
        return mask, None
    return mask != -np.inf, mask


def check_mask_shape(mask_shape: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """The mask broadcasts to the scores (..., L, S) and does not enlarge them."""
    try:
        fits = np.broadcast_shapes(mask_shape, shape) == shape
    except ValueError:
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
