"""The exercise notebook of a chapter, made from the declarations of its exercises.

A notebook is JSON, so this needs no other package: `sdpa start` can make one wherever the course is
installed.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from .exercise import Exercise, Solution, source_of

Cell = dict[str, Any]

IMPORTS = "import numpy as np\n\nfrom sdpa_course import check, hint, solution"
HOW = """\
Write your answer in the cell under each exercise, run it, then run the `check` cell below it. The
check says which mistake it sees; there are no hidden tests.

`hint("{example}")` gives a hint, one after each attempt;
`solution("{example}")` shows a worked solution."""
ANSWER = {
    "parsons": "Set `{name}` to the letters of the lines in order.",
    "predict": "Set `{name}` to your number.",
    "quiz": "Set `{name}` to the letter.",
}
FIRST = "Commit to an answer before you compute anything."
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def file_name(number: str, concept: str) -> str:
    """What a chapter's notebooks are called, in ``book/`` and in ``exercises/``."""
    return f"{number}-{concept}.ipynb"


def notebook(number: str, concept: str, exercises: Sequence[Exercise]) -> dict[str, Any]:
    """The exercise notebook of a chapter, as nobody has touched it yet."""
    cells = [text("title", heading(number, concept, exercises[0])), code("imports", IMPORTS)]
    for place, exercise in enumerate(exercises, 1):
        cells += cells_of(exercise, place)
    return {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def heading(number: str, concept: str, example: Exercise) -> str:
    title = concept.replace("_", " ").capitalize()
    chapter = f"[{number} {title}](../book/{file_name(number, concept)})"
    how = HOW.format(example=example.id)
    return f"# Exercises {number}: {title}\n\n{how}\n\nChapter: {chapter}"


def cells_of(exercise: Exercise, place: int) -> list[Cell]:
    """What to do, a place to do it, and the check."""
    stem = re.sub(r"\W|_", "-", exercise.name)
    answer = code(stem, stub(exercise), {"sdpa": {"exercise": exercise.id}})
    return [
        text(f"{stem}-text", statement(exercise, place)),
        answer,
        code(f"{stem}-check", check_source(exercise)),
    ]


def statement(exercise: Exercise, place: int) -> str:
    """The exercise in words, with its lines to order or its options to choose from."""
    parts = [f"## {place}. {exercise.title}", exercise.statement.strip()]
    if exercise.lines:
        listed = "\n".join(f"{letter}    {line}" for letter, line in exercise.lines.items())
        parts.append(f"```text\n{exercise.header}\n{listed}\n```")
    if exercise.options:
        parts.append("\n".join(f"- **{o.letter}** {o.text}" for o in exercise.options))
    if exercise.kind in ANSWER and f"`{exercise.name}`" not in exercise.statement:
        parts.append(ANSWER[exercise.kind].format(name=exercise.name))
    parts += [FIRST] if exercise.kind == "predict" else []
    return "\n\n".join(parts)


def stub(exercise: Exercise) -> str:
    """What stands in the cell before the learner types anything."""
    if exercise.kind != "catch" or exercise.stub_function is not None:
        return exercise.stub_source
    parameters = inspect.signature(exercise.run).parameters.values()
    names = ", ".join(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
    says = f"{names}, on which the wrong function shows itself."
    return f'def {exercise.name}():\n    """Return {says}"""\n    raise NotImplementedError\n'


def check_source(exercise: Exercise) -> str:
    """The line that asks for a grade."""
    if exercise.kind in ANSWER:
        return f'check({exercise.name}, "{exercise.id}")'
    return f"check({exercise.name})"


def text(id: str, source: str) -> Cell:
    return {"cell_type": "markdown", "id": id[:64], "metadata": {}, "source": as_lines(source)}


def code(id: str, source: str, metadata: dict[str, Any] | None = None) -> Cell:
    words = {"metadata": metadata or {}, "source": as_lines(source.rstrip())}
    return {"cell_type": "code", "id": id[:64], "execution_count": 1, "outputs": [], **words}


def as_lines(source: str) -> list[str]:
    return source.splitlines(keepends=True)


def as_text(made: dict[str, Any]) -> str:
    """The notebook's file, written as Jupyter writes it."""
    return json.dumps(made, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


# -- with its outputs, and with the answers filled in --------------------------------------------


def with_outputs(made: dict[str, Any], check: Callable[[str], Any]) -> dict[str, Any]:
    """The notebook with the report under each check; ``check(exercise id)`` gives the report."""
    asked = ""
    for cell in made["cells"]:
        asked = exercise_of(cell) or asked
        if cell["id"].endswith("-check"):
            report = check(asked)
            data = {
                "text/html": as_lines(report.to_html()),
                "text/plain": as_lines(report.to_text()),
            }
            words = {"data": data, "execution_count": 1, "metadata": {}}
            cell["outputs"] = [{"output_type": "execute_result", **words}]
    return made


def solved(
    made: dict[str, Any], exercises: Sequence[Exercise], backend: str = "numpy"
) -> dict[str, Any]:
    """The notebook with a right answer to every exercise; in NumPy where there is no other."""
    answers = {exercise.id: answer_source(exercise, backend) for exercise in exercises}
    for cell in made["cells"]:
        if cell["id"] == "imports" and backend == "torch":
            cell["source"] = as_lines(f"{IMPORTS}\nimport torch")
        if (id := exercise_of(cell)) is not None:
            cell["source"] = as_lines(answers[id])
    return made


def exercise_of(cell: Cell) -> str | None:
    """The exercise that a cell answers."""
    return cell["metadata"].get("sdpa", {}).get("exercise")


def answer_source(exercise: Exercise, backend: str) -> str:
    """A right answer as the code of a cell."""
    if exercise.kind == "predict":
        return f"{exercise.name} = {float(exercise.run())!r}"
    found = preferred(exercise.solutions, backend)
    if isinstance(found.function, str):
        return f"{exercise.name} = {found.function!r}"
    source = source_of(found.function, exercise.name)
    return "\n".join([*imports_for(found.function, source), source])


def preferred(solutions: Sequence[Solution], backend: str) -> Solution:
    return next((s for s in solutions if s.backend == backend), solutions[0])


def imports_for(function: Callable[..., Any], source: str) -> list[str]:
    """Imports of the modules that a function finds beside it."""
    known = getattr(function, "__globals__", {})
    used = [n for n in getattr(getattr(function, "__code__", None), "co_names", ()) if n in known]
    modules = {n: known[n].__name__ for n in used if type(known[n]).__name__ == "module"}
    torch = ["import torch"] if "torch" not in modules and re.search(r"\btorch\.", source) else []
    return torch + [f"import {module} as {name}" for name, module in modules.items()]
