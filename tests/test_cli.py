"""The `sdpa` command, as a learner types it."""

import json
import os
import subprocess
import sys

import pytest

from sdpa_course import cli
from sdpa_course.exercises import chapters, exercises_of, find
from sdpa_course.grading import progress
from sdpa_course.grading.notebook import as_text, file_name, notebook, solved

RIGHT = "def scale_scores(q, k):\n    return q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5\n"
WRONG = RIGHT.replace("** 0.5", "** 1/2")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDPA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SDPA_PROGRESS", raising=False)
    return tmp_path


def sdpa(*arguments):
    return cli.main([str(argument) for argument in arguments])


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_list_names_every_exercise(capsys):
    assert sdpa("list") == 0
    shown = capsys.readouterr().out
    for concept in chapters().values():
        assert all(f" {exercise.id} " in shown for exercise in exercises_of(concept))


def test_a_right_file_passes_with_status_0(own_folder, capsys):
    assert sdpa("check", write(own_folder / "work.py", RIGHT)) == 0
    assert "✓ scaling.scale_scores: right" in capsys.readouterr().out
    assert progress.last_attempt("scaling.scale_scores").status == "passed"


def test_a_wrong_file_fails_with_status_1_and_the_mistake_is_named(own_folder, capsys):
    assert sdpa("check", write(own_folder / "work.py", WRONG), "--json") == 1
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    assert report["faults"] == ["scale.precedence_inline"]
    assert progress.last_attempt("scaling.scale_scores").faults == ("scale.precedence_inline",)
    assert "** 1 / 2" in progress.last_attempt("scaling.scale_scores").answer


def test_a_solved_notebook_passes(own_folder, capsys):
    made = solved(notebook("02", "scaling", exercises_of("scaling")), exercises_of("scaling"))
    assert sdpa("check", write(own_folder / "work.ipynb", as_text(made))) == 0
    count = len(exercises_of("scaling"))
    assert f"{count} of {count} passed." in capsys.readouterr().out


def test_a_notebook_as_shipped_is_not_attempted_and_leaves_no_attempt(own_folder, capsys):
    assert sdpa("start", "02") == 0
    assert sdpa("check", own_folder / "my-work" / file_name("02", "scaling")) == 1
    shown = capsys.readouterr().out
    assert shown.count("not attempted yet") == len(exercises_of("scaling"))
    assert progress.attempts() == []


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("missing.py", None, "No such file"),
        ("work.txt", "", "expected a notebook"),
        ("work.ipynb", "{", "is not a notebook"),
        ("work.ipynb", '{"cells": 3}', "is not a notebook"),
        ("work.py", "x = 1\n", "answers no exercise"),
    ],
)
def test_what_cannot_be_graded_is_said_with_status_2(own_folder, capsys, name, text, says):
    if text is not None:
        write(own_folder / name, text)
    assert sdpa("check", own_folder / name) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert "Traceback" not in shown.err


def test_start_never_overwrites(own_folder, capsys):
    name = file_name("02", "scaling")
    first, second = own_folder / "my-work" / name, own_folder / "my-work" / "02-scaling-2.ipynb"
    assert sdpa("start", "scaling") == 0
    original = first.read_text()
    assert sdpa("start", "2") == 0
    assert not second.exists()
    first.write_text("my own work")
    capsys.readouterr()
    assert sdpa("start", "02") == 0
    assert first.read_text() == "my own work"
    assert second.read_text() == original
    assert "holds your work and stays as it is" in capsys.readouterr().out


def test_start_finds_the_notebooks_where_there_is_no_repository(own_folder, monkeypatch):
    monkeypatch.setattr(cli, "exercise_notebooks", lambda: own_folder / "nowhere")
    assert sdpa("start") == 0
    made = {path.name for path in (own_folder / "my-work").iterdir()}
    assert made == {file_name(number, concept) for number, concept in chapters().items()}
    cells = json.loads((own_folder / "my-work" / "02-scaling.ipynb").read_text())["cells"]
    assert find("scale_scores").stub_source.rstrip() in ["".join(cell["source"]) for cell in cells]


def test_an_unknown_chapter_or_exercise_is_said_with_what_there_is(capsys):
    assert sdpa("start", "99") == 2
    assert "02 scaling" in capsys.readouterr().err
    assert sdpa("hint", "scaling.scale_score") == 2
    assert "scaling.scale_scores" in capsys.readouterr().err


def test_hints_come_one_for_each_attempt(own_folder, capsys):
    sdpa("check", write(own_folder / "work.py", WRONG))
    capsys.readouterr()
    assert [sdpa("hint", "scale_scores"), sdpa("hint", "scale_scores")] == [0, 0]
    first, second = capsys.readouterr().out.splitlines()
    assert first == find("scale_scores").fault_named("scale.precedence_inline").hint
    assert second.startswith("Try once more first")


def test_solution_shows_code_and_the_reason(capsys):
    assert sdpa("solution", "scaling.scale_scores") == 0
    shown = capsys.readouterr().out
    assert "def scale_scores" in shown
    assert find("scale_scores").reason in shown


def test_progress_is_exported_and_imported(own_folder, monkeypatch, capsys):
    sdpa("check", write(own_folder / "work.py", RIGHT))
    assert sdpa("progress", "--export", "kept.json") == 0
    monkeypatch.setenv("SDPA_HOME", str(own_folder / "other"))
    assert sdpa("progress", "--import", "kept.json") == 0
    assert sdpa("progress", "--import", "work.py") == 2
    capsys.readouterr()
    assert sdpa("progress") == 0
    assert "✓ scaling.scale_scores  (1 attempt)" in capsys.readouterr().out
    assert sdpa("progress", "--json") == 0
    assert json.loads(capsys.readouterr().out)["chapters"]


def test_review_names_what_is_due(monkeypatch, capsys):
    assert sdpa("review") == 0
    assert "Nothing is due" in capsys.readouterr().out
    progress.keep(progress.Attempt("u", "scaling.scale_scores", 0.0, "passed"))
    assert sdpa("review") == 0
    assert "scaling.scale_scores" in capsys.readouterr().out


def test_doctor_says_what_is_here(capsys, own_folder):
    assert sdpa("doctor") == 0
    shown = capsys.readouterr().out
    words = ("Python", "NumPy", "torch", str(own_folder / "home"), "notebooks", "time limits")
    assert all(word in shown for word in words)


def test_colour_is_for_terminals_that_want_it(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert cli.colour_wanted() is (os.name != "nt")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not cli.colour_wanted()
    assert cli.coloured("  ✗ a goal") == "\x1b[31m  ✗ a goal\x1b[0m"
    assert cli.coloured("plain") == "plain"


def test_without_a_command_it_shows_help_with_status_2(capsys):
    assert sdpa() == 2
    assert "check" in capsys.readouterr().out


def test_the_command_imports_neither_torch_nor_matplotlib():
    code = (
        "import sys; from sdpa_course.cli import main; main(['list']);"
        "sys.exit(str(sorted({'torch', 'matplotlib', 'sqlite3'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
