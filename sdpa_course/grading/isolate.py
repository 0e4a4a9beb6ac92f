"""Runs somebody else's code in a child process that is limited and holds no answer.

The child (:mod:`.child`) runs the cells of a submission and calls the functions they define. It
gets inputs and returns arrays (:mod:`.frames`); this process compares. Whatever the code does
becomes an :class:`~.call.Outcome`: past its time is ``TimeUp``, an ended or crashed process is
``Killed``, both followed by a fresh child in which the other functions can still be called; too
much memory is ``MemoryLimit``.

What holds where:

- Everywhere: time limits; a folder of its own, removed afterwards; an audit hook that refuses other
  processes, sockets, native code, writing outside that folder and reading the course's answers;
  output kept apart and cut; at the end the process is killed.
- Linux and macOS: limits on processor time, on the size of a file and on open files; the whole
  process group is killed.
- Linux: a limit on memory; the child ends with its parent; a filter of system calls refuses new
  processes and sockets even to native code; processes that left the group are found and killed.
- macOS does not enforce the limit on memory. Windows has none of the system's limits, and there a
  loop that never ends is stopped from outside only.

This keeps honest and careless code in its place, and most dishonest code. It is no prison: to grade
strangers' work on a machine that matters, run the command in a container.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import frames
from .call import STOPPED, Outcome, Raised

SECONDS = 5.0  # for one call or one cell
TOTAL = 20.0  # for all the calls of one function
START = 30.0  # for a child to start, on a busy machine
GRACE = 1.0  # after which a child that did not stop by itself is killed
MEMORY = 2 * 2**30  # beyond what Python, NumPy and torch need
MOST_RESTARTS = 25
OUTPUT = 2**14  # bytes of output that are kept


@dataclass(frozen=True)
class Cell:
    """Some lines of a submission that run together. ``line`` is where they start in ``label``."""

    source: str
    label: str
    line: int = 1


@dataclass(frozen=True)
class Limits:
    """What a child may use."""

    seconds: float = SECONDS
    total: float = TOTAL
    memory: int = MEMORY
    cpu: int = 300


class Stopped(Exception):
    """The child is no longer there, for this reason."""

    def __init__(self, raised: Raised) -> None:
        super().__init__(raised.message)
        self.raised = raised


class Child:
    """A submission in a child process, started again whenever it had to be killed.

    Use as a context manager. ``problems`` are the cells that raised, with what they raised.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        *,
        torch: bool = False,
        notebook: bool = True,
        folder: Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.cells, self.limits = list(cells), limits or Limits()
        self.torch, self.notebook, self.folder = torch, notebook, folder
        self.problems: dict[int, Raised] = {}
        self.restarts = 0
        self.output = Tail()
        self._deadly: set[int] = set()  # cells that are left out, since they ended the process
        self._process: Process | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def call(
        self, name: str, inputs: Mapping[str, Any], ask: str, backend: str, watch: Sequence[str]
    ) -> Outcome:
        """Call a function of the submission."""
        words = {"name": name, "inputs": dict(inputs), "ask": ask, "backend": backend}
        return self.ask({"do": "call", **words, "watch": tuple(watch)})

    def read(self, name: str) -> Outcome:
        """The value of a variable; None when there is none."""
        return self.ask({"do": "read", "name": name})

    def produce(self, name: str) -> Outcome:
        """What a function of no arguments returns, dictionaries of arrays included."""
        return self.ask({"do": "produce", "name": name})

    def runner(self, name: str, backend: str = "numpy", watch: Sequence[str] = ()) -> ChildRunner:
        """Something to grade: see :class:`~.call.Runner`."""
        return ChildRunner(self, name, backend, watch)

    def ask(self, request: dict[str, Any]) -> Outcome:
        try:
            return self.process().ask(request, self.limits.seconds)
        except Stopped as stopped:
            self.stop()
            return Outcome(raised=stopped.raised)

    def process(self) -> Process:
        """The child with every cell run, started if need be."""
        while self._process is None:
            if self.restarts > MOST_RESTARTS:
                raise Stopped(Raised("Killed", "your code ended the process again and again"))
            self.restarts += 1
            self._process = Process(
                self.limits, self.output, self.torch, self.notebook, self.folder
            )
            self.run_cells(self._process)
        return self._process

    def run_cells(self, process: Process) -> None:
        """Run them in order. One that raises is noted; one that kills is left out next time."""
        for i, cell in enumerate(self.cells):
            if i in self._deadly:
                continue
            words = {"source": cell.source, "label": cell.label, "line": cell.line}
            try:
                outcome = process.ask({"do": "cell", **words}, self.limits.seconds)
            except Stopped as stopped:
                self.problems[i] = stopped.raised
                self._deadly.add(i)
                self.stop()
                return
            if outcome.raised:
                self.problems[i] = outcome.raised

    def stop(self) -> None:
        """End the child, and whatever it has started."""
        if self._process is not None:
            self._process.end()
            self._process = None


class ChildRunner:
    """Calls one function of a submission. After it was stopped once, it is not called again."""

    def __init__(self, child: Child, name: str, backend: str, watch: Sequence[str]) -> None:
        self.child, self.name, self.backend, self.watch = child, name, backend, tuple(watch)
        self.stopped: Outcome | None = None
        self.left = child.limits.total

    def __call__(self, inputs: Mapping[str, Any], ask: str = "value") -> Outcome:
        if self.stopped is not None:
            return self.stopped
        self.child.ask({"do": "read", "name": ""})  # starting it takes none of the function's time
        start = time.monotonic()
        outcome = self.child.call(self.name, inputs, ask, self.backend, self.watch)
        self.left -= time.monotonic() - start
        if self.left < 0 and not outcome.raised:
            total = self.child.limits.total
            outcome = Outcome(raised=Raised("TimeUp", f"all calls together took over {total:g} s"))
        if outcome.raised and outcome.raised.type in STOPPED:
            self.stopped = outcome
        return outcome


class Process:
    """One child process and the pipes to it."""

    def __init__(
        self, limits: Limits, output: Tail, torch: bool, notebook: bool, folder: Path | None
    ) -> None:
        self.room = tempfile.TemporaryDirectory(prefix="sdpa-", ignore_cleanup_errors=True)
        self.token = uuid.uuid4().hex
        self.number = 0
        settings = {
            "path": search_path(folder),
            "room": self.room.name,
            "torch": torch,
            "notebook": notebook,
            "memory": limits.memory,
            "cpu": limits.cpu,
            "parent": os.getpid(),
        }
        self.popen = start(settings, self.token)
        self.answers: queue.Queue[dict[str, Any] | frames.BadFrame | None] = queue.Queue()
        self._background(self._receive)
        self._background(output.fill, self.popen.stderr)
        self.ask({"do": "read", "name": ""}, START)

    def ask(self, request: dict[str, Any], seconds: float) -> Outcome:
        """Send a request and wait for its answer. Raises Stopped when none comes in time."""
        body = frames.encode({**request, "seconds": seconds})
        self._background(self._send, body)
        self.number += 1
        try:
            # A stop that the child makes itself keeps its variables, so it gets the chance first.
            answer = self.answers.get(timeout=seconds + GRACE)
        except queue.Empty:
            raise Stopped(Raised("TimeUp", f"still running after {seconds:g} s")) from None
        return self.understood(answer)

    def understood(self, answer: dict[str, Any] | frames.BadFrame | None) -> Outcome:
        """The outcome in an answer; this is the door, and only what belongs here gets in."""
        if answer is None:
            raise Stopped(self.obituary())
        try:
            if isinstance(answer, frames.BadFrame):
                raise answer
            if answer["number"] != self.number:
                raise frames.BadFrame("an answer that nobody asked for")
            raised = answer["raised"] and limited(Raised(*map(str, answer["raised"])))
            changed, called = (tuple(map(str, answer[name])) for name in ("changed", "called"))
            backend = "torch" if answer["backend"] == "torch" else "numpy"
            return Outcome(answer["value"], raised or None, changed, backend, called)
        except (frames.BadFrame, KeyError, TypeError) as error:
            what = f"your code wrote into the channel that its answers go by ({error})"
            raise Stopped(Raised("Killed", what)) from None

    def obituary(self) -> Raised:
        """Why the process is no longer there."""
        try:
            status = self.popen.wait(GRACE)
        except subprocess.TimeoutExpired:
            return Raised("Killed", "your code closed the channel that its answers go by")
        if status >= 0:
            return Raised("Killed", f"your code ended the process (exit status {status})")
        name = signal.Signals(-status).name
        return Raised("Killed", f"your code ended the process ({WHY.get(name, name)})")

    def end(self) -> None:
        """Kill the process, its group and what has left the group; remove its folder."""
        kill_group(self.popen)
        for _ in range(50):
            if not (escaped := processes_with(self.token)):
                break
            for pid in escaped:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self.popen.stdin.close()  # type: ignore[union-attr]
        self.room.cleanup()

    def _background(self, function: Any, *arguments: Any) -> None:
        threading.Thread(target=function, args=arguments, daemon=True).start()

    def _send(self, body: bytes) -> None:
        left = memoryview(body)
        with contextlib.suppress(OSError, ValueError):
            while left:
                left = left[self.popen.stdin.write(left) :]  # type: ignore[union-attr]

    def _receive(self) -> None:
        answer: dict[str, Any] | frames.BadFrame | None = {}
        with self.popen.stdout as stream:  # type: ignore[union-attr]
            while isinstance(answer, dict):
                try:
                    answer = frames.read(stream.read)
                except frames.BadFrame as error:
                    answer = error
                except (OSError, ValueError):
                    answer = None
                self.answers.put(answer)


WHY = {
    "SIGSEGV": "it crashed, perhaps by recursion without end",
    "SIGXCPU": "it used too much processor time",
    "SIGKILL": "it was killed, perhaps for the memory it used",
    "SIGABRT": "it was aborted, perhaps for the memory it used",
}


def limited(raised: Raised) -> Raised:
    """An exception for want of memory, named so."""
    if raised.type in ("MemoryError", "_ArrayMemoryError") or "memory" in raised.message[:200]:
        return Raised("MemoryLimit", f"your code needed too much memory. {raised.message}".strip())
    return raised


def search_path(folder: Path | None) -> list[str]:
    """Where the child finds modules: as here, then beside the submission."""
    here = [os.path.abspath(entry) for entry in sys.path if entry and os.path.exists(entry)]
    package = str(Path(__file__).resolve().parents[2])
    return list(dict.fromkeys([*here, package, *([str(folder.resolve())] if folder else [])]))


def start(settings: Mapping[str, Any], token: str) -> subprocess.Popen[bytes]:
    room = str(settings["room"])
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    places = dict.fromkeys(("HOME", "TMPDIR", "TEMP", "TMP", "MPLCONFIGDIR", "SDPA_HOME"), room)
    words = {"MPLBACKEND": "Agg", "LC_ALL": "C.UTF-8", "SDPA_PROGRESS": "off", "SDPA_CHILD": token}
    words["CUDA_VISIBLE_DEVICES"] = ""  # answers are compared on the CPU
    script = str(Path(__file__).with_name("child.py"))
    return subprocess.Popen(
        [sys.executable, "-I", "-B", "-X", "utf8", script, json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        cwd=room,
        env={**kept, **threads, **places, **words},
        start_new_session=True,
    )


def kill_group(popen: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(popen.pid, signal.SIGKILL)
        else:
            popen.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        popen.wait(START)


def processes_with(token: str) -> list[int]:
    """On Linux: the processes that inherited this token, wherever they have gone."""
    mark = f"SDPA_CHILD={token}".encode()
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in environment.read_bytes():
                found.append(int(environment.parent.name))
    return found


class Tail:
    """The end of what a child printed. The rest is read and dropped, so that nothing fills up."""

    def __init__(self) -> None:
        self._kept = b""

    def fill(self, stream: Any) -> None:
        with contextlib.suppress(OSError, ValueError), stream:
            while part := stream.read(2**16):
                self._kept = (self._kept + part)[-OUTPUT:]

    def lines(self, most: int = 10) -> list[str]:
        """The last lines, without what a terminal would obey."""
        text = self._kept.decode("utf-8", "replace")
        printable = "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
        return [line[:200] for line in printable.splitlines()[-most:]]
