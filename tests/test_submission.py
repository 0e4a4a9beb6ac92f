"""What is read from a notebook or a script, and that ordinary code is graded as in a kernel."""

import importlib.util
import json

import pytest

from sdpa_course.exercises import all_exercises, find
from sdpa_course.grading.isolate import Limits
from sdpa_course.grading.submission import answered, grade_file, read

RIGHT = "def scale_scores(q, k):\n    return q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5"
needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")


def notebook(path, *sources, ids=()):
    """A notebook of code cells; ``ids`` name the exercises of the last ones."""
    cells = [{"cell_type": "code", "source": s.splitlines(True), "metadata": {}} for s in sources]
    for cell, id in zip(cells[::-1], ids, strict=False):
        cell["metadata"] = {"sdpa": {"exercise": id}}
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    return path


@pytest.fixture
def grade(tmp_path):
    def graded(*sources, **words):
        path = notebook(tmp_path / "work.ipynb", *sources, **words)
        result = grade_file(path, Limits(seconds=5))
        return {r.exercise.split(".")[1]: r for r in result.reports}, result

    return graded


def test_every_exercise_is_found_by_its_name_alone():
    assert [e.id for e in all_exercises() if find(e.name) is not e] == []


def test_helpers_and_imports_of_earlier_cells_are_there(grade):
    reports, _ = grade(
        "import math",
        "def root(d):\n    return math.sqrt(d)",
        RIGHT.replace("** 0.5", "").replace("/ q.shape[-1] ", "/ root(q.shape[-1])"),
    )
    assert reports["scale_scores"].status == "passed"


def test_the_last_definition_counts(grade):
    reports, _ = grade(RIGHT.replace("** 0.5", ""), RIGHT)
    assert reports["scale_scores"].status == "passed"


def test_what_the_course_gives_a_learner_does_nothing_in_the_child(grade):
    reports, result = grade(
        "from sdpa_course import check, hint, solution, progress, review",
        RIGHT,
        "report = check(scale_scores)\nif report.faults: 1/0\nfor x in report.faults: 1/0",
        "display(check(scale_scores)); hint('x'); print(solution('x'), progress(), review())",
        "import sdpa_course; sdpa_course.check(scale_scores).to_dict()['status']",
    )
    assert reports["scale_scores"].status == "passed"
    assert [label for label, _ in result.problems] == ["cell 5"]  # no dictionary stands there


def test_a_cell_that_is_not_python_does_not_prevent_the_others(grade):
    reports, result = grade("def broken(:\n    pass", "%matplotlib inline\n!ls\nx = %pwd", RIGHT)
    assert reports["scale_scores"].status == "passed"
    assert [(label, raised.type) for label, raised in result.problems] == [
        ("cell 1", "SyntaxError")
    ]


@pytest.mark.parametrize(
    ("cell", "kept"),
    [
        ("%%time\nx = 1", "\nx = 1"),
        ("%%bash\nrm -r x", ""),
        ("x = (7\n     % 4)", "x = (7\n     % 4)"),
        ("if x:\n    !ls\n", "if x:\n    pass"),
        ('"""\n% not a magic\n"""', '"""\n% not a magic\n"""'),
    ],
)
def test_only_magics_are_dropped(tmp_path, cell, kept):
    (found,) = read(notebook(tmp_path / "work.ipynb", cell)).cells
    assert found.source == kept


def test_an_answer_under_another_name_is_found_by_its_check(grade):
    reports, _ = grade(
        RIGHT.replace("scale_scores", "mine"),
        'check(mine, "scaling.scale_scores")\ncheck("C", "scaling.what_the_scale_does")',
    )
    assert {name: r.status for name, r in reports.items()} == {
        "scale_scores": "passed",
        "what_the_scale_does": "passed",
    }


def test_an_exercise_whose_cell_was_emptied_is_not_attempted(grade):
    reports, _ = grade("x = 1", ids=["scaling.scale_scores"])
    assert reports["scale_scores"].status == "not_attempted"


def test_names_inside_functions_answer_nothing(tmp_path):
    path = notebook(
        tmp_path / "work.ipynb", "def f():\n    scale_scores = 1\n    return scale_scores"
    )
    assert answered(read(path)) == []


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ('"C"', "passed"),
        ('"A"', "failed"),
        ('""', "not_attempted"),
        ("None", "not_attempted"),
        ("7", "error"),
        ("[1, 2]", "error"),
        ("np.ones(3)", "error"),
        ("object()", "error"),
        ("1/0", "not_attempted"),
        ("lambda: 1", "error"),
    ],
)
def test_quiz_answers_of_every_kind(grade, value, status):
    reports, _ = grade("import numpy as np", f"what_the_scale_does = {value}")
    assert reports["what_the_scale_does"].status == status


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("np.float32(16)", "passed"),
        ("np.array(48)", "failed"),
        ('"many"', "error"),
        ("1j", "error"),
    ],
)
def test_predictions_of_every_kind(grade, value, status):
    right = float(find("score_variance_of_uniform").run())
    reports, _ = grade(
        "import numpy as np",
        f"score_variance_of_uniform = {value.replace('16', str(right))}",
    )
    assert reports["score_variance_of_uniform"].status == status


@pytest.mark.parametrize(
    ("returned", "status"),
    [
        ("np.ones((2, 5)), np.ones((3, 5))", "passed"),
        ("{'q': np.ones((2, 5)), 'k': np.ones((3, 5))}", "passed"),
        ("np.ones((2, 64)), np.ones((3, 64))", "failed"),
        ("np.ones((9000, 1)), np.ones((9000, 1))", "error"),
        ("np.ones(3)", "error"),
        ("iter(())", "error"),
        ("None", "not_attempted"),
        ("1/0", "error"),
    ],
)
def test_caught_inputs_of_every_kind(grade, returned, status):
    source = f"import numpy as np\ndef expose_eight():\n    return {returned}"
    reports, _ = grade(source)
    assert reports["expose_eight"].status == status


@pytest.mark.parametrize(
    ("value", "status"),
    [('"CAD"', "passed"), ('["C", "A", "D"]', "passed"), ('"ABD"', "failed"), ('"Z"', "error")],
)
def test_orders_of_lines_of_every_kind(grade, value, status):
    reports, _ = grade(f"scale_in_half = {value}")
    assert reports["scale_in_half"].status == status


def test_calling_the_answer_itself_is_seen_through_the_child(grade):
    called = find("scale_scores").built_from[0]
    module, name = called.rsplit(".", 1)
    reports, _ = grade(
        f"from {module} import {name}", f"def scale_scores(q, k):\n    return {name}(q, k)"
    )
    assert reports["scale_scores"].faults == ["uses.the_answer"]


@needs_torch
@pytest.mark.parametrize("head", ["import torch", "import torch.nn.functional as F"])
def test_a_torch_answer_is_graded_as_one(grade, head):
    body = "def scale_scores(q, k):\n    return q @ k.transpose(-1, -2) / q.size(-1) ** 0.5"
    reports, _ = grade(head, body)
    assert (reports["scale_scores"].status, reports["scale_scores"].backend) == ("passed", "torch")


@pytest.mark.parametrize(
    "module", ["matplotlib.pyplot", "scipy.special", "einops", "sdpa_course.with_numpy"]
)
def test_what_people_import_can_be_imported(grade, module):
    if not importlib.util.find_spec(module.split(".")[0]):
        pytest.skip(f"{module} is not installed")
    reports, result = grade(f"import {module}", "import tempfile; tempfile.TemporaryFile()", RIGHT)
    assert result.problems == ()
    assert reports["scale_scores"].status == "passed"


def test_a_script_that_runs_its_own_tests_is_graded(tmp_path):
    path = tmp_path / "work.py"
    path.write_text(f"{RIGHT}\n\nif __name__ == '__main__':\n    1 / 0\n")
    assert grade_file(path).passed
