"""Which mistakes reproduce what the learner's function returned.

Faults compose, so the search tries one, then two, then three of them at once until some variant of
the model returns on every probe what the learner's function returned. A continuous setting that no
list holds is fitted to the output instead (:mod:`.fit`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .call import Outcome, UnusableValue, plain
from .compare import FAR, MATCH, distance, outcome_distance
from .exercise import Exercise, Fault, Probe
from .fit import fitted_fault


@dataclass(frozen=True)
class Diagnosis:
    """The faults that together reproduce every output, or the nearest one, which does not."""

    faults: tuple[Fault, ...] = ()
    nearest: Fault | None = None
    tried: int = 0


def outcome_of(program: Callable[..., Any], probe: Probe) -> Outcome:
    """What one of our own programs makes of a probe. They do not change their inputs."""
    try:
        with np.errstate(all="ignore"):
            return Outcome(plain(program(**probe.inputs)))
    except UnusableValue:
        raise
    except Exception as error:
        from .call import Raised

        return Outcome(raised=Raised(type(error).__name__, str(error)))


class Evidence:
    """What the learner's function did on each probe, the most telling probes first."""

    def __init__(
        self, probes: Sequence[Probe], outcomes: Sequence[Outcome], match: float = MATCH
    ) -> None:
        def cost(pair: tuple[Probe, Outcome]) -> tuple[bool, bool, int]:
            probe, outcome = pair
            size = sum(x.size for x in probe.inputs.values() if isinstance(x, np.ndarray))
            return outcome.raised is not None, not finite(outcome.value), size

        self.pairs = sorted(zip(probes, outcomes, strict=True), key=cost)
        self.match = match
        self.tried = 0

    @property
    def speaks(self) -> bool:
        """False when every call raised: then any fault that raises would fit."""
        return any(outcome.raised is None for _, outcome in self.pairs)

    def reproduced_by(self, program: Callable[..., Any]) -> bool:
        self.tried += 1
        return all(outcome_distance(outcome_of(program, p), o) <= self.match for p, o in self.pairs)

    def distance_to(self, program: Callable[..., Any]) -> float:
        """Mean distance over the probes, each counted as 1 at most."""
        gaps = [min(1.0, outcome_distance(outcome_of(program, p), o)) for p, o in self.pairs]
        return sum(gaps) / len(gaps)

    def allows(self, exercise: Exercise) -> list[Fault]:
        """The faults that break nothing which the learner has right, on any probe.

        Mistakes seldom cancel, so that of three at once each is one of these.
        """
        right = [outcome_of(exercise.run, probe) for probe, _ in self.pairs]

        def breaks_what_is_right(fault: Fault) -> bool:
            for (probe, outcome), reference in zip(self.pairs, right, strict=True):
                if outcome.raised:
                    continue
                alone = outcome_of(exercise.variant(fault), probe)
                if alone.raised:
                    return True
                triples = zip(*map(parts, (alone, outcome, reference)), strict=False)
                if any(distance(o, r) <= self.match < distance(a, r) for a, o, r in triples):
                    return True
            return False

        return [f for f in exercise.faults if not f.program and not breaks_what_is_right(f)]


def parts(outcome: Outcome) -> tuple[Any, ...]:
    return outcome.value if isinstance(outcome.value, tuple) else (outcome.value,)


def finite(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(finite, value))
    return isinstance(value, np.ndarray) and bool(np.isfinite(value).all())


def diagnose(
    exercise: Exercise,
    probes: Sequence[Probe],
    outcomes: Sequence[Outcome],
    *,
    seconds: float = 0.3,
    match: float = MATCH,
) -> Diagnosis:
    """Find the smallest set of faults that reproduces every outcome to within ``match``.

    One and two faults are tried always, and three that break nothing the learner has right; other
    threes, and fours, while fewer than ``seconds`` of processor time were used: a busy machine does
    not change what is found.
    """
    evidence = Evidence(probes, outcomes, match)
    if not evidence.speaks:
        return Diagnosis()
    end = time.process_time() + seconds
    for faults in candidates(exercise, evidence, end):
        return Diagnosis(faults, tried=evidence.tried)
    return Diagnosis(nearest=nearest(exercise, evidence), tried=evidence.tried)


def candidates(exercise: Exercise, evidence: Evidence, end: float) -> Iterator[tuple[Fault, ...]]:
    """The sets of faults that reproduce the evidence, smaller sets first."""

    def sets(size: int, among: list[Fault] | None = None) -> Iterator[tuple[Fault, ...]]:
        for faults in exercise.combinations(size, among):
            if size > 2 and (size > 3 or among is None) and time.process_time() > end:
                return
            if evidence.reproduced_by(exercise.variant(*faults)):
                yield faults

    def fits(size: int) -> Iterator[tuple[Fault, ...]]:
        for fit in exercise.fits:
            for others in exercise.combinations(size) if size else [()]:
                if any(f.program or fit.switch in f.switches for f in others):
                    continue
                if size and time.process_time() > end:
                    return
                found = fitted_fault(exercise, fit, others, evidence.pairs, evidence.match)
                if found is not None:
                    yield (found, *others)

    yield from sets(1)
    yield from sets(2)
    yield from fits(0)
    likely = evidence.allows(exercise)
    yield from sets(3, likely)
    yield from sets(3)  # mistakes that undo each other in part, while time is left
    yield from fits(1)
    yield from fits(2)
    yield from sets(4, likely)


def nearest(exercise: Exercise, evidence: Evidence) -> Fault | None:
    """The single fault that comes closest, if it comes clearly closer than the right answer."""
    gaps = [
        (evidence.distance_to(exercise.variant(fault)), i)
        for i, fault in enumerate(exercise.faults)
    ]
    if not gaps:
        return None
    gap, i = min(gaps)
    return (
        exercise.faults[i] if gap < 0.5 * evidence.distance_to(exercise.run) and gap < FAR else None
    )
