"""The smallest input on which a wrong answer shows: small sizes and small whole numbers first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .call import Outcome
from .compare import SEPARATION, outcome_distance, tolerance
from .diagnose import outcome_of
from .exercise import Exercise, Probe

MOST_CALLS = 60


@dataclass(frozen=True)
class Example:
    """An input with what was expected and what came."""

    inputs: Mapping[str, Any]
    expected: Any
    actual: Outcome


def small_probes(exercise: Exercise) -> Iterator[Probe]:
    """Inputs of sizes 1 to 3 in whole numbers, then the fixed probes, the smallest first."""
    if exercise.make_inputs is not None:
        names = list(exercise.dims())
        sizes = sorted(
            itertools.product((1, 2, 3), repeat=min(len(names), 6)), key=lambda s: (math.prod(s), s)
        )
        for count, chosen in enumerate(sizes):
            if count >= MOST_CALLS:
                break
            try:
                inputs = exercise.make_inputs(
                    np.random.default_rng(count), **dict(zip(names, chosen, strict=False))
                )
            except (ValueError, IndexError):
                continue
            if not exercise.related:
                inputs = {name: rounded(x) for name, x in inputs.items()}
            yield Probe("", inputs)
    yield from sorted(
        exercise.probes,
        key=lambda p: sum(x.size for x in p.inputs.values() if isinstance(x, np.ndarray)),
    )


def rounded(x: Any) -> Any:
    if isinstance(x, np.ndarray) and x.dtype.kind == "f" and np.isfinite(x).all():
        return np.round(x) + 0.0
    return x


def smallest_failure(
    exercise: Exercise, call: Callable[[Mapping[str, Any]], Outcome]
) -> Example | None:
    """The first small input on which the learner's function is clearly wrong."""
    for probe in small_probes(exercise):
        expected = outcome_of(exercise.run, probe)
        if expected.raised:
            continue
        actual = call(probe.fresh())
        if outcome_distance(expected, actual) > max(SEPARATION * tolerance(probe), 1e-3):
            return Example(probe.inputs, expected.value, actual)
    return None
