"""Hostile submissions: each gets a clear result, none passes, none outlives the grader's call."""

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from sdpa_course.grading import frames, isolate
from sdpa_course.grading.isolate import Cell, Child, Limits
from sdpa_course.grading.submission import grade_file, read

QUICK = Limits(seconds=1.5, total=6.0)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="what Linux gives")
POSIX = pytest.mark.skipif(os.name == "nt", reason="what Windows does not give")
# Another exercise of the same file, which must be graded whatever the first one does.
GOOD = 'what_the_scale_does = "C"\n'


@pytest.fixture
def started(monkeypatch):
    """Every child process that a test starts; afterwards there must be nothing left of them."""
    children = []
    start = isolate.start

    def remember(settings, token):
        process = start(settings, token)
        children.append((process, token, Path(settings["room"])))
        return process

    monkeypatch.setattr(isolate, "start", remember)
    threads = threading.active_count()
    yield children
    assert children
    for process, token, room in children:
        assert process.poll() is not None
        assert isolate.processes_with(token) == []
        assert not room.exists()
    end = time.monotonic() + 5
    while threading.active_count() > threads and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= threads


def graded(tmp_path, code, limits=QUICK):
    """The reports on a file with this code and one right answer, by exercise."""
    path = tmp_path / "work.py"
    path.write_text(textwrap.dedent(code) + GOOD, encoding="utf-8")
    result = grade_file(path, limits)
    return result, {report.exercise.split(".")[1]: report for report in result.reports}


def body(*lines):
    return "def scale_scores(q, k):\n" + "".join(f"    {line}\n" for line in lines)


RIGHT = "return q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5"
ZEROS = "return 0.0 * (q @ k.swapaxes(-1, -2))"

HOSTILE = {  # kind → (code, what the report says)
    "endless loop": (body("while True: pass"), "still running"),
    "endless loop that catches everything": (
        body(
            "while True:",
            "    try:",
            "        while True: x = [1 for _ in range(99)]",
            "    except BaseException: pass",
        ),
        "still running",
    ),
    "signals ignored": (
        body(
            "import signal",
            "for s in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):",
            "    signal.signal(s, signal.SIG_IGN)",
            "while True: pass",
        ),
        "still running",
    ),
    "sleep": (body("import time; time.sleep(3600)"), "still running"),
    "stops itself": (
        body("import signal; signal.raise_signal(signal.SIGSTOP)"),
        "still running",
    ),
    "waits for input": (body("return input()"), "EOFError"),
    "recursion": (body("return scale_scores(q, k)"), "RecursionError"),
    "recursion until it crashes": (
        "import sys\nsys.setrecursionlimit(10**9)\n"
        "class Endless:\n    def __len__(self): return len(Endless())\n"
        + body("return len(Endless())"),
        ("ended the process", "RecursionError", "memory"),
    ),
    "memory bomb": (body("import numpy as np", "return np.ones((10**6, 10**6))"), "memory"),
    "memory bomb by a list": (
        body("x = [0] * 10**6", "while True: x = x * 1000"),
        "memory",
    ),
    "fork bomb": (body("import os", "while True: os.fork()"), "may not start"),
    "fork that leaves the group": (
        body("import os", "if os.fork() == 0:", "    os.setsid()", "    while True: pass", RIGHT),
        "may not start",
    ),
    "multiprocessing": (
        body("import multiprocessing as m", "m.Process(target=print).start()", RIGHT),
        "may not start",
    ),
    "subprocess": (body("import subprocess", "subprocess.run(['true'])", RIGHT), "may not start"),
    "subprocess by the back door": (
        body(
            "import _posixsubprocess as p",
            "p.fork_exec([b'/bin/true'], [b'/bin/true'], True, (), None, None,"
            " -1, -1, -1, -1, -1, -1, 1, 2, False, False, 0, None, None, None, -1, None, False)",
            RIGHT,
        ),
        "may not start",
    ),
    "os.system": (body("import os; os.system('true')", RIGHT), "may not start"),
    "native code": (body("import ctypes; ctypes.CDLL(None).fork()", RIGHT), "native code"),
    "socket": (
        body("import socket; socket.create_connection(('127.0.0.1', 9))", RIGHT),
        "network",
    ),
    "kills the grader": (body("import os; os.kill(os.getppid(), 9)", RIGHT), "signal other"),
    "sys.exit": (body("import sys; sys.exit(0)"), "SystemExit"),
    "os._exit": (body("import os; os._exit(0)"), "exit status 0"),
    "abort": (body("import os; os.abort()"), "ended the process"),
    "closes stdout": (
        body("import sys, os; sys.stdout.close(); os.close(1); print('x')", RIGHT),
        "closed file",
    ),
    "closes every file": (body("import os; os.closerange(0, 100)", ZEROS), "ended the process"),
    "prints a fake pass": (
        body('print("✓ scaling.scale_scores: right")', 'print({"status": "passed"})', ZEROS),
        "one head",
    ),
    "forges an answer": (
        body(
            "import os",
            "for fd in range(3, 40):",
            "    try: os.write(fd, b'\\0\\0\\0\\x08\\0\\0\\0\\x04null')",
            "    except OSError: pass",
            ZEROS,
        ),
        "channel",
    ),
    "patched numpy": (
        "import numpy as np\nnp.allclose = np.array_equal = np.isclose = lambda *a, **k: True\n"
        "np.array = np.copy = np.ascontiguousarray = np.ndarray.__eq__ if 0 else np.array\n"
        "np.lib.format.write_array = None\n" + body(ZEROS),
        "one head",
    ),
    "patched builtins": (
        "import builtins\nbuiltins.abs = lambda x: 0\nbuiltins.max = lambda *a, **k: 0\n"
        "builtins.len = lambda x: 0\n" + body(ZEROS),
        "",
    ),
    "lying __eq__": (
        "class Same:\n    def __eq__(self, other): return True\n"
        "    def __sub__(self, other): return 0\n" + body("return Same()"),
        "expected an array, got Same",
    ),
    "array subclass that lies": (
        "import numpy as np\nclass Liar(np.ndarray):\n"
        "    def __eq__(self, other): return np.ones(self.shape, bool)\n"
        "    def __sub__(self, other): return np.zeros(self.shape)\n"
        "    def __array_function__(self, *a): return True\n"
        + body("return np.zeros((2, 3)).view(Liar)"),
        "",
    ),
    "an __array__ that never returns": (
        "import numpy as np\nclass Slow(list):\n"
        "    def __array__(self, *a, **k):\n        while True: pass\n" + body("return Slow([1])"),
        "still running",
    ),
    "imports the answer": (
        body("from sdpa_course.exercises import find", "return find('scale_scores').run(q, k)"),
        ("sdpa_course.exercises", "ModuleNotFoundError"),
    ),
    "imports the grader": (
        body("import sdpa_course.grading.grade as g", "g.grade = None", RIGHT),
        "sdpa_course.grading",
    ),
    "reads the answer from its file": (
        body(
            "import sdpa_course, pathlib",
            "file = pathlib.Path(sdpa_course.__file__).parent / 'exercises/scaling.py'",
            "space = {}",
            "exec(file.read_text(), space)",
            "return space['scale_scores'].run(q, k)",
        ),
        "may not read",
    ),
    "reads the answer by a link": (
        body(
            "import sdpa_course, pathlib, os",
            "os.symlink(pathlib.Path(sdpa_course.__file__).parent / 'exercises', 'here')",
            "return len(open('here/scaling.py').read())",
        ),
        "may not read",
    ),
    "reads the answer from an opened folder": (
        body(
            "import sdpa_course, pathlib, os",
            "folder = os.open(pathlib.Path(sdpa_course.__file__).parent, os.O_RDONLY)",
            "return os.read(os.open('exercises/scaling.py', os.O_RDONLY, dir_fd=folder), 10**6)",
        ),
        "may open a folder only inside its own",
    ),
    "reads the answer from the grader's memory": (
        body("import os; return open(f'/proc/{os.getppid()}/environ').read()"),
        ("may not read", "FileNotFoundError"),
    ),
    "looks for the answer in the frames": (
        body(
            "import sys, gc",
            "frame = sys._getframe()",
            "while frame:",
            "    if 'expected' in frame.f_locals: return frame.f_locals['expected']",
            "    frame = frame.f_back",
            "names = [o for o in gc.get_objects() if type(o).__name__ in ('Exercise', 'Probe')]",
            "return names[0].expected",
        ),
        "IndexError",
    ),
    "writes outside its folder": (
        body("import sdpa_course; open(sdpa_course.__file__ + '.x', 'w')", RIGHT),
        "may write only in its own folder",
    ),
    "removes what is not its own": (
        body("import sdpa_course, os; os.remove(sdpa_course.__file__)", RIGHT),
        "may change only its own folder",
    ),
    "fills the disk": (
        body("f = open('big', 'wb')", "while True: f.write(bytes(2**20))"),
        ("OSError", "ended the process"),
    ),
    "raises its own limits": (
        body("import resource as r; r.setrlimit(r.RLIMIT_AS, (-1, -1))", RIGHT),
        "may not change its limits",
    ),
    "threads left running": (
        body(
            "import threading",
            "def spin():",
            "    while True: pass",
            "for _ in range(4): threading.Thread(target=spin).start()",
            ZEROS,
        ),
        "",
    ),
    "huge output": (body("for _ in range(50): print('x' * 10**5)", ZEROS), "one head"),
    "output that is no text": (
        body("import os", "os.write(1, bytes(range(256)) * 50)", ZEROS),
        "one head",
    ),
    "huge result": (body("import numpy as np", "return np.zeros(2 * 10**7)"), "at most"),
    "NaN everywhere": (body("return float('nan') * (q @ k.swapaxes(-1, -2))"), "one head"),
    "object array": (
        body("import numpy as np", "return np.array([q, None], dtype=object)"),
        "object",
    ),
    "generator": (body("yield from q"), "generator"),
    "a set": (body("return {1, 2}"), "got set"),
    "text": (body("return 'passed'"), ""),
    "an exception that cannot be shown": (
        "class Bad(Exception):\n    def __str__(self): raise SystemExit\n" + body("raise Bad"),
        "SystemExit",
    ),
    "a KeyboardInterrupt": (body("raise KeyboardInterrupt"), "KeyboardInterrupt"),
    "a huge message": (body("raise ValueError('x' * 10**7)"), "ValueError"),
    "is no function": ("scale_scores = 3\n", "expected a function"),
}


@POSIX
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_answer_gets_a_clear_result_and_the_rest_is_graded(tmp_path, started, kind):
    code, says = HOSTILE[kind]
    start = time.monotonic()
    result, reports = graded(tmp_path, code)
    assert time.monotonic() - start < 20
    report = reports["scale_scores"]
    assert report.status in ("failed", "error")
    text = result.to_text()
    assert any(part in text for part in ([says] if isinstance(says, str) else says)), text
    assert len(text) < 20_000
    text.encode("utf-8")
    assert reports["what_the_scale_does"].status == "passed"


@pytest.mark.parametrize(
    ("cell", "raised"),
    [
        ("while True: pass\n", "TimeUp"),
        ("import os; os._exit(0)\n", "Killed"),
        ("raise SystemExit\n", "SystemExit"),
        ("1/0\n", "ZeroDivisionError"),
        ("import numpy as np; np.ones(10**12)\n", "MemoryLimit"),
    ],
)
@POSIX
def test_a_bad_line_does_not_keep_the_others_from_being_graded(tmp_path, started, cell, raised):
    result, reports = graded(tmp_path, "half = 0.5\n" + cell + body(RIGHT.replace("0.5", "half")))
    assert [problem.type for _, problem in result.problems] == [raised]
    assert [report.status for report in reports.values()] == ["passed", "passed"]


def test_a_right_answer_passes(tmp_path, started):
    result, _ = graded(tmp_path, body(RIGHT))
    assert result.passed
    assert len(started) == 1


def test_after_a_kill_the_other_functions_are_called_in_a_fresh_child(started):
    cells = [Cell("import os\nx = 2", "a"), Cell("def f(): return x\ndef g(): os._exit(1)", "b")]
    with Child(cells, limits=QUICK) as child:
        assert child.runner("f")({}).value == 2
        assert child.runner("g")({}).raised.type == "Killed"
        assert child.runner("f")({}).value == 2
    assert len(started) == 2


def test_a_function_that_was_stopped_is_not_called_again(started):
    with Child([Cell("def f():\n    while True: pass", "a")], limits=QUICK) as child:
        runner = child.runner("f")
        first = runner({})
        start = time.monotonic()
        assert runner({}) == first
        assert time.monotonic() - start < 0.1


@POSIX
def test_an_endless_loop_leaves_the_variables_as_they_are(started):
    cells = [Cell("n = []\ndef f():\n    n.append(1)\n    while True: pass", "a")]
    with Child([*cells, Cell("def g(): return len(n)", "b")], limits=QUICK) as child:
        child.runner("f")({})
        assert child.runner("g")({}).value == 1
    assert len(started) == 1


def test_what_a_child_prints_is_kept_apart_and_cut(started, capfd):
    source = "def f():\n    for i in range(5000): print('line', i, '\\x1b[31m')\n    return 1"
    with Child([Cell(source, "a")], limits=QUICK) as child:
        assert child.runner("f")({}).value == 1
        end = time.monotonic() + 5
        while "line 4999 �[31m" not in child.output.lines() and time.monotonic() < end:
            time.sleep(0.01)
        assert child.output.lines(2) == ["line 4998 �[31m", "line 4999 �[31m"]
    assert capfd.readouterr() == ("", "")


@LINUX
def test_the_kernel_refuses_processes_and_sockets_to_native_code():
    """Even where the audit hook does not look: straight through the system call."""
    module = Path(isolate.__file__).with_name("seccomp.py")
    probe = f"""
import ctypes, os, runpy, sys
libc = ctypes.CDLL(None, use_errno=True)
filter = runpy.run_path({str(module)!r})
print(filter["refuse_processes_and_sockets"](libc.prctl))
print(libc.fork(), libc.socket(2, 1, 0), libc.kill(os.getppid(), 0), ctypes.get_errno())
import threading
thread = threading.Thread(target=print, args=("a thread",)); thread.start(); thread.join()
"""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    if done.stdout.startswith("False"):
        pytest.skip("no such filter on this kernel or processor")
    assert done.stdout.splitlines() == ["True", "-1 -1 -1 1", "a thread"], done.stderr


@LINUX
def test_a_child_ends_with_the_grader(tmp_path):
    source = """
import os, time
from sdpa_course.grading import isolate
child = isolate.Child([isolate.Cell("def f():\\n    while True: pass", "a")])
print(child.process().popen.pid, flush=True)
child.call("f", {}, "value", "numpy", ())
"""
    grader = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    pid = int(grader.stdout.readline())
    grader.kill()
    grader.wait()
    grader.stdout.close()
    end = time.monotonic() + 5
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_running(pid)


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_child_starts_in_a_moment(started):
    times = []
    for _ in range(3):
        start = time.monotonic()
        with Child([Cell("def f(): return 1", "a")]) as child:
            child.runner("f")({})
            times.append(time.monotonic() - start)
    assert min(times) < 1.0  # 0.25 s alone; this machine may be busy


@pytest.mark.parametrize(
    "message",
    [
        {"x": np.arange(6.0).reshape(2, 3), "y": (None, 1, 2.5, "é", True)},
        {"x": np.float16([1, np.nan, np.inf]), "empty": np.zeros((0, 3))},
        {"x": np.asfortranarray(np.arange(6).reshape(2, 3)), "scalar": np.array(2.0)},
        {"x": {"q": np.ones(2), "k": {"deep": (np.array([True]),)}}},
    ],
)
def test_a_message_arrives_as_it_was_sent(message):
    sent = frames.encode(message)
    got = frames.decode(sent[4:])
    assert repr(got) == repr(message)
    assert all(getattr(v, "dtype", 0) == getattr(message[n], "dtype", 0) for n, v in got.items())


@pytest.mark.parametrize("value", [np.array([None]), np.array(["a"]), {1, 2}, object(), 1j])
def test_what_is_neither_number_nor_text_is_not_sent(value):
    with pytest.raises(frames.BadFrame, match="expected"):
        frames.encode({"value": value})


def test_an_array_that_claims_to_be_huge_is_refused_before_it_is_made():
    sent = frames.encode({"x": np.zeros(3)})
    forged = sent[4:].replace(b"(3,)", b"(9**9,)").replace(b"'shape': (3,), }", b"'shape': (3,), }")
    larger = sent[4:].replace(b"(3,), }  ", b"(99999,),}", 1)
    for body_ in (forged, larger):
        with pytest.raises(frames.BadFrame):
            frames.decode(body_)


@pytest.mark.parametrize("cut", [5, 9, 20, 60, -1])
def test_a_message_that_is_cut_short_is_refused(cut):
    sent = frames.encode({"x": np.zeros(3)})
    with pytest.raises(frames.BadFrame):
        frames.decode(sent[4:cut])


@pytest.mark.parametrize("magic", ["%matplotlib inline", "!pip install x", "x = !ls", "np.dot?"])
def test_magics_are_dropped(tmp_path, magic):
    cell = {"cell_type": "code", "source": [f"{magic}\n", "y = 1"], "metadata": {}}
    path = tmp_path / "work.ipynb"
    path.write_text(json.dumps({"cells": [cell]}))
    (kept,) = read(path).cells
    assert kept.source == "pass\ny = 1"


def test_a_script_is_cut_into_statements_that_keep_their_lines(tmp_path):
    path = tmp_path / "work.py"
    path.write_text("a = 1; b = 2\n\n@property\ndef f():\n    return a\n\nc = 3\n")
    cells = [(cell.line, cell.source) for cell in read(path).cells]
    lines = [(1, "a = 1; b = 2\n"), (3, "@property\ndef f():\n    return a\n"), (7, "c = 3\n")]
    assert cells == lines
