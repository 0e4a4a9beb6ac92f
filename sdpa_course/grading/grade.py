"""Grading a function: does it return what the reference returns, and does it behave?"""

from __future__ import annotations

import ast
import secrets
import textwrap
from collections.abc import Mapping
from dataclasses import replace

from .call import STOPPED, Outcome, Runner
from .compare import EPSILON, dtype_of, outcome_distance, tolerance
from .exercise import Exercise
from .explain import explain, references
from .habits import habits
from .report import Report, failed, not_attempted, passed, timed_out


def grade(
    exercise: Exercise, runner: Runner, *, source: str | None = None, seed: int | None = None
) -> Report:
    """Grade a function that ``runner`` calls, here or in a child process.

    ``source`` is what the learner wrote, for remarks on how a right answer is written. ``seed``
    draws the random probes that a function must pass beside the fixed ones; left out, it is
    another one each time.
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
        notes = (*([NEARLY] if nearly else []), *([LOOPS] if loops(exercise, source) else []))
        report = passed(exercise, done=reached, notes=notes)
    return replace(report, backend=runner.backend)


NEARLY = "Right, but off by a little more than rounding: a small constant in a denominator?"
LOOPS = "Right. It loops in Python; can you write it with whole arrays?"


def loops(exercise: Exercise, source: str | None) -> bool:
    """True when the answer has a loop and the first solution does without."""

    def has_loop(code: str) -> bool:
        try:
            tree = ast.parse(textwrap.dedent(code))
        except SyntaxError:
            return False
        return any(
            isinstance(node, ast.For | ast.While | ast.comprehension) for node in ast.walk(tree)
        )

    first = next((s for s in exercise.solutions if not isinstance(s.function, str)), None)
    if source is None or first is None:
        return False
    return has_loop(source) and not has_loop(first.source)


def is_blank(outcome: Outcome) -> bool:
    """The function is still a stub: it raises NotImplementedError or returns nothing."""
    if outcome.raised is None:
        return outcome.value is None
    # A left-over `...` used as an array. (The error of an einsum says "ellipsis" too: ValueError.)
    used = outcome.raised.type in ("AttributeError", "TypeError", "UnusableValue")
    return outcome.raised.type == "NotImplementedError" or (
        used and "ellipsis" in outcome.raised.message
    )


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
