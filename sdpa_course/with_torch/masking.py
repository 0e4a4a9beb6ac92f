"""Masks: who may attend to whom. Boolean everywhere, True = may attend.

>>> causal_mask(3).int()
tensor([[1, 0, 0],
        [1, 1, 0],
        [1, 1, 1]], dtype=torch.int32)
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from sdpa_course.with_torch._checks import check_boolean

Device: TypeAlias = "torch.device | str | None"


def causal_mask(
    L: int, S: int | None = None, align: str | None = None, *, device: Device = None
) -> Tensor:
    """The mask of a decoder: a query may attend to its own position and to earlier ones. → (L, S)

    Where L = S there is one meaning. Where L ≠ S say which corner the diagonal starts from:
    "top-left" (query i is at position i: what `is_causal=True` does in PyTorch) or "bottom-right"
    (the last query is at the last key: what a cache of earlier keys needs). Raises ValueError if
    that is left open. Source: Vaswani et al. 2017, section 3.2.3.
    """
    i, j = positions(L, S, align, device)
    return j <= i  # (L, S)


def sliding_window_mask(
    L: int, S: int | None, window: int, align: str | None = None, *, device: Device = None
) -> Tensor:
    """A causal mask that sees only the last `window` positions, the query's own included. → (L, S)

    Raises ValueError for window < 1, and where `align` is needed (see `causal_mask`).
    Source: Beltagy et al. 2020 (Longformer), section 3.1, one-sided.
    """
    if window < 1:
        raise ValueError(f"window: expected at least 1 (a query sees itself), got {window}.")
    i, j = positions(L, S, align, device)
    return (j <= i) & (i - j < window)  # (L, S)


def positions(
    L: int, S: int | None, align: str | None, device: Device = None
) -> tuple[Tensor, Tensor]:
    """Positions of the queries (L, 1) and of the keys (1, S) in one common count."""
    S = L if S is None else S
    if align not in (None, "top-left", "bottom-right"):
        raise ValueError(f'align: expected "top-left" or "bottom-right", got {align!r}.')
    if align is None and L != S:
        raise ValueError(
            f"a causal mask of {L} queries and {S} keys has two meanings:"
            ' say align="top-left" (query i sits at position i, as is_causal=True in PyTorch)'
            ' or align="bottom-right" (the last query sits at the last key, as with a cache).'
        )
    offset = S - L if align == "bottom-right" else 0
    i, j = torch.arange(L, device=device), torch.arange(S, device=device)
    return i[:, None] + offset, j[None, :]


def padding_mask(lengths: Tensor, S: int | None = None) -> Tensor:
    """Hides the padding that fills a batch up. → (B, 1, 1, S), for scores (B, H, L, S)

    lengths (B,): how many keys of each sequence are real, with S the padded length; or a boolean
    matrix (B, S), True = real token, with S left out. Only keys are hidden: a padded query still
    gets an answer, which nobody reads. Without a head axis use `padding_mask(...)[:, 0]`, which is
    (B, 1, S). Raises TypeError for lengths that are not whole numbers, ValueError for lengths
    outside 0…S.
    """
    lengths = torch.as_tensor(lengths)
    if lengths.dtype == torch.bool:
        real = lengths
        if real.ndim != 2 or S not in (None, real.shape[-1]):
            raise ValueError(
                f"a boolean matrix of real tokens: expected (B, S), got {tuple(real.shape)}, {S=}."
            )
    else:
        if lengths.is_floating_point() or lengths.is_complex():
            raise TypeError(
                f"lengths: expected whole numbers (B,) or a boolean matrix (B, S),"
                f" got dtype {lengths.dtype} with shape {tuple(lengths.shape)}."
            )
        if lengths.ndim != 1 or S is None:
            raise ValueError(
                f"lengths: expected shape (B,) together with the padded length S,"
                f" got {tuple(lengths.shape)}, {S=}."
                " A matrix of 0 and 1 must be boolean: pass matrix == 1."
            )
        if ((lengths < 0) | (lengths > S)).any():
            raise ValueError(
                f"lengths: expected numbers from 0 to S = {S}, got {lengths.tolist()}."
            )
        real = torch.arange(S, device=lengths.device) < lengths[:, None]  # (B, S)
    return real[:, None, None, :]  # (B, 1, 1, S)


def document_mask(doc_ids: Tensor) -> Tensor:
    """Several documents packed into one sequence: a token sees only tokens of its own document.

    doc_ids (S,) → (S, S); (B, S) → (B, 1, S, S), ready for scores (B, H, S, S). It is not causal by
    itself: combine it with `causal_mask`. Raises ValueError for other ranks.
    """
    doc_ids = torch.as_tensor(doc_ids)
    if doc_ids.ndim not in (1, 2):
        raise ValueError(f"doc_ids: expected shape (S,) or (B, S), got {tuple(doc_ids.shape)}.")
    same = doc_ids[..., :, None] == doc_ids[..., None, :]  # (..., S, S)
    return same if doc_ids.ndim == 1 else same[:, None]  # (B, 1, S, S)


def combine_masks(*masks: Tensor | None) -> Tensor | None:
    """A key may be attended to where every mask allows it: logical AND, with broadcasting.

    None stands for "no mask" and is skipped; the result is None if nothing is left.
    Raises TypeError for masks that are not boolean, ValueError where the shapes do not broadcast.
    """
    given = [check_boolean(mask, f"masks[{n}]") for n, mask in enumerate(masks) if mask is not None]
    if not given:
        return None
    try:
        shape = torch.broadcast_shapes(*(mask.shape for mask in given))
    except RuntimeError:
        shapes = ", ".join(str(tuple(mask.shape)) for mask in given)
        raise ValueError(
            f"masks must broadcast to one shape (..., L, S), got {shapes}."
            " A padding mask (B, S) over the keys needs two axes: mask[:, None, None, :]."
        ) from None
    combined = torch.ones(shape, dtype=torch.bool, device=given[0].device)
    for mask in given:
        combined &= mask
    return combined


def to_additive(mask: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The same mask to be added to scores: 0 where it is True, -inf where it is False.

    Combine booleans first and convert once: two large finite masks added to each other overflow.
    Raises TypeError for a mask that is not boolean.
    """
    mask = check_boolean(mask)
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill(~mask, -torch.inf)


def rows_with_nothing(mask: Tensor) -> Tensor:
    """Which queries have nothing to attend to: mask (..., L, S) → (..., L)."""
    return ~check_boolean(mask).any(dim=-1)
