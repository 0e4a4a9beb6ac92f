"""The other side of :mod:`.isolate`: runs somebody's code and answers with arrays.

Started as a script, never imported. Everything that the exchange of messages needs is bound before
the first line of the submission runs. It holds no answer: the process that started it compares.
The arguments are one JSON object, made by ``isolate.start``.
"""

# ruff: noqa: E402  (where modules are found is one of the arguments)
import sys

SETTINGS = __import__("json").loads(sys.argv[1])
sys.path[:] = SETTINGS["path"]
sys.argv[1:] = []

import builtins
import contextlib
import importlib.util
import io
import linecache
import os
import signal
import threading
import types
from importlib.machinery import SourceFileLoader

import numpy as np
import numpy.linalg
import numpy.random

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(HERE)
ROOM = os.path.realpath(SETTINGS["room"])


def sibling(name):
    """A module beside this file, loaded without the package around it."""
    loader = SourceFileLoader(f"_grader_{name}", f"{HERE}/{name}.py")
    module = sys.modules[loader.name] = types.ModuleType(loader.name)
    module.__file__ = loader.path
    loader.exec_module(module)
    return module


frames, call = sibling("frames"), sibling("call")


def main():
    requests, answer = open_pipes()
    torch_is_here = SETTINGS["torch"] and importlib.util.find_spec("torch") is not None
    if torch_is_here:
        import torch

        torch.set_num_threads(1)
    put_stand_ins()
    limit()
    follow_parent()
    forbid()
    module = types.ModuleType("__main__" if SETTINGS["notebook"] else "submission")
    sys.modules[module.__name__] = module
    vars(module)["display"] = lambda *things, **_: print(*things)
    exchange(requests, answer, vars(module))


def exchange(requests, answer, space):
    """Answer one request after the other until there are no more."""
    encode, read, number = frames.encode, frames.read, 0
    bad, outcome, raised = frames.BadFrame, call.Outcome, call.Raised
    while (request := read(requests)) is not None:
        number += 1
        try:
            result = respond(request, space)
        except BaseException as error:  # SystemExit, TimeUp and what else people raise
            result = outcome(raised=described(error))
        try:
            message = encode({"number": number, **as_message(result)})
        except bad as error:
            short = outcome(raised=raised("UnusableValue", str(error)))
            message = encode({"number": number, **as_message(short)})
        answer(message)


def respond(request, space):
    with call.time_limit(request["seconds"]):
        if request["do"] == "cell":
            run_cell(request["source"], request["label"], request["line"], space)
            return call.Outcome()
        if request["do"] == "read":
            return call.Outcome(plain_or_dict(space.get(request["name"])))
        function = space.get(request["name"])
        if function is None:
            raise NotImplementedError
        if not callable(function):
            if request["do"] == "produce":
                return call.Outcome(plain_or_dict(function))
            raise TypeError(f"expected a function, got {type(function).__name__}")
        if request["do"] == "produce":
            with np.errstate(all="ignore"):
                return call.Outcome(plain_or_dict(function()))
        runner = call.LocalRunner(function, request["backend"], request["watch"])
        return runner(request["inputs"], request["ask"])


def run_cell(source, label, line, space):
    """Run the statements of a cell, the first of which stands in this line."""
    padded = "\n" * (line - 1) + source
    known = linecache.cache.get(label, (0, None, [], label))[2]
    lines = known[: line - 1] + padded.splitlines(keepends=True)[len(known[: line - 1]) :]
    linecache.cache[label] = (len(padded), None, lines, label)
    exec(compile(padded, label, "exec"), space)


def plain_or_dict(value):
    if isinstance(value, dict):
        return {str(key): call.plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)) and all(isinstance(x, str) for x in value):
        return "".join(value)  # the order of lines as a list of letters
    return call.plain(value)


def as_message(outcome):
    raised = outcome.raised
    return {
        "value": outcome.value,
        "raised": raised and (raised.type, raised.message[:2000], raised.trace[:4000]),
        "changed": tuple(outcome.changed),
        "called": tuple(outcome.called),
        "backend": outcome.backend,
    }


def described(error):
    if isinstance(error, call.TimeUp):
        return call.Raised("TimeUp", str(error))
    own = error.__traceback__
    while own.tb_next and own.tb_frame.f_code.co_filename == __file__:
        own = own.tb_next
    try:
        return call.describe(error.with_traceback(own))
    except Exception:  # an exception that cannot be shown
        return call.Raised("Exception", "your code raised an exception that cannot be shown")


def open_pipes():
    """Requests come by stdin and answers go by stdout; the submission gets neither."""
    requests = io.FileIO(os.dup(0), "rb")
    answers = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    for stream in ("stdout", "stderr"):
        wrapped = io.TextIOWrapper(
            io.FileIO(1, "wb", closefd=False), "utf-8", "replace", write_through=True
        )
        setattr(sys, stream, wrapped)
    write = os.write

    def answer(message):
        left = memoryview(message)
        while left:
            left = left[write(answers, left) :]

    return requests.read, answer


class Inert:
    """Stands in for what the course gives a learner: everything it is asked for does nothing."""

    def __call__(self, *_, **__):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __bool__(self):
        return False

    def __iter__(self):
        return iter(())

    def __repr__(self):
        return ""


def put_stand_ins():
    """`from sdpa_course import check` works here; the exercises and their answers are not there."""
    with contextlib.suppress(ImportError):
        import sdpa_course

        for name in ("check", "hint", "solution", "progress", "review"):
            setattr(sdpa_course, name, Inert())
        for name in ("grading", "exercises", "cli"):
            sys.modules[f"sdpa_course.{name}"] = None  # type: ignore[assignment]


def limit():
    """Bound processor time, memory, open files and the size of a file, where the system can."""
    try:
        import resource
    except ImportError:  # Windows
        return
    seconds, memory = SETTINGS["cpu"], SETTINGS["memory"]
    wanted = {
        "RLIMIT_CPU": seconds,
        "RLIMIT_AS": used_memory() + memory,
        "RLIMIT_FSIZE": 2**24,
        "RLIMIT_NOFILE": 128,
        "RLIMIT_CORE": 0,
    }
    for name, most in wanted.items():
        with contextlib.suppress(ValueError, OSError, AttributeError):
            resource.setrlimit(getattr(resource, name), (most, most))


def used_memory():
    """The address space in use, in bytes; torch reserves much without touching it."""
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def follow_parent():
    """On Linux: end when the grader ends, and start no process and no connection."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(Exception):
        import ctypes

        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        sibling("seccomp").refuse_processes_and_sockets(prctl)
    if os.getppid() != SETTINGS["parent"]:
        os._exit(1)  # it ended before we could ask


# -- what a submission may not do ------------------------------------------------------------------

PROCESSES = "an answer may not start or signal other processes"
NETWORK = "an answer may not use the network"
NATIVE = "an answer may not call native code"
LIMITS = "an answer may not change its limits"
REFUSED = {
    "subprocess.Popen": PROCESSES,
    "os.system": PROCESSES,
    "os.exec": PROCESSES,
    "os.fork": PROCESSES,
    "os.forkpty": PROCESSES,
    "os.posix_spawn": PROCESSES,
    "os.spawn": PROCESSES,
    "os.startfile": PROCESSES,
    "os.startfile/2": PROCESSES,
    "pty.spawn": PROCESSES,
    "os.kill": PROCESSES,
    "os.killpg": PROCESSES,
    "ctypes.dlopen": NATIVE,
    "ctypes.dlsym": NATIVE,
    "ctypes.dlsym/handle": NATIVE,
    "ctypes.call_function": NATIVE,
    "ctypes.string_at": NATIVE,
    "ctypes.wstring_at": NATIVE,
    "ctypes.cdata": NATIVE,
    "ctypes.cdata/buffer": NATIVE,
    "resource.setrlimit": LIMITS,
    "resource.prlimit": LIMITS,
}
CHANGES = {  # event → which of its arguments are paths
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.mkdir": (0,),
    "os.rmdir": (0,),
    "os.link": (0, 1),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.utime": (0,),
    "os.setxattr": (0,),
    "sqlite3.connect": (0,),
}
HIDDEN = tuple(os.path.join(PACKAGE, name) + os.sep for name in ("exercises", "grading"))
HIDDEN_MODULES = tuple(f"sdpa_course.{name}" for name in ("exercises", "grading", "cli"))
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def forbid():
    """Refuse, for good, what no answer to an exercise needs."""
    realpath, isdir, fsdecode, starts = os.path.realpath, os.path.isdir, os.fsdecode, str.startswith
    separator, room, devnull, own = os.sep, ROOM, os.devnull, f"/proc/{os.getpid()}/"
    refused, changes, hidden, modules = dict(REFUSED), dict(CHANGES), HIDDEN, HIDDEN_MODULES
    writes, error, network = WRITES, PermissionError, NETWORK
    isin, get, number = isinstance, dict.get, int

    def full(path):
        return realpath(fsdecode(path))

    def inside(path):
        return path == room or starts(path, room + separator)

    def check_open(path, mode, flags):
        if isin(path, number):
            return
        path = full(path)
        if isin(flags, number) and flags & writes and not inside(path) and path != devnull:
            raise error(f"an answer may write only in its own folder, not to {path}")
        if mode is None and isdir(path) and not inside(path):  # os.open: paths could start from it
            raise error("an answer may open a folder only inside its own")
        foreign = starts(path, "/proc/") and path[6:7].isdigit() and not starts(path, own)
        if starts(path, hidden) or foreign:
            raise error("an answer may not read the course's own files")

    def hook(event, arguments):
        if event == "open":
            check_open(*arguments)
        elif event == "import":
            if starts(arguments[0], modules):
                raise error(f"an answer may not import {arguments[0]}")
        elif starts(event, "socket.") and event not in ("socket.gethostname",):
            raise error(network)
        elif (why := get(refused, event)) is not None:
            raise error(why)
        elif (paths := get(changes, event)) is not None:
            for i in paths:
                path = arguments[i]
                if not isin(path, number) and not inside(full(path)):
                    raise error(f"an answer may change only its own folder, not {path}")

    with contextlib.suppress(ImportError):
        import _posixsubprocess

        def fork_exec(*_, **__):
            raise PermissionError(PROCESSES)

        _posixsubprocess.fork_exec = fork_exec
        if "subprocess" in sys.modules:
            vars(sys.modules["subprocess"])["_fork_exec"] = fork_exec
    vars(builtins).update(exit=sys.exit, quit=sys.exit)
    threading.excepthook = lambda _: None
    sys.addaudithook(hook)


if __name__ == "__main__":
    main()
