"""Why the values are wrong: the mistakes that reproduce them, or what can be said without."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from .call import Outcome, Runner, plain
from .compare import MATCH, distance, outcome_distance, tolerance
from .diagnose import diagnose
from .exercise import Exercise, Fault
from .habits import DIFFERS, MUTATES, ROUNDED
from .report import Report, error, failed
from .shrink import smallest_failure


def references(exercise: Exercise) -> list[Outcome]:
    """What the reference makes of every fixed probe."""
    return [Outcome(plain(value)) for value in exercise.expected]


def explain(
    exercise: Exercise,
    runner: Runner,
    outcomes: list[Outcome],
    reached: tuple[str, ...],
    missed: tuple[str, ...],
) -> Report:
    """Why the values are wrong: the mistakes that reproduce them, or what can be said without."""
    expected = references(exercise)
    changed = sorted({name for o in outcomes for name in o.changed})
    extra: tuple[Fault, ...] = ()
    if changed:
        extra = (MUTATES.named(" and ".join(f"`{name}`" for name in changed)),)
    if nearly_right(exercise, expected, outcomes):
        gap = max(map(outcome_distance, expected, outcomes))
        known = diagnose(exercise, exercise.probes, outcomes, match=min(MATCH, 1e-3 * gap)).faults
        return failed(exercise, faults=(*(known or (ROUNDED,)), *extra), done=reached)
    if all(o.raised for o in outcomes):
        return replace(error(exercise, ""), raised=outcomes[0].raised, notes=(), missed=missed)
    if outcome_distance(runner(exercise.probes[0].fresh()), outcomes[0]) > MATCH:
        return failed(exercise, faults=(DIFFERS, *extra), done=reached, missed=missed)
    diagnosis = diagnose(exercise, exercise.probes, outcomes)
    example = smallest_failure(exercise, runner)
    if diagnosis.faults:
        touched = {switch for fault in diagnosis.faults for switch in fault.switches}
        steps = tuple(goal for switch, goal in exercise.goals.items() if switch not in touched)
        wrong = tuple(goal for switch, goal in exercise.goals.items() if switch in touched)
        if touched:
            reached, missed = steps, wrong
        return failed(
            exercise,
            faults=(*diagnosis.faults, *extra),
            done=reached,
            missed=missed,
            example=example,
        )
    notes = [*unexplained(exercise, runner, expected, outcomes)]
    raised = next((o.raised for o in outcomes if o.raised), None)
    return failed(
        exercise,
        faults=extra,
        done=reached,
        missed=missed,
        notes=tuple(notes),
        nearest=diagnosis.nearest,
        example=example,
        raised=raised,
    )


def nearly_right(exercise: Exercise, expected: list[Outcome], outcomes: list[Outcome]) -> bool:
    """Wrong, and yet within what lower precision would do to a right answer."""
    return all(
        outcome_distance(e, o) <= max(1e-5, tolerance(probe, np.float32))
        for probe, e, o in zip(exercise.probes, expected, outcomes, strict=True)
    )


def unexplained(
    exercise: Exercise, runner: Runner, expected: list[Outcome], outcomes: list[Outcome]
) -> list[str]:
    """What can be said when no known mistake fits: shapes, parts, properties."""
    for e, o in zip(expected, outcomes, strict=True):
        if not o.raised and (note := shape_note(e.value, o.value)):
            return [note]
    notes = parts_note(exercise, expected, outcomes)
    for holds in exercise.properties:
        for probe, outcome in zip(exercise.probes, outcomes, strict=True):
            if outcome.raised or not probe.dims:
                continue
            if (sentence := holds(runner, probe)) is not None:
                notes.append(sentence)
            break
    return notes


def shape_note(expected: Any, actual: Any) -> str | None:
    """What is wrong with the shape, and which axes look exchanged."""
    if isinstance(expected, tuple) != isinstance(actual, tuple) or isinstance(actual, str):
        return f"Expected {described(expected)}, got {described(actual)}."
    if isinstance(expected, tuple):
        if len(expected) != len(actual):
            return f"Expected {len(expected)} arrays, got {len(actual)}."
        return next(
            (note for e, a in zip(expected, actual, strict=True) if (note := shape_note(e, a))),
            None,
        )
    want, got = np.shape(expected), np.shape(actual)
    if want == got:
        return None
    for axes in itertools.permutations(range(len(got))) if len(got) == len(want) <= 5 else ():
        if tuple(got[i] for i in axes) == want:
            return f"Expected shape {want}, got {got}: the axes look exchanged."
    return f"Expected shape {want}, got {got}."


def described(value: Any) -> str:
    return (
        f"{len(value)} arrays"
        if isinstance(value, tuple)
        else f"one {type(value).__name__.replace('ndarray', 'array')}"
    )


def parts_note(exercise: Exercise, expected: list[Outcome], outcomes: list[Outcome]) -> list[str]:
    """Of several returned arrays, the last computed first: the one where the results diverge."""
    pairs = [
        (e.value, o.value)
        for e, o in zip(expected, outcomes, strict=True)
        if isinstance(e.value, tuple) and isinstance(o.value, tuple)
    ]
    names = exercise.outputs
    if not pairs or any(len(e) != len(names) or len(a) != len(names) for e, a in pairs):
        return []
    right = {
        name: all(distance(e[i], a[i]) <= MATCH for e, a in pairs) for i, name in enumerate(names)
    }
    good = [name for name, ok in right.items() if ok]
    bad = [name for name, ok in right.items() if not ok]
    if good:
        return [f"Right so far: {' and '.join(good)}. Look at: {' and '.join(bad)}."]
    return [f"Your {names[-1]} already differ, so look at the steps before them."]
