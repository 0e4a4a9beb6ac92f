"""From an answer to a report.

The order: is there an answer at all; does it return what the reference returns, on every probe; if
not, which mistakes explain what it returns; and if none does, what can be said all the same.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .call import LocalRunner, Outcome, Runner, TimeUp, UnusableValue, identical, plain, time_limit
from .compare import MATCH, SEPARATION, distance, outcome_distance, tolerance
from .diagnose import diagnose, outcome_of
from .exercise import Exercise, Fault, Inputs, Probe
from .report import Report
from .shrink import smallest_failure

SECONDS = 20.0
EPSILON = 2e-9  # a right answer with a small constant such as 1e-9 in a denominator is this far off
RANDOM_PROBES = 3


def check_answer(
    exercise: Exercise,
    answer: Any,
    *,
    backend: str | None = None,
    source: str | None = None,
    seed: int = 0,
) -> Report:
    """Grade an answer of any kind in this process: a function, a value, an order of lines, an input."""
    try:
        with time_limit(SECONDS):
            if exercise.kind in ("implement", "fix"):
                return check_function(exercise, answer, backend, source, seed)
            return {
                "parsons": check_order,
                "predict": check_number,
                "quiz": check_choice,
                "catch": check_catch,
            }[exercise.kind](exercise, answer)
    except TimeUp:
        return timed_out(exercise)


def check_function(
    exercise: Exercise, answer: Any, backend: str | None, source: str | None, seed: int
) -> Report:
    if answer is None:
        return not_attempted(exercise)
    if not callable(answer):
        return error(
            exercise, f"Expected a function called {exercise.name}, got {type(answer).__name__}."
        )
    if exercise.kind == "fix" and unchanged(exercise, answer, source):
        return not_attempted(exercise, "The function is still as it was given.")
    runner = LocalRunner(answer, backend or backend_of(exercise, answer), exercise.built_from)
    return grade(exercise, runner, seed=seed)


def check_order(exercise: Exercise, answer: Any) -> Report:
    """*parsons*: the lines are put together and the function is graded like any other."""
    letters = "".join(answer) if isinstance(answer, (list, tuple)) else answer
    if not letters:
        return not_attempted(exercise)
    if not isinstance(letters, str):
        return error(
            exercise, f'Expected the letters in order, such as "CAB", got {type(answer).__name__}.'
        )
    letters = "".join(c for c in letters.upper() if c not in " ,;-")
    if unknown := sorted(set(letters) - set(exercise.lines)):
        return error(
            exercise,
            f"There is no line {', '.join(unknown)}. The lines are {', '.join(exercise.lines)}.",
        )
    for fault in exercise.faults:
        if getattr(fault.program, "letters", None) == letters:
            return failed(exercise, faults=(fault,))
    try:
        function = exercise.assemble(letters)
    except SyntaxError as problem:
        return failed(
            exercise, notes=(f"These lines in this order are not Python: {problem.msg}.",)
        )
    return grade(exercise, LocalRunner(function), seed=0)


def check_number(exercise: Exercise, answer: Any) -> Report:
    """*predict*: the answer is compared with what is measured now."""
    if answer is None or answer == "":
        return not_attempted(exercise)
    try:
        guess = float(answer)
    except (TypeError, ValueError):
        return error(exercise, f"Expected a number, got {answer!r}.")
    measured, within = float(exercise.run()), exercise.tolerance or 0.05
    if abs(guess - measured) <= within * abs(measured):
        return passed(exercise, notes=(f"Measured: {measured:.3g}.",))
    for fault in exercise.faults:
        wrong = float(fault.program())  # type: ignore[misc]
        if abs(guess - wrong) <= 0.02 * max(abs(wrong), 1e-12):
            return failed(exercise, faults=(fault,))
    side = "large" if guess > measured else "small"
    return failed(exercise, notes=(f"You said {guess:.4g}. That is too {side}.",))


def check_choice(exercise: Exercise, answer: Any) -> Report:
    """*quiz*: one letter."""
    if answer is None or answer == "":
        return not_attempted(exercise)
    letters = [option.letter for option in exercise.options]
    choice = answer.strip().upper() if isinstance(answer, str) else answer
    if choice not in letters:
        return error(exercise, f"Expected one of {', '.join(letters)}, got {answer!r}.")
    option = exercise.options[letters.index(choice)]
    if option.right:
        return passed(exercise, notes=(option.says,))
    return failed(
        exercise, faults=(next(f for f in exercise.faults if f.program and f.program() == choice),)
    )


def check_catch(exercise: Exercise, answer: Any) -> Report:
    """*catch*: an input on which the wrong black box gives another result than the right one."""
    try:
        given = answer() if callable(answer) else answer
    except NotImplementedError:
        return not_attempted(exercise)
    except (Exception, SystemExit) as problem:
        from .call import describe

        return replace(error(exercise, ""), raised=describe(problem), notes=())
    if given is None:
        return not_attempted(exercise)
    try:
        inputs = as_inputs(exercise, given)
    except (TypeError, UnusableValue) as problem:
        return error(exercise, str(problem))
    for fault in exercise.faults:
        if fault.when is not None and judged(fault.when, inputs):
            return failed(exercise, faults=(fault,))
    assert exercise.box is not None
    probe = Probe("", inputs)
    right, wrong = outcome_of(exercise.run, probe), outcome_of(exercise.box, probe)
    if right.raised:
        note = f"The right function does not accept this input: {right.raised.type}: {right.raised.message}"
        return failed(exercise, notes=(note,))
    if outcome_distance(right, wrong) <= SEPARATION * tolerance(probe):
        return failed(exercise, notes=("Both functions give the same result on your input.",))
    what = f"raises {wrong.raised.type}" if wrong.raised else "gives another result"
    return passed(exercise, notes=(f"Caught: on your input the wrong function {what}.",))


def as_inputs(exercise: Exercise, given: Any) -> Inputs:
    """The learner's input under the names of the right function's parameters."""
    names = [
        p.name
        for p in inspect.signature(exercise.run).parameters.values()
        if p.kind is not p.KEYWORD_ONLY
    ]
    if not isinstance(given, Mapping):
        parts = given if isinstance(given, tuple) else (given,)
        if len(parts) != len(names):
            raise TypeError(f"Expected {len(names)} inputs ({', '.join(names)}), got {len(parts)}.")
        given = dict(zip(names, parts, strict=True))
    if set(given) != set(names):
        raise TypeError(
            f"Expected the inputs {', '.join(names)}, got {', '.join(map(str, given))}."
        )
    return {name: plain(given[name]) for name in names}


def judged(when: Callable[..., bool], inputs: Inputs) -> bool:
    """A predicate on inputs whose shapes may be anything."""
    try:
        return bool(when(**inputs))
    except (ValueError, IndexError, TypeError, AttributeError):
        return False


# -- functions -------------------------------------------------------------------------------


def grade(exercise: Exercise, runner: Runner, *, seed: int = 0) -> Report:
    """Grade a function that ``runner`` calls, here or in a child process."""
    probes = exercise.probes
    first = runner(probes[0].fresh())
    if is_blank(first):
        return not_attempted(exercise)
    if first.raised and first.raised.type in ("TimeUp", "Killed"):
        return timed_out(exercise, first)
    outcomes = [first]
    for probe in probes[1:]:
        outcomes.append(runner(probe.fresh()))
        if outcomes[-1].raised and outcomes[-1].raised.type in ("TimeUp", "Killed"):
            return timed_out(exercise, outcomes[-1])
    gaps = [gap(expected, o) for expected, o in zip(references(exercise), outcomes, strict=True)]
    limits = [tolerance(p, dtype_of(e)) for p, e in zip(probes, exercise.expected, strict=True)]
    reached = tuple(
        dict.fromkeys(
            p.goal for p, g, t in zip(probes, gaps, limits, strict=True) if g <= max(t, EPSILON)
        )
    )
    missed = tuple(
        dict.fromkeys(
            p.goal for p, g, t in zip(probes, gaps, limits, strict=True) if g > max(t, EPSILON)
        )
    )
    reached = tuple(goal for goal in reached if goal not in missed)
    if missed:
        return replace(explain(exercise, runner, outcomes, reached, missed), backend=runner.backend)
    faults, notes = habits(exercise, runner, outcomes, seed)
    if any(t < g for g, t in zip(gaps, limits, strict=True)):
        notes = (
            *notes,
            "Right, but off by a little more than rounding: a small constant in a denominator?",
        )
    if faults:
        return failed(exercise, faults=faults, done=reached, notes=notes, backend=runner.backend)
    return passed(exercise, done=reached, notes=notes, backend=runner.backend)


def references(exercise: Exercise) -> list[Outcome]:
    return [Outcome(plain(value)) for value in exercise.expected]


def gap(expected: Outcome, outcome: Outcome) -> float:
    return outcome_distance(expected, outcome)


def is_blank(outcome: Outcome) -> bool:
    """The function is still a stub: it raises NotImplementedError or returns nothing."""
    if outcome.raised:
        return (
            outcome.raised.type == "NotImplementedError" or "got ellipsis" in outcome.raised.message
        )
    return outcome.value is None


def dtype_of(value: Any) -> Any:
    part = value[0] if isinstance(value, tuple) else value
    return getattr(part, "dtype", np.dtype(np.float64))


def backend_of(exercise: Exercise, function: Callable[..., Any]) -> str:
    """What the function is written in: seen from what it returns, or accepts, on the first probe."""
    if "torch" not in exercise.backends or not torch_loaded():
        return "numpy"
    inputs = exercise.probes[0]
    as_numpy = LocalRunner(function)(inputs.fresh())
    if not as_numpy.raised:
        return as_numpy.backend
    if not LocalRunner(function, "torch")(inputs.fresh()).raised:
        return "torch"
    return "torch" if mentions_torch(function) else "numpy"


def torch_loaded() -> bool:
    import sys

    return "torch" in sys.modules


def mentions_torch(function: Callable[..., Any]) -> bool:
    known = getattr(function, "__globals__", {})
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    return any(
        n == "torch" or getattr(known.get(n), "__name__", "").startswith("torch") for n in names
    )


def unchanged(exercise: Exercise, answer: Callable[..., Any], source: str | None) -> bool:
    """In *fix*: the learner's code is the broken code that was given, comments and spacing apart."""
    if source is None:
        try:
            source = inspect.getsource(answer)
        except (OSError, TypeError):
            given = exercise.stub_function.__code__ if exercise.stub_function else None
            code = getattr(answer, "__code__", None)
            return (
                code is not None
                and given is not None
                and code.co_code == given.co_code
                and code.co_consts == given.co_consts
            )
    return same_code(source, exercise.stub_source)


def same_code(a: str, b: str) -> bool:
    import textwrap

    def shape(source: str) -> str:
        tree = ast.parse(textwrap.dedent(source)).body[0]
        if isinstance(tree, ast.FunctionDef):
            tree.decorator_list = []
            if ast.get_docstring(tree):
                tree.body = tree.body[1:]
        return ast.dump(tree)

    try:
        return shape(a) == shape(b)
    except (SyntaxError, IndexError):
        return False


# -- what a right answer must also do ----------------------------------------------------------


def habits(
    exercise: Exercise, runner: Runner, outcomes: list[Outcome], seed: int
) -> tuple[tuple[Fault, ...], tuple[str, ...]]:
    """Faults that show only in how a function behaves, not in the values it returns."""
    found: list[Fault] = []
    notes: list[str] = []
    probe, first = exercise.probes[0], outcomes[0]
    if called := runner(probe.fresh(), "calls").called:
        found.append(USES.named(f"`{called[0]}`"))
    if changed := sorted({name for o in outcomes for name in o.changed}):
        found.append(MUTATES.named(" and ".join(f"`{name}`" for name in changed)))
    again = runner(probe.fresh())
    if not identical(again.value, first.value) and outcome_distance(again, first) > MATCH:
        found.append(DIFFERS)
    for name, laid_out in layouts(probe):
        outcome = runner(laid_out)
        if outcome_distance(outcome, first) > MATCH:
            found.append(
                LAYOUT.named(
                    f"{name}{': ' + outcome.raised.message.splitlines()[0] if outcome.raised else ''}"
                )
            )
            break
    wanted, got = dtype_of(exercise.expected[0]), dtype_of(first.value)
    if wanted.kind != got.kind or (wanted.kind == "f" and got.itemsize < wanted.itemsize):
        found.append(DTYPE.named(f"{got}", f"{wanted}"))
    if (fixed_only := random_failure(exercise, runner, seed)) is not None:
        found.append(FIXED_ONLY.named(f"{seed}", fixed_only))
    if runner.backend == "torch" and wanted.kind == "f" and not found:
        found += torch_habits(exercise, runner, probe)
    return tuple(found), tuple(notes)


def layouts(probe: Probe) -> list[tuple[str, Inputs]]:
    """The same numbers in another memory layout."""
    arrays = {
        name: x for name, x in probe.fresh().items() if isinstance(x, np.ndarray) and x.ndim > 1
    }
    if not arrays:
        return []
    turned = {
        name: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
        for name, x in arrays.items()
    }
    return [("inputs that are not contiguous", {**probe.fresh(), **turned})]


def random_failure(exercise: Exercise, runner: Runner, seed: int) -> str | None:
    """The goal of a random probe that fails, if one does: "sizes B=3, L=7…"."""
    if exercise.make_inputs is None:
        return None
    for probe in random_probes(exercise, seed):
        expected = outcome_of(exercise.run, probe)
        outcome = runner(probe.fresh())
        if outcome_distance(expected, outcome) > max(
            tolerance(probe, dtype_of(expected.value)), EPSILON
        ):
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
        goal = ", ".join(f"{name}={size}" for name, size in sizes.items())
        probes.append(Probe(f"random sizes {goal}", inputs, sizes, seed))
    return probes


def torch_habits(exercise: Exercise, runner: Runner, probe: Probe) -> list[Fault]:
    found = []
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
    "It gives the right numbers, and in your own work it is the thing to call. Here, write it out once.",
)
MUTATES = Habit(
    "inputs.mutated",
    "You change {} in place.",
    "The caller still holds that array: after your function it no longer has the numbers it was given. Work on a new array.",
)
DIFFERS = Habit(
    "calls.differ",
    "A second call with the same inputs gives another result.",
    "Something is kept between calls, or drawn at random.",
)
LAYOUT = Habit(
    "inputs.layout",
    "Your function fails for {}.",
    "A transposed array has the same numbers in another order in memory. Use reshape, not view, and never rely on the order.",
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
    "Something on the way was computed in lower precision than the inputs have.",
)
NO_GRADIENT = Habit(
    "torch.no_gradient",
    "No gradient reaches some of the inputs.",
    "The graph is cut: by .detach(), .data, .item(), NumPy, or an operation that cannot be differentiated.",
)
DOUBLE = Habit(
    "torch.float64_leak",
    "float32 inputs give a float64 result.",
    "A NumPy scalar or a float64 tensor raises the precision of everything it meets, and halves the speed.",
)
DEVICE = Habit(
    "torch.device",
    "You make a tensor on the CPU whatever the device of the inputs.",
    "On a GPU this raises an error. Give device=q.device where you make a tensor.",
)
HABITS = (USES, MUTATES, DIFFERS, LAYOUT, DTYPE, FIXED_ONLY, ROUNDED, NO_GRADIENT, DOUBLE, DEVICE)


# -- explaining ----------------------------------------------------------------------------------


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
    if all(outcome_distance(e, o) <= 1e-5 for e, o in zip(expected, outcomes, strict=True)):
        return failed(exercise, faults=(ROUNDED, *extra), done=reached)
    if all(o.raised for o in outcomes):
        return replace(error(exercise, ""), raised=outcomes[0].raised, notes=(), missed=missed)
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
    """Of several returned arrays: which are right."""
    pairs = [
        (e.value, o.value)
        for e, o in zip(expected, outcomes, strict=True)
        if isinstance(o.value, tuple)
    ]
    if not pairs or not all(isinstance(e, tuple) and len(e) == len(a) for e, a in pairs):
        return []
    names = (
        exercise.outputs
        if len(exercise.outputs) == len(pairs[0][0])
        else tuple(map(str, range(len(pairs[0][0]))))
    )
    right = [all(distance(e[i], a[i]) <= MATCH for e, a in pairs) for i in range(len(names))]
    if any(right):
        good = " and ".join(n for n, ok in zip(names, right, strict=True) if ok)
        bad = " and ".join(n for n, ok in zip(names, right, strict=True) if not ok)
        return [
            f"Your {good} {'is' if sum(right) == 1 and not good.endswith('s') else 'are'} right; look at {bad}."
        ]
    return []


# -- reports ---------------------------------------------------------------------------------------


def not_attempted(exercise: Exercise, note: str = "") -> Report:
    return Report(
        exercise.id,
        exercise.title,
        "not_attempted",
        notes=(note,) if note else (),
        link=exercise.link,
    )


def passed(exercise: Exercise, **words: Any) -> Report:
    return Report(
        exercise.id, exercise.title, "passed", link=exercise.link, advice=exercise.next, **words
    )


def failed(exercise: Exercise, faults: tuple[Fault, ...] = (), **words: Any) -> Report:
    link = next((f.link for f in faults if f.link), exercise.link)
    return Report(exercise.id, exercise.title, "failed", mistakes=faults, link=link, **words)


def error(exercise: Exercise, note: str) -> Report:
    return Report(
        exercise.id, exercise.title, "error", notes=(note,) if note else (), link=exercise.link
    )


def timed_out(exercise: Exercise, outcome: Outcome | None = None) -> Report:
    why = (
        outcome.raised.message
        if outcome and outcome.raised
        else f"still running after {SECONDS:g} s"
    )
    note = f"Your code was stopped: {why}. Is there a loop that never ends?"
    return error(exercise, note)
