"""Grading a function: does it return what the reference returns, and does it behave?"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace

from .call import STOPPED, Outcome, Runner
from .compare import EPSILON, dtype_of, outcome_distance, tolerance
from .exercise import Exercise
from .explain import explain, references
from .habits import habits
from .report import Report, failed, not_attempted, passed, timed_out


def grade(exercise: Exercise, runner: Runner, *, seed: int | None = None) -> Report:
    """Grade a function that ``runner`` calls, here or in a child process.

    ``seed`` draws the random probes that a function must pass beside the fixed ones; left out, it
    is another one each time.
    """
    seed = secrets.randbelow(10**6) if seed is None else seed
    outcomes: list[Outcome] = []
    for probe in exercise.probes:
        outcome = runner(probe.fresh())
        if outcome.raised and outcome.raised.type in STOPPED:
            return timed_out(exercise, outcome.raised.message)
        if is_blank(outcome):
            return not_attempted(exercise)
        outcomes.append(outcome)

    reached, missed, nearly = goals(exercise, outcomes)
    if missed:
        report = explain(exercise, runner, outcomes, reached, missed)
    elif faults := habits(exercise, runner, outcomes, seed):
        report = failed(exercise, faults, done=reached)
    else:
        report = passed(exercise, done=reached, notes=(NEARLY,) if nearly else ())
    return replace(report, backend=runner.backend)


NEARLY = "Right, but off by a little more than rounding: a small constant in a denominator?"


def is_blank(outcome: Outcome) -> bool:
    """The function is still a stub: it raises NotImplementedError or returns nothing."""
    if outcome.raised:
        return outcome.raised.type == "NotImplementedError" or "ellipsis" in outcome.raised.message
    return outcome.value is None


def goals(
    exercise: Exercise, outcomes: list[Outcome]
) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """The sub-goals reached and missed, and whether one was reached only nearly."""
    reached: Mapping[str, bool] = {}
    nearly = False
    for probe, expected, outcome in zip(
        exercise.probes, references(exercise), outcomes, strict=True
    ):
        gap = outcome_distance(expected, outcome)
        limit = tolerance(probe, dtype_of(expected.value))
        nearly |= limit < gap <= EPSILON
        right = gap <= max(limit, EPSILON)
        reached = {**reached, probe.goal: right and reached.get(probe.goal, True)}
    return (
        tuple(goal for goal, right in reached.items() if right),
        tuple(goal for goal, right in reached.items() if not right),
        nearly,
    )
