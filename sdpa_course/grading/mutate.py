"""Small automatic changes to a right solution: each is a wrong answer, unless it changes nothing.

The catalogue of faults holds the mistakes people are known to make. Mutants are the mistakes nobody
thought of: an operator exchanged, an axis moved, a constant off by one, a line left out. The grader
must reject every one that is not equivalent to the solution.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .call import LocalRunner, TimeUp, time_limit
from .compare import EPSILON, dtype_of, outcome_distance, tolerance
from .diagnose import outcome_of
from .exercise import Exercise, Probe, Solution
from .grade import goals
from .habits import habits, random_probes

OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.Pow: (ast.Mult,),
    ast.FloorDiv: (ast.Div,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}
NAMES = {
    "max": "min",
    "min": "max",
    "maximum": "minimum",
    "sum": "mean",
    "tril": "triu",
    "triu": "tril",
    "exp": "exp2",
    "log": "log2",
    "sqrt": "abs",
    "ones": "zeros",
    "zeros": "ones",
    "repeat": "tile",
    "all": "any",
    "any": "all",
}
RANDOM_PROBES = 40
SECONDS = 5.0


@dataclass(frozen=True)
class Mutant:
    """One changed solution: the line as it was and as it is."""

    exercise: str
    line: int
    was: str
    now: str
    outcome: str  # "rejected", "equivalent" or "passed"


def mutants_of(source: str) -> Iterator[tuple[int, ast.Module]]:
    """Every program that differs from this one in one place, with the line of that place."""
    tree = ast.parse(textwrap.dedent(source))
    places = [
        (i, change)
        for i, node in enumerate(ast.walk(tree))
        for change in range(len(list(changes(node))))
    ]
    for i, change in places:
        changed = copy.deepcopy(tree)
        node = list(ast.walk(changed))[i]
        list(changes(node))[change]()
        yield getattr(node, "lineno", 0), ast.fix_missing_locations(changed)


def changes(node: ast.AST) -> Iterator[Callable[[], None]]:
    """The small changes this node admits, as functions that make them in place."""

    def put(field: str, value: Any) -> Callable[[], None]:
        return lambda: setattr(node, field, value)

    if isinstance(node, ast.BinOp | ast.AugAssign):
        for other in OPERATORS.get(type(node.op), ()):
            yield put("op", other())
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult | ast.Sub | ast.Div):
            left, right = node.left, node.right
            yield lambda: (put("left", right)(), put("right", left)())[0]
    elif isinstance(node, ast.Compare):
        for other in OPERATORS.get(type(node.ops[0]), ()):
            yield put("ops", [other()])
    elif isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
            yield put("op", ast.UAdd())
        elif isinstance(node.op, ast.USub) and isinstance(node.operand.value, int):  # type: ignore
            value = node.operand.value  # type: ignore[attr-defined]
            yield put("operand", ast.Constant(value + 1))
        elif isinstance(node.op, ast.Invert):
            yield put("op", ast.UAdd())
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield put("value", not node.value)
        elif isinstance(node.value, int):
            yield put("value", node.value + 1)
        elif isinstance(node.value, float) and np.isfinite(node.value):
            yield put("value", node.value * 2)
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield put("attr", NAMES[node.attr])
    elif isinstance(node, ast.FunctionDef):
        for i, line in enumerate(node.body[:-1]):
            if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)):
                yield put("body", [x for j, x in enumerate(node.body) if j != i])


def try_mutants(exercise: Exercise, solution: Solution) -> Iterator[Mutant]:
    """Grade every mutant of a solution written in NumPy."""
    function = inspect.unwrap(solution.function)
    original = ast.unparse(ast.parse(solution.source)).splitlines()
    for _, tree in mutants_of(solution.source):
        namespace = dict(function.__globals__)
        namespace.pop(exercise.name, None)  # the declaration may be called so too
        exec(compile(tree, "<mutant>", "exec"), namespace)
        changed = ast.unparse(tree).splitlines()
        line = next((i for i, (a, b) in enumerate(zip(original, changed)) if a != b), 0)  # noqa: B905
        outcome = judged(exercise, namespace[tree.body[0].name])  # type: ignore[attr-defined]
        yield Mutant(exercise.id, line + 1, original[line], changed[line], outcome)


def judged(exercise: Exercise, mutant: Callable[..., Any]) -> str:
    """What becomes of a mutant: rejected, or right on every input tried, or wrongly passed."""
    try:
        with time_limit(SECONDS):
            runner = LocalRunner(mutant, watch=exercise.built_from)
            outcomes = [runner(probe.fresh()) for probe in exercise.probes]
            if goals(exercise, outcomes)[1] or habits(exercise, runner, outcomes, seed=1):
                return "rejected"
            return "equivalent" if agrees(exercise, mutant) else "passed"
    except TimeUp:
        return "rejected"


def agrees(exercise: Exercise, mutant: Callable[..., Any]) -> bool:
    """True when the mutant returns what the reference returns on many more random inputs."""

    def close(probe: Probe) -> bool:
        right, got = outcome_of(exercise.run, probe), outcome_of(mutant, probe)
        return outcome_distance(right, got) <= max(tolerance(probe, dtype_of(right.value)), EPSILON)

    many = random_probes(exercise, 2, RANDOM_PROBES) if exercise.make_inputs else []
    return all(map(close, [*exercise.probes, *many]))
