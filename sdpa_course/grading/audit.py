"""The grader is graded: every right answer passes, every mistake gets its own name and no other's.

``python -m sdpa_course.grading.audit [CONCEPT or EXERCISE ...]`` prints what does not
hold; the tests and the book's kill table call :func:`audit`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

import numpy as np

from .answers import check_answer
from .call import LocalRunner, plain
from .compare import MATCH, SEPARATION, distance, outcome_distance, tolerance
from .diagnose import outcome_of
from .exercise import Exercise, Fault, Fit, Probe
from .grade import grade
from .report import Report

FUNCTIONS = ("implement", "fix", "parsons")


@dataclass(frozen=True)
class Trial:
    """One answer of known worth, and what the grader said of it."""

    exercise: str
    kind: str  # "stub", "solution", "fault", "pair", "triple"
    what: str
    wanted: str  # a status, or the ids of the faults
    got: str

    @property
    def holds(self) -> bool:
        return self.wanted == self.got


def verdict(report: Report) -> str:
    return (
        " ".join(sorted(report.faults))
        if report.status == "failed" and report.faults
        else report.status
    )


def trials(exercise: Exercise, most_pairs: int = 10_000, most_triples: int = 0) -> Iterator[Trial]:
    """Every answer of known worth that the exercise declares."""

    def trial(kind: str, what: str, wanted: str, report: Report) -> Trial:
        return Trial(exercise.id, kind, what, wanted, verdict(report))

    stub = exercise.stub_function if exercise.stub_function else None
    yield trial(
        "stub",
        "as given",
        "not_attempted",
        check_answer(exercise, stub, source=exercise.stub_source),
    )
    if exercise.kind == "fix" and stub is not None:
        named = verdict(report := grade(exercise, LocalRunner(stub)))
        yield trial("stub", "its mistake is named", named if report.faults else "a fault", report)
    for i, (answer, backend, note) in enumerate(right_answers(exercise)):
        report = check_answer(
            exercise, answer, backend=backend, source="" if exercise.kind == "fix" else None
        )
        yield trial("solution", f"{i}: {note or backend or 'the first'}", "passed", report)
    for fault in exercise.faults:
        yield trial("fault", fault.id, fault.id, judge(exercise, fault))
    for fit in exercise.fits:
        value = unlisted(exercise, fit)
        fault = Fault(fit.id, "", switches={fit.switch: fit.setting(value)})
        report = judge(exercise, fault)
        wanted = verdict(report) if equal_programs(exercise, (fault,), report) else fit.id
        yield trial("fitted", f"{fit.id}: {value:.4g}", wanted, report)
    for kind, size, most in (("pair", 2, most_pairs), ("triple", 3, most_triples)):
        for faults in spread(list(exercise.combinations(size)) if most else [], most):
            names = " ".join(sorted(f.id for f in faults))
            report = judge(exercise, *faults)
            again = verdict(report)
            if again != names and equal_programs(exercise, faults, report):
                names = again  # another set of mistakes that is the same function
            if again == "error":
                names = again  # it raises on every input, and the learner sees where
            yield Trial(exercise.id, kind, " + ".join(f.id for f in faults), names, again)


def unlisted(exercise: Exercise, fit: Fit) -> float:
    """A wrong setting of a continuous switch that no fault declares."""
    right = fit.right(exercise.dims())
    if fit.integer:
        return fit.grid[-1]
    return 1.7 * right if np.isfinite(right) and right else 1.1 * fit.grid[len(fit.grid) // 3]


def spread(all_of_them: list[Any], most: int) -> Iterator[Any]:
    """At most so many, evenly spread."""
    step = max(1, -(-len(all_of_them) // most)) if most else 1
    return islice(all_of_them, 0, None, step)


def right_answers(exercise: Exercise) -> Iterator[tuple[Any, str | None, str]]:
    """Each declared solution that can be run here, as the learner would hand it in."""
    if exercise.kind == "predict":
        yield float(exercise.run()), None, "as measured"
        return
    for solution in exercise.solutions:
        if solution.backend == "torch" and "torch" not in sys.modules:
            continue
        yield (
            solution.function,
            solution.backend if exercise.kind in ("implement", "fix") else None,
            solution.note,
        )


def judge(exercise: Exercise, *faults: Fault) -> Report:
    """What the grader says of an answer with these mistakes."""
    program = exercise.variant(*faults)
    if exercise.kind in ("predict", "quiz"):
        return check_answer(exercise, program())
    if exercise.kind == "catch":
        return check_answer(exercise, program)
    return grade(exercise, LocalRunner(program))


def equal_programs(exercise: Exercise, faults: tuple[Fault, ...], report: Report) -> bool:
    """True when the mistakes that were named are, together, the same function as those made."""
    known = {f.id: f for f in exercise.faults}
    if report.status != "failed" or not all(id in known for id in report.faults):
        return False
    try:
        named = exercise.variant(*(known[id] for id in report.faults))
    except ValueError:
        return False
    return gap(exercise, exercise.variant(*faults), named) <= MATCH


def gap(exercise: Exercise, a: Callable[..., Any], b: Callable[..., Any]) -> float:
    """The largest distance of two programs over the probes."""
    return max(outcome_distance(outcome_of(a, p), outcome_of(b, p)) for p in exercise.probes)


def separations(exercise: Exercise) -> Iterator[tuple[str, float]]:
    """For every fault and every pair of them: how many tolerances apart on their best probe.

    An exercise with a gap below SEPARATION is refused, unless ``exceptions`` gives the reason.
    """
    if exercise.kind not in FUNCTIONS:
        return

    def apart(a: Callable[..., Any], b: Callable[..., Any]) -> float:
        return max(
            outcome_distance(outcome_of(a, p), outcome_of(b, p))
            / max(tolerance(p), MATCH / SEPARATION)
            for p in exercise.probes
        )

    for fault in exercise.faults:
        yield fault.id, apart(exercise.variant(fault), exercise.run)
    for a, b in combinations(exercise.faults, 2):
        yield f"{a.id} {b.id}", apart(exercise.variant(a), exercise.variant(b))


def refusals(exercise: Exercise) -> Iterator[str]:
    """Why this exercise may not be published; nothing when it may."""
    for names, apart in separations(exercise):
        if apart < SEPARATION and names not in exercise.exceptions:
            yield f"{exercise.id}: {names} lie only {apart:.3g} tolerances apart"
    if exercise.kind in FUNCTIONS:
        yield from self_contradictions(exercise)
        for backend in exercise.backends if exercise.kind != "parsons" else ():
            count = sum(s.backend == backend for s in exercise.solutions)
            if count < 2:
                yield f"{exercise.id}: {count} right solutions in {backend}, expected at least 2"
    if exercise.stub_function and exercise.make_inputs:
        wanted = list(inspect.signature(exercise.stub_function).parameters)
        for probe in exercise.probes:
            if list(probe.inputs) != wanted[: len(probe.inputs)]:
                yield f"{exercise.id}: the inputs are not in the order of the stub: {wanted}"
    for holds in exercise.properties:
        for probe in [p for p in exercise.probes if p.dims]:
            if (sentence := holds(LocalRunner(exercise.run), probe)) is not None:
                yield f"{exercise.id}: the reference itself is said to fail: {sentence}"
    if not exercise.faults:
        yield f"{exercise.id}: no mistake is declared"
    if len({f.id for f in exercise.faults}) < len(exercise.faults):
        yield f"{exercise.id}: two faults have one id"


def self_contradictions(exercise: Exercise) -> Iterator[str]:
    """Our own programs must not change their inputs, and must give the same answer twice."""
    for program, name in [
        (exercise.run, "model"),
        *((exercise.variant(f), f.id) for f in exercise.faults),
    ]:
        for probe in exercise.probes:
            given = Probe(probe.goal, probe.fresh())
            once, twice = outcome_of(program, given), outcome_of(program, given)
            if any(distance(plain(x), plain(given.inputs[n])) > 0 for n, x in probe.inputs.items()):
                yield f"{exercise.id}: {name} changes its inputs"
            if outcome_distance(once, twice) > 0:
                yield f"{exercise.id}: {name} differs between calls"
            if name == "model" and once.raised:
                yield f"{exercise.id}: the reference raises on {probe.goal!r}"


def audit(exercise: Exercise, **most: int) -> tuple[list[Trial], list[str]]:
    """All trials of an exercise and all reasons to refuse it."""
    with np.errstate(all="ignore"):
        return list(trials(exercise, **most)), list(refusals(exercise))


def main(names: list[str]) -> int:
    """Audit what is named, or everything. Returns the number of exercises with something wrong."""
    from ..exercises import all_exercises

    try:
        import torch  # noqa: F401  so that torch solutions are tried as well
    except ImportError:
        print("torch is not installed: its solutions are left out")
    bad = 0
    for exercise in all_exercises():
        if names and not {exercise.id, exercise.concept, exercise.name} & set(names):
            continue
        tried, refused = audit(exercise, most_triples=100)
        wrong = [t for t in tried if not t.holds]
        bad += bool(wrong or refused)
        print(f"{'ok ' if not wrong and not refused else 'BAD'} {exercise.id}: {len(tried)} trials")
        for t in wrong:
            print(f"    {t.kind} {t.what}: expected {t.wanted}, got {t.got}")
        for line in refused:
            print(f"    {line}")
    return bad


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
