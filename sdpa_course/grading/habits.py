"""Mistakes that show in how a function behaves, not in the values it returns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .call import Outcome, Runner, identical, plain
from .compare import EPSILON, MATCH, dtype_of, outcome_distance, tolerance
from .diagnose import outcome_of
from .exercise import Exercise, Fault, Inputs, Probe

RANDOM_PROBES = 3


def habits(
    exercise: Exercise, runner: Runner, outcomes: list[Outcome], seed: int
) -> tuple[Fault, ...]:
    """Faults that show only in how a function behaves, not in the values it returns."""
    found: list[Fault] = []
    probe, first = exercise.probes[0], outcomes[0]
    if called := runner(probe.fresh(), "calls").called:
        found.append(USES.named(f"`{called[0]}`"))
    if changed := sorted({name for o in outcomes for name in o.changed}):
        found.append(MUTATES.named(" and ".join(f"`{name}`" for name in changed)))
    again = runner(probe.fresh())
    if not identical(again.value, first.value) and outcome_distance(again, first) > MATCH:
        return (*found, DIFFERS)  # what follows compares one call with another
    if outcome_distance(turned := runner(transposed_in_memory(probe)), first) > MATCH:
        found.append(LAYOUT.named(f": {turned.raised.message}" if turned.raised else ""))
    wanted, got = dtype_of(plain(exercise.expected[0])), dtype_of(first.value)
    if wanted.kind != got.kind or (wanted.kind == "f" and got.itemsize < wanted.itemsize):
        found.append(DTYPE.named(f"{got}", f"{wanted}"))
    if (fixed_only := random_failure(exercise, runner, seed)) is not None:
        found.append(FIXED_ONLY.named(f"{seed}", fixed_only))
    if runner.backend == "torch" and wanted.kind == "f" and not found:
        found += torch_habits(exercise, runner, probe)
    return tuple(found)


def transposed_in_memory(probe: Probe) -> Inputs:
    """The same numbers in another memory layout: arrays that are not contiguous."""
    return {
        name: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) if np.ndim(x) > 1 else x
        for name, x in probe.fresh().items()
    }


def random_failure(exercise: Exercise, runner: Runner, seed: int) -> str | None:
    """The goal of a random probe that fails, if one does: "sizes B=3, L=7…"."""
    if exercise.make_inputs is None:
        return None
    for probe in random_probes(exercise, seed):
        expected = outcome_of(exercise.run, probe)
        outcome = runner(probe.fresh())
        if outcome_distance(expected, outcome) > max(
            tolerance(probe, dtype_of(expected.value)), 4 * EPSILON
        ):  # a constant that was small enough for the fixed probes is so for these
            return probe.goal
    return None


def random_probes(exercise: Exercise, seed: int, count: int = RANDOM_PROBES) -> list[Probe]:
    """Inputs of random, mutually different sizes; 4 is left out, as 4 ** 1/2 is √4."""
    assert exercise.make_inputs is not None
    probes = []
    for i in range(count):
        rng = np.random.default_rng([seed, i])
        names = list(exercise.dims())
        pool = [2, 3, 5, 6, 7, 8, 9, 10, 11, 12]
        sizes = dict(zip(names, map(int, rng.permutation(pool)), strict=False))
        inputs = exercise.make_inputs(rng, **sizes)
        sizes |= {name: inputs[name] for name in names if name in inputs}  # such as an L ≤ S
        goal = ", ".join(f"{name}={size}" for name, size in sizes.items())
        probes.append(Probe(f"random sizes {goal}", inputs, sizes, seed))
    return probes


def torch_habits(exercise: Exercise, runner: Runner, probe: Probe) -> list[Fault]:
    found: list[Fault] = []
    grads = runner(probe.fresh(), "gradient")
    if grads.raised or (isinstance(grads.value, tuple) and any(g is None for g in grads.value)):
        found.append(NO_GRADIENT)
    single = {
        n: x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype == np.float64 else x
        for n, x in probe.fresh().items()
    }
    outcome = runner(single)
    if not outcome.raised and dtype_of(outcome.value) == np.float64:
        found.append(DOUBLE)
    meta = runner(probe.fresh(), "meta")
    if meta.raised and "meta" in meta.raised.message and "device" in meta.raised.message:
        found.append(DEVICE)
    return found


class Habit(Fault):
    """A fault of the engine's own, whose sentence names what was seen."""

    def named(self, *what: str) -> Fault:
        return replace(self, says=self.says.format(*what))


USES = Habit(
    "uses.the_answer",
    "You call {}, which is the function this exercise asks you to build.",
    "In your own work it is the thing to call. Here, write it out once.",
)
MUTATES = Habit(
    "inputs.mutated",
    "You change {} in place.",
    "The caller still holds that array, and finds other numbers in it. Work on a new array.",
)
DIFFERS = Habit(
    "calls.differ",
    "A second call with the same inputs gives another result.",
    "Something is kept between calls, or drawn at random.",
)
LAYOUT = Habit(
    "inputs.layout",
    "Your function fails for arrays that are not contiguous in memory{}.",
    "A transposed array holds the same numbers in another order. Use reshape, not view.",
)
DTYPE = Habit(
    "dtype.changed",
    "You return {}, expected {}.",
    "The result keeps the precision and the kind of the inputs.",
)
FIXED_ONLY = Habit(
    "probes.fixed_only",
    "Right on the fixed inputs, wrong on others drawn with seed {}: {}.",
    "An answer has to hold for every input of the stated shapes.",
)
ROUNDED = Habit(
    "dtype.rounded",
    "Your result is right to about six digits only.",
    "Something on the way was computed in lower precision than the inputs have, or a small constant"
    " such as 1e-6 was added where the formula has none.",
)
NO_GRADIENT = Habit(
    "torch.no_gradient",
    "No gradient reaches some of the inputs.",
    "The graph is cut: by .detach(), .data, .item(), NumPy, or an operation without a derivative.",
)
DOUBLE = Habit(
    "torch.float64_leak",
    "float32 inputs give a float64 result.",
    "A float64 tensor raises the precision of everything it meets, and costs speed.",
)
DEVICE = Habit(
    "torch.device",
    "You make a tensor on the CPU whatever the device of the inputs.",
    "On a GPU this raises an error. Give device=q.device where you make a tensor.",
)
HABITS = (USES, MUTATES, DIFFERS, LAYOUT, DTYPE, FIXED_ONLY, ROUNDED, NO_GRADIENT, DOUBLE, DEVICE)
