"""When two values are the same: a tolerance derived from the dtype and the length of the sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .call import Outcome, Value
from .exercise import Probe

FAR = math.inf
MATCH = 1e-6  # relative; how closely a fault must reproduce a learner's output to be named
EPSILON = 2e-8  # how far a right answer may be off by a constant such as 1e-8 in a denominator
SEPARATION = 1000  # right and wrong, and any two faults, differ by this many tolerances


def tolerance(probe: Probe, dtype: Any = np.float64) -> float:
    """Relative tolerance of a right answer on this probe.

    Rounding in a sum of n terms grows no faster than n·eps; the sums run over the longest axis of
    the inputs, and a score of size m passes m·eps on to the weights. Half precision is rounded once
    on the way out, as scores and softmax are computed in float32.
    """
    if probe.loose:
        return probe.loose
    n = max(
        [size for x in probe.inputs.values() if isinstance(x, np.ndarray) for size in x.shape],
        default=1,
    )
    rounding = 2 * np.finfo(np.float16).eps if np.dtype(dtype) == np.float16 else 0.0
    inner = (
        np.float64 if np.dtype(dtype).itemsize > 4 or np.dtype(dtype).kind != "f" else np.float32
    )
    return float(16 * np.finfo(inner).eps * n * max(1.0, probe.magnitude) + rounding)


def distance(a: Value, b: Value) -> float:
    """Largest difference relative to the largest entry; FAR when they cannot be compared.

    NaN and inf must stand in the same places. Entries below 1e-6 count as if the largest were 1e-6,
    so that rounding around an exact zero is not a difference.
    """
    if isinstance(a, tuple) or isinstance(b, tuple):
        if not (isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b)):
            return FAR
        return max(map(distance, a, b), default=0.0)
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return 0.0 if type(a) is type(b) and a == b else FAR
    if a.shape != b.shape:
        return FAR
    if a.size == 0:
        return 0.0
    if a.dtype.kind != "f" or b.dtype.kind != "f":
        a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.all() and not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return FAR
    if not finite.any():
        return 0.0
    a, b = a[finite], b[finite]
    return float(np.abs(a - b).max() / max(np.abs(a).max(), np.abs(b).max(), 1e-6))


def outcome_distance(a: Outcome, b: Outcome) -> float:
    """Distance of two outcomes; an exception is the same outcome whatever its type.

    (A wrong shape is a ValueError in NumPy and a RuntimeError in torch.)
    """
    if a.raised or b.raised:
        return 0.0 if a.raised and b.raised else FAR
    return distance(a.value, b.value)


def dtype_of(value: Any) -> np.dtype[Any]:
    """The dtype of the first array of a value."""
    part = value[0] if isinstance(value, tuple) and value else value
    return getattr(part, "dtype", np.dtype(np.float64))
