"""Progress: nothing is lost, whatever happens to the process or the file."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from sdpa_course.grading import progress
from sdpa_course.grading.progress import DAY, INTERVALS, Attempt

ID = "scaling.scale_scores"
WRITER = """
import sys
from sdpa_course.grading import progress
name, count = sys.argv[1], int(sys.argv[2])
for i in range(count):
    progress.record(f"test.{name}", "failed", ["scale.d_k"], f"attempt {i}")
    print(i, flush=True)
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SDPA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SDPA_PROGRESS", raising=False)
    monkeypatch.setattr(progress, "_memory", progress.Memory())
    monkeypatch.setattr(progress, "_said", set())
    return tmp_path / "home"


@pytest.fixture
def at(monkeypatch):
    def set_clock(seconds):
        monkeypatch.setattr(progress, "clock", lambda: seconds)

    return set_clock


def writer(name, count):
    command = [sys.executable, "-c", WRITER, name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_attempts_are_numbered_from_one(home):
    assert [progress.record(ID, "failed", ["scale.d_k"]), progress.record(ID, "passed")] == [1, 2]
    assert progress.record("softmax.softmax", "passed") == 1
    assert progress.last_attempt(ID).status == "passed"
    assert progress.attempts(ID)[0].faults == ("scale.d_k",)
    assert progress.last_attempt("nothing.yet") is None


def test_reading_makes_no_file(home):
    assert progress.summary() == {}
    assert not home.exists()


def test_a_hint_needs_a_new_attempt(home):
    assert progress.record_hint(ID, "first")
    assert not progress.record_hint(ID, "second")
    progress.record(ID, "failed")
    assert progress.record_hint(ID, "second")
    assert [hint.text for hint in progress.hints_given(ID)] == ["first", "second"]


def test_eight_processes_lose_no_attempt(home):
    each = 1000
    writers = [writer(f"p{i}", each) for i in range(8)]
    for process in writers:
        _, said = process.communicate(timeout=300)
        assert (process.returncode, said) == (0, "")
    counts = {name: found["attempts"] for name, found in progress.summary().items()}
    assert counts == {f"test.p{i}": each for i in range(8)}


def test_processes_that_begin_the_file_together_lose_nothing(home):
    writers = [writer("same", 5) for _ in range(6)]
    assert [process.wait(timeout=120) for process in writers] == [0] * 6
    assert len(progress.attempts("test.same")) == 30


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_a_killed_process_loses_at_most_the_attempt_in_flight(home):
    for _ in range(5):
        before = len(progress.attempts())
        process = writer("killed", 10_000)
        process.stdout.readline()
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        told = 1 + len(process.communicate()[0].splitlines())
        kept = len(progress.attempts()) - before
        assert told <= kept <= told + 1
    database = sqlite3.connect(home / progress.FILE)
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()


def test_a_file_of_the_first_version_is_migrated(home):
    home.mkdir()
    database = sqlite3.connect(home / progress.FILE)
    database.executescript(progress.MIGRATIONS[0] + "PRAGMA user_version = 1;")
    row = ("u1", ID, 1.0, "failed", '["scale.d_k"]', None)
    database.execute("INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?)", row)
    database.commit()
    database.close()

    assert progress.record(ID, "passed") == 2
    assert progress.attempts(ID)[0] == Attempt("u1", ID, 1.0, "failed", ("scale.d_k",))
    assert progress.record_hint(ID, "a table that the first version had not")


@pytest.mark.parametrize("damage", ["not a database", "torn page"])
def test_a_damaged_file_is_set_aside_with_a_message(home, capsys, damage):
    for i in range(300):
        progress.keep(Attempt(f"u{i}", ID, float(i), "failed", (), "x" * 200))
    file = home / progress.FILE
    data = file.read_bytes()
    torn = data[:4096] + b"\xff" * (len(data) - 4096)
    bad = torn if damage == "torn page" else b"this is no database" * 500
    file.write_bytes(bad)
    (home / "export.json").write_text("{}")

    assert progress.record(ID, "passed") == 1
    aside = list(home.glob("progress-damaged-*.sqlite"))
    assert [path.read_bytes() for path in aside] == [bad]
    assert str(aside[0]) in capsys.readouterr().err
    assert (home / "export.json").read_text() == "{}"
    assert progress.record(ID, "passed") == 2


def test_a_file_of_a_later_version_is_left_alone(home, capsys):
    progress.record(ID, "passed")
    database = sqlite3.connect(home / progress.FILE)
    database.execute(f"PRAGMA user_version = {progress.VERSION + 1}")
    database.close()
    assert progress.record(ID, "failed") == 1
    assert "version" in capsys.readouterr().err
    assert list(home.glob("*damaged*")) == []


def test_where_nothing_can_be_written_grading_goes_on_and_it_is_said_once(home, capsys):
    home.write_text("a file where the folder should be")
    assert [progress.record(ID, "failed"), progress.record(ID, "passed")] == [1, 2]
    assert capsys.readouterr().err.count("progress is not being kept") == 1


def test_off_means_that_no_file_is_made(home, monkeypatch):
    monkeypatch.setenv("SDPA_PROGRESS", "off")
    assert [progress.record(ID, "failed"), progress.record(ID, "passed")] == [1, 2]
    assert not home.exists()


def test_an_export_is_merged_and_merging_it_twice_adds_nothing(home, monkeypatch, tmp_path):
    progress.record(ID, "failed", ["scale.d_k"], "def scale_scores(q, k): ...")
    progress.record_hint(ID, "a hint")
    exported, made = progress.export_json(), progress.attempts()
    monkeypatch.setenv("SDPA_HOME", str(tmp_path / "other"))
    progress.record(ID, "passed")
    assert progress.import_json(exported) == 2
    assert progress.import_json(exported) == 0
    assert progress.attempts()[0] == made[0]
    assert len(progress.attempts()) == 2


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "another", "version": 1}', "null"])
def test_what_is_no_export_is_refused_whole(home, text):
    with pytest.raises(ValueError, match="expected an export"):
        progress.import_json(text)
    assert progress.attempts() == []


def test_an_export_with_one_bad_row_adds_nothing(home):
    progress.record(ID, "failed")
    data = json.loads(progress.export_json())
    data["attempts"].append({"uid": "x"})
    with pytest.raises(ValueError, match="expected an export"):
        progress.import_json(json.dumps(data))
    assert len(progress.attempts()) == 1


def test_reviews_come_after_growing_intervals():
    made, day = [], 0.0
    for interval in INTERVALS:
        made.append(Attempt("", ID, day * DAY, "passed"))
        day += interval
        assert progress.due_at(made) == day * DAY
    made.append(Attempt("", ID, day * DAY, "passed"))
    assert progress.due_at(made) is None


def test_a_pass_before_its_time_moves_nothing():
    made = [Attempt("", ID, 0, "passed"), Attempt("", ID, 0.5 * DAY, "passed")]
    assert progress.due_at(made) == DAY


def test_a_wrong_answer_to_a_review_starts_again():
    days = [(0, "passed"), (1, "passed"), (4, "failed"), (4, "passed")]
    assert progress.due_at([Attempt("", ID, d * DAY, s) for d, s in days]) == 5 * DAY


def test_review_lists_what_is_due_by_the_clock(home, at):
    at(0.0)
    progress.record(ID, "passed")
    progress.record("softmax.softmax", "failed")
    assert progress.review(now=0.9 * DAY) == []
    at(1.1 * DAY)
    assert progress.review() == [ID]


def test_the_overview_says_what_was_done_in_text_and_html(home, at):
    at(0.0)
    progress.record(ID, "failed")
    progress.record(ID, "passed")
    catalogue = [("02", "scaling", [(ID, "Scale <the> scores"), ("scaling.other", "Another")])]
    overview = progress.Progress(catalogue, now=2 * DAY)
    assert "02 scaling  (1 of 2 passed)" in overview.to_text()
    assert f"✓ {ID}  (2 attempts, due for review)" in overview.to_text()
    assert f"Worth doing again now: {ID}" in overview.to_text()
    assert "Scale &lt;the&gt; scores" in overview._repr_html_()
    assert json.loads(json.dumps(overview.to_dict()))["chapters"][0]["passed"] == 1


def test_what_check_says_does_not_depend_on_progress(home, monkeypatch):
    from sdpa_course import check

    def answer(q, k):
        return q @ k.swapaxes(-1, -2)

    kept = [check(answer, ID).to_html() for _ in range(2)]
    monkeypatch.setenv("SDPA_PROGRESS", "off")
    assert [check(answer, ID).to_html() for _ in range(2)] == kept
    assert len(progress.attempts()) == 2
    monkeypatch.delenv("SDPA_PROGRESS")
    assert progress.last_attempt(ID).faults == ("scale.forgotten",)
