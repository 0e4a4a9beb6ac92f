"""The exercise notebooks: made from the declarations, clean as shipped, passing when solved."""

import importlib.util
import json
import linecache

import make_exercises
import pytest

from sdpa_course.exercises import chapters, exercises_of
from sdpa_course.grading.notebook import as_text, notebook, solved
from sdpa_course.grading.submission import grade_file

CHAPTERS = list(chapters().items())
BACKENDS = ["numpy", *(["torch"] if importlib.util.find_spec("torch") else [])]
solved_by_chapter = pytest.mark.parametrize(("number", "concept"), CHAPTERS)
on_each_backend = pytest.mark.parametrize("backend", BACKENDS)


def run_cell(source, label, space):
    """Run it so that its source can be looked up, as a notebook does."""
    name = f"<{label}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), space)


def solved_notebook(number, concept, backend):
    exercises = exercises_of(concept)
    return solved(notebook(number, concept, exercises), exercises, backend)


@pytest.mark.parametrize("path", make_exercises.wanted_files(), ids=lambda path: path.name)
def test_a_notebook_is_what_the_declarations_make_it(path):
    wanted = make_exercises.wanted_files()[path]
    assert path.exists(), "python tools/make_exercises.py"
    assert path.read_text(encoding="utf-8") == wanted, "python tools/make_exercises.py"


def test_there_is_no_notebook_that_no_chapter_has():
    wanted = set(make_exercises.wanted_files())
    assert set(make_exercises.FOLDER.glob("*.ipynb")) == wanted


@solved_by_chapter
def test_as_shipped_every_check_says_not_attempted(number, concept):
    (text,) = [t for p, t in make_exercises.wanted_files().items() if p.name.startswith(number)]
    space, count = {}, 0
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and cell["id"].endswith("-check"):
            (output,) = cell["outputs"]
            report, count = eval(source, space), count + 1
            assert report.status == "not_attempted"
            assert repr(report) == "".join(output["data"]["text/plain"])
            assert report._repr_html_() == "".join(output["data"]["text/html"])
        elif cell["cell_type"] == "code":
            run_cell(source, cell["id"], space)
    assert count == len(exercises_of(concept))


@solved_by_chapter
@on_each_backend
def test_solved_it_runs_and_every_check_passes(number, concept, backend):
    space, reports = {}, []
    for cell in solved_notebook(number, concept, backend)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and cell["id"].endswith("-check"):
            reports.append(eval(source, space))
        elif cell["cell_type"] == "code":
            run_cell(source, cell["id"], space)
    assert len(reports) == len(exercises_of(concept))
    assert [r.to_text() for r in reports if r.status != "passed"] == []


@solved_by_chapter
@on_each_backend
def test_the_command_agrees_with_the_notebook(tmp_path, number, concept, backend):
    path = tmp_path / "solved.ipynb"
    path.write_text(as_text(solved_notebook(number, concept, backend)), encoding="utf-8")
    graded = grade_file(path)
    assert [r.to_text() for r in graded.reports if r.status != "passed"] == []
    assert len(graded.reports) == len(exercises_of(concept))
    assert graded.problems == ()


@solved_by_chapter
def test_cell_ids_are_unique_and_valid(number, concept):
    ids = [cell["id"] for cell in notebook(number, concept, exercises_of(concept))["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(id.replace("-", "").isalnum() and len(id) <= 64 for id in ids)
