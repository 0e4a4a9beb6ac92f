"""What somebody handed in: a notebook or a Python file, read without running it, then graded.

The code runs in a child process (:mod:`.isolate`); here it is only parsed.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .answers import check_answer, unchanged
from .call import STOPPED, Outcome, Raised
from .exercise import Exercise
from .grade import grade
from .isolate import Cell, Child, Limits
from .report import Report, error, not_attempted, timed_out

SETTLED_BY_MAGIC = ("%%time", "%%timeit", "%%capture", "%%prun")  # the rest of the cell is Python
MAGIC = re.compile(r"^(\s*)(?:[%!?].*|[\w.,\s]+=\s*[%!].*|.*\?)$")
PERCENT = re.compile(r"^# ?%%", re.MULTILINE)
LARGEST_INPUT = 10_000  # numbers; the input of a *catch* exercise is given to our own functions


@dataclass(frozen=True)
class Submission:
    """The cells of a file, and which exercise each answer is for."""

    path: Path
    cells: tuple[Cell, ...]
    notebook: bool
    asked: tuple[str, ...] = ()  # ids that the file's own cells name
    _trees: dict[int, ast.Module] = field(default_factory=dict, repr=False)

    @property
    def trees(self) -> list[ast.Module]:
        """The cells that are Python, parsed."""
        if not self._trees:
            parsed = ((i, parse(cell.source)) for i, cell in enumerate(self.cells))
            self._trees.update((i, tree) for i, tree in parsed if tree is not None)
        return list(self._trees.values())

    @property
    def uses_torch(self) -> bool:
        return any(module.split(".")[0] == "torch" for module in imported(self.trees))

    def definitions(self) -> dict[str, str]:
        """Name → the source of the statement that gave it its last value."""
        return {
            name: ast.unparse(node)
            for tree in self.trees
            for node in statements(tree.body)
            for name in names_bound(node)
        }

    def checks(self) -> dict[str, ast.expr]:
        """Exercise id → the first argument of ``check(answer, "exercise.id")``."""
        found = {}
        for tree in self.trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and called(node) == "check" and node.args:
                    words = {k.arg: k.value for k in node.keywords}
                    given = node.args[1] if len(node.args) > 1 else words.get("exercise")
                    if isinstance(given, ast.Constant) and isinstance(given.value, str):
                        found[given.value] = node.args[0]
        return found


@dataclass(frozen=True)
class Graded:
    """A file's reports, the cells that raised, and the last lines that it printed."""

    path: str
    reports: tuple[Report, ...]
    sources: tuple[str | None, ...] = ()
    problems: tuple[tuple[str, Raised], ...] = ()
    output: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return bool(self.reports) and all(report.status == "passed" for report in self.reports)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "path": self.path,
            "passed": self.passed,
            "reports": [report.to_dict() for report in self.reports],
            "problems": [{"cell": label, **vars(raised)} for label, raised in self.problems],
            "output": list(self.output),
        }

    def to_text(self) -> str:
        """The reports, one after the other, and how many passed."""
        parts = [report.to_text() for report in self.reports]
        parts += [problem_text(label, raised) for label, raised in self.problems]
        if self.output and not self.passed:
            parts.append("\n".join(["  It printed last:", *(f"    {s}" for s in self.output)]))
        count = sum(report.status == "passed" for report in self.reports)
        return "\n\n".join([*parts, f"{count} of {len(self.reports)} passed."])


def grade_file(path: str | Path, limits: Limits | None = None) -> Graded:
    """Grade every exercise that a notebook or a Python file answers.

    Raises OSError or ValueError when it cannot be read, LookupError when it answers none.
    """
    submission = read(path)
    answers = answered(submission)
    if not answers:
        raise LookupError(
            f"{path} answers no exercise: no cell, function or variable in it is named after one. "
            "`sdpa list` shows their names."
        )
    sources = submission.definitions()
    extra = [Cell(f"{a.name} = {a.expression}", "the check") for a in answers if a.expression]
    with Child(
        [*submission.cells, *extra],
        torch=submission.uses_torch,
        notebook=submission.notebook,
        folder=submission.path.parent,
        limits=limits,
    ) as child:
        reports = tuple(grade_answer(a, child, sources.get(a.name)) for a in answers)
        cells = [*submission.cells, *extra]
        problems = tuple((where(cells[i]), child.problems[i]) for i in sorted(child.problems))
        output = tuple(child.output.lines())
    return Graded(str(path), reports, tuple(sources.get(a.name) for a in answers), problems, output)


@dataclass(frozen=True)
class Answer:
    """An exercise and the variable, or else the expression, that answers it."""

    exercise: Exercise
    name: str
    expression: str = ""


def answered(submission: Submission) -> list[Answer]:
    """The exercises of a submission, in the order of the book."""
    from ..exercises import all_exercises

    checks, defined = submission.checks(), submission.definitions()
    spoken_for = {id.split(".")[-1] for id in (*submission.asked, *checks)}
    free = set(defined) - spoken_for  # a name means the first exercise that has it
    answers = []
    for i, exercise in enumerate(all_exercises()):
        given = checks.get(exercise.id, checks.get(exercise.name))
        if given is not None and not isinstance(given, ast.Name):
            answers.append(Answer(exercise, f"_answer_{i}", ast.unparse(given)))
        elif isinstance(given, ast.Name):
            answers.append(Answer(exercise, given.id))
        elif exercise.id in submission.asked or exercise.name in free:
            answers.append(Answer(exercise, exercise.name))
            free.discard(exercise.name)
    return answers


def grade_answer(answer: Answer, child: Child, source: str | None) -> Report:
    """Grade one answer of a submission that runs in a child process."""
    exercise = answer.exercise
    if exercise.kind in ("implement", "fix"):
        if source and exercise.kind == "fix" and unchanged(exercise, lambda: None, source):
            return not_attempted(exercise, "The function is still as it was given.")
        backend = backend_of(exercise, child, answer.name)
        return grade(exercise, child.runner(answer.name, backend, exercise.built_from))
    outcome = (child.produce if exercise.kind == "catch" else child.read)(answer.name)
    if outcome.raised:
        return report_of_raised(exercise, outcome.raised)
    return grade_value(exercise, outcome.value)


def grade_value(exercise: Exercise, value: Any) -> Report:
    """Grade a value that came from a child process: numbers, text, or arrays of moderate size."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    is_catch = exercise.kind == "catch"
    if not is_catch and not isinstance(value, (int, float, str, type(None))):
        kind = "number" if exercise.kind == "predict" else "letter or letters in a string"
        return error(exercise, f"Expected a {kind}, got {type(value).__name__}.")
    if is_catch and (size := numbers_in(value)) > LARGEST_INPUT:
        return error(exercise, f"Expected an input of at most {LARGEST_INPUT} numbers, got {size}.")
    with np.errstate(all="ignore"):
        return check_answer(exercise, value)


def report_of_raised(exercise: Exercise, raised: Raised) -> Report:
    if raised.type == "NotImplementedError":
        return not_attempted(exercise)
    if raised.type in STOPPED:
        return timed_out(exercise, raised.message)
    return Report(exercise.id, exercise.title, "error", raised=raised, link=exercise.link)


def numbers_in(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(numbers_in, value.values()))
    if isinstance(value, tuple):
        return sum(map(numbers_in, value))
    return value.size if isinstance(value, np.ndarray) else 1


def backend_of(exercise: Exercise, child: Child, name: str) -> str:
    """What a function is written in, seen from what it accepts and returns."""
    if "torch" not in exercise.backends or not child.torch:
        return "numpy"
    probe = exercise.probes[0]
    as_numpy = child.runner(name)(probe.fresh())
    if stopped(as_numpy) or not as_numpy.raised:
        return as_numpy.backend
    as_torch = child.runner(name, "torch")(probe.fresh())
    return "numpy" if stopped(as_torch) or as_torch.raised else "torch"


def stopped(outcome: Outcome) -> bool:
    return outcome.raised is not None and outcome.raised.type in STOPPED


# -- reading ---------------------------------------------------------------------------------------


def read(path: str | Path) -> Submission:
    """Read a notebook (.ipynb) or a Python file. Raises OSError or ValueError if that fails."""
    path = Path(path)
    if path.suffix not in (".ipynb", ".py"):
        raise ValueError(f"{path}: expected a notebook (.ipynb) or a Python file (.py)")
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    if path.suffix == ".py":
        return Submission(path, tuple(cells_of_script(text, path.name)), notebook=False)
    try:
        cells = json.loads(text)["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in code]
        asked = [cell.get("metadata", {}).get("sdpa", {}).get("exercise") for cell in code]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        raise ValueError(f"{path} is not a notebook: {type(problem).__name__}: {problem}") from None
    numbered = enumerate(sources, 1)
    return Submission(
        path,
        tuple(Cell(without_magics(source), f"cell {number}") for number, source in numbered),
        notebook=True,
        asked=tuple(id for id in asked if isinstance(id, str)),
    )


def cells_of_script(text: str, label: str) -> Iterator[Cell]:
    """Percent cells where there are any; else each statement by itself, so that one may fail."""
    if PERCENT.search(text):
        starts = [0, *(match.start() for match in PERCENT.finditer(text)), len(text)]
        for start, end in itertools.pairwise(starts):
            line = text.count("\n", 0, start) + 1
            yield Cell(without_magics(text[start:end]), label, line)
        return
    tree = parse(text)
    if tree is None:
        yield Cell(text, label)
        return
    lines, done = text.splitlines(keepends=True), 0
    for node in tree.body:
        start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        if start > done:  # else it stands on the line of the one before, which ran it too
            end = max(n.end_lineno or 0 for n in tree.body if n.lineno <= (node.end_lineno or 0))
            yield Cell("".join(lines[start - 1 : end]), label, start)
            done = end


def without_magics(source: str) -> str:
    """A cell without IPython's own commands. A cell that is Python already stays as it is."""
    if parse(source) is not None:
        return source
    first, _, rest = source.lstrip().partition("\n")
    if first.startswith("%%"):
        return "\n" + without_magics(rest) if first.split()[0] in SETTLED_BY_MAGIC else ""
    lines = [MAGIC.sub(r"\1pass", line) for line in source.splitlines()]
    cleaned = "\n".join(lines)
    return cleaned if parse(cleaned) is not None else source


def parse(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def statements(body: Sequence[ast.AST]) -> Iterator[ast.stmt]:
    """The statements of a module, those in its branches and loops too, not those in functions."""
    for node in body:
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)):
            yield from statements(list(ast.iter_child_nodes(node)))


def names_bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement gives a value to."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name for alias in node.names)


def imported(trees: Sequence[ast.Module]) -> Iterator[str]:
    """The modules that are imported anywhere, inside functions too."""
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module or ""
            elif isinstance(node, ast.Constant) and node.value == "torch":
                yield "torch"  # as in importlib.import_module("torch")


def called(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def where(cell: Cell) -> str:
    return cell.label if cell.line == 1 else f"{cell.label}, line {cell.line}"


def problem_text(label: str, raised: Raised) -> str:
    lines = [f"  {label} raised {raised.type}: {raised.message}"]
    return "\n".join([*lines, *(f"    {line}" for line in raised.trace.splitlines())])
