"""What must hold of a right answer whatever its numbers: said when no known mistake fits.

A property is ``property(call, probe) -> sentence | None``. ``call(inputs)`` returns an
:class:`~.call.Outcome`; the sentence says what fails to hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .call import Outcome
from .compare import MATCH, outcome_distance
from .exercise import Probe

Call = Callable[[Mapping[str, Any]], Outcome]
Property = Callable[[Call, Probe], str | None]


def part_of(outcome: Outcome, index: int) -> np.ndarray | None:
    """One of the returned arrays, or None."""
    value = (
        outcome.value[index]
        if isinstance(outcome.value, tuple) and len(outcome.value) > index
        else outcome.value
    )
    return value if isinstance(value, np.ndarray) and value.dtype.kind == "f" else None


def rows_sum_to_one(part: int = 0, axis: int = -1, what: str = "weights") -> Property:
    """Every row of the weights sums to 1 (a row with nothing to attend to sums to 0)."""

    def holds(call: Call, probe: Probe) -> str | None:
        weights = part_of(call(probe.fresh()), part)
        if weights is None or weights.ndim == 0:
            return None
        sums = weights.sum(axis)
        if np.all((np.abs(sums - 1) < MATCH) | (sums == 0)):
            return None
        if weights.ndim > 1 and np.allclose(weights.sum(-2 if axis == -1 else -1), 1, atol=MATCH):
            return f"The columns of your {what} sum to 1, the rows do not: the wrong axis."
        worst = sums.ravel()[np.nanargmax(np.abs(sums - 1))] if np.isfinite(sums).any() else np.nan
        return f"The rows of your {what} do not sum to 1 (one sums to {worst:.4g})."

    return holds


def rows_sum_to_zero(what: str, part: int = 0, axis: int = -1) -> Property:
    """What comes back along an axis sums to 0, as a shift along it changes nothing forward."""

    def holds(call: Call, probe: Probe) -> str | None:
        gradient = part_of(call(probe.fresh()), part)
        if gradient is None or gradient.ndim < 2 or not np.isfinite(gradient).all():
            return None
        sums = np.abs(gradient.sum(axis))
        if sums.max(initial=0) <= MATCH * max(1.0, np.abs(gradient).max(initial=0)):
            return None
        along = "row of" if axis == -1 else "column of"
        return f"Each {along} {what} has to sum to 0; one of yours sums to {sums.max():.3g}."

    return holds


def keys_may_be_permuted(*names: str, axis: int = -2) -> Property:
    """Permuting the keys together with their values changes nothing."""

    def holds(call: Call, probe: Probe) -> str | None:
        inputs = probe.fresh()
        order = np.random.default_rng(1).permutation(inputs[names[0]].shape[axis])
        moved = {**inputs, **{name: np.take(inputs[name], order, axis) for name in names}}
        if same(call(probe.fresh()), call(moved)):
            return None
        moved_names = " and ".join(names)
        return f"Permuting {moved_names} together changes your result; their order must not matter."

    return holds


def shift_changes_nothing(name: str, by: float = 3.0) -> Property:
    """Adding a constant to every score of a row changes nothing."""

    def holds(call: Call, probe: Probe) -> str | None:
        inputs = probe.fresh()
        if same(call(probe.fresh()), call({**inputs, name: inputs[name] + by})):
            return None
        return f"Adding {by:g} to all of {name} changes your result; only differences may matter."

    return holds


def stays_within(axis: int, names: Sequence[str], what: str) -> Property:
    """Changing one entry along an axis moves only that entry's output ("samples do not mix")."""

    def holds(call: Call, probe: Probe) -> str | None:
        inputs = probe.fresh()
        changed = {name: np.copy(inputs[name]) for name in names}
        for x in changed.values():
            x[(slice(None),) * (axis % x.ndim) + (0,)] += 1.0
        before, after = part_of(call(probe.fresh()), 0), part_of(call({**inputs, **changed}), 0)
        if (
            before is None
            or after is None
            or before.shape != after.shape
            or before.ndim <= axis % max(before.ndim, 1)
        ):
            return None
        rest = (slice(None),) * (axis % before.ndim) + (slice(1, None),)
        if np.allclose(before[rest], after[rest], rtol=MATCH, atol=MATCH, equal_nan=True):
            return None
        return f"Changing {what} 0 of the input moves the result of the others; they must not mix."

    return holds


def future_does_not_leak(*names: str, axis: int = -2) -> Property:
    """Changing the last token changes no earlier row of the output."""

    def holds(call: Call, probe: Probe) -> str | None:
        inputs = probe.fresh()
        changed = {name: np.copy(inputs[name]) for name in names}
        for x in changed.values():
            np.moveaxis(x, axis, 0)[-1] += 1.0
        before, after = part_of(call(probe.fresh()), 0), part_of(call({**inputs, **changed}), 0)
        if before is None or after is None or before.shape != after.shape:
            return None
        before, after = (np.moveaxis(x, -2, 0)[:-1] for x in (before, after))
        moved = ~np.isclose(before, after, rtol=MATCH, atol=MATCH, equal_nan=True)
        if not moved.any():
            return None
        row = int(np.argmax(moved.reshape(len(moved), -1).any(-1)))
        return f"Changing the last token moves row {row} of your result: the future leaks."

    return holds


def same(a: Outcome, b: Outcome) -> bool:
    return outcome_distance(a, b) <= MATCH
