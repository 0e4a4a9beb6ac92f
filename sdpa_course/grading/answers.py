"""From an answer of any kind to a report."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .call import LocalRunner, TimeUp, UnusableValue, describe, plain, time_limit
from .compare import SEPARATION, outcome_distance, tolerance
from .diagnose import outcome_of
from .exercise import Exercise, Inputs, Probe
from .grade import grade
from .report import Report, error, failed, not_attempted, passed, timed_out

SECONDS = 20.0


def check_answer(
    exercise: Exercise,
    answer: Any,
    *,
    backend: str | None = None,
    source: str | None = None,
    seed: int | None = None,
) -> Report:
    """Grade in this process an answer of any kind: a function, a value, lines, an input."""
    try:
        with time_limit(SECONDS), np.errstate(all="ignore"):
            if exercise.kind in ("implement", "fix"):
                return check_function(exercise, answer, backend, source, seed)
            return {
                "parsons": check_order,
                "predict": check_number,
                "quiz": check_choice,
                "catch": check_catch,
            }[exercise.kind](exercise, answer)
    except TimeUp:
        return timed_out(exercise, f"still running after {SECONDS:g} s")


def check_function(
    exercise: Exercise, answer: Any, backend: str | None, source: str | None, seed: int | None
) -> Report:
    if answer is None:
        return not_attempted(exercise)
    if not callable(answer):
        return error(
            exercise, f"Expected a function called {exercise.name}, got {type(answer).__name__}."
        )
    source = written_source(answer) if source is None else source
    if exercise.kind == "fix" and unchanged(exercise, answer, source):
        return not_attempted(exercise, "The function is still as it was given.")
    runner = LocalRunner(answer, backend or backend_of(exercise, answer), exercise.built_from)
    return grade(exercise, runner, source=source, seed=seed)


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
    return grade(exercise, LocalRunner(function))


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
        why = f"{right.raised.type}: {right.raised.message}"
        note = f"The right function does not accept this input: {why}"
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
        if isinstance(given, np.ndarray) and given.shape == (len(names),) != (1,):
            parts = tuple(given)  # a pair of numbers, made an array on its way here
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


def backend_of(exercise: Exercise, function: Callable[..., Any]) -> str:
    """What the function is written in, seen from what it returns or accepts."""
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
    return "torch" in sys.modules


def mentions_torch(function: Callable[..., Any]) -> bool:
    known = getattr(function, "__globals__", {})
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    return any(
        n == "torch" or getattr(known.get(n), "__name__", "").startswith("torch") for n in names
    )


def unchanged(exercise: Exercise, answer: Callable[..., Any], source: str | None) -> bool:
    """In *fix*: the code is the broken code that was given, comments and spacing apart."""
    if source is not None:
        return same_code(source, exercise.stub_source)
    given, code = (getattr(f, "__code__", None) for f in (exercise.stub_function, answer))
    if given is None or code is None:
        return False
    return (code.co_code, code.co_consts) == (given.co_code, given.co_consts)


def written_source(answer: Any) -> str | None:
    """What the learner wrote, as far as Python can tell."""
    try:
        return inspect.getsource(answer) if callable(answer) else repr(answer)
    except (OSError, TypeError):
        return None


def same_code(a: str, b: str) -> bool:
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
