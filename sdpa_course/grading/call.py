"""Calling a learner's function once, and keeping what came of it.

Whatever the function does, the result is an :class:`Outcome` of plain arrays: a subclass with a lying
``__eq__``, an object array or a generator never gets as far as a comparison.
"""

from __future__ import annotations

import contextlib
import linecache
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Value = Any  # np.ndarray, str, None, or a tuple of these


@dataclass(frozen=True)
class Raised:
    """An exception in the learner's code, seen from their first line on."""

    type: str
    message: str
    trace: str = ""


@dataclass(frozen=True)
class Outcome:
    """What one call returned (``value``) or raised, and which of its inputs it changed."""

    value: Value = None
    raised: Raised | None = None
    changed: tuple[str, ...] = ()
    backend: str = "numpy"


class Runner(Protocol):
    """Something that calls the learner's function: here, or in a child process."""

    backend: str

    def __call__(self, inputs: Mapping[str, Any]) -> Outcome: ...


class TimeUp(BaseException):
    """The learner's code ran past its time. Not an Exception, so that `except Exception` lets it by."""


class UnusableValue(TypeError):
    """The function returned something that holds no numbers."""


class LocalRunner:
    """Calls a function in this process."""

    def __init__(self, function: Callable[..., Any], backend: str = "numpy") -> None:
        self.function = function
        self.backend = backend

    def __call__(self, inputs: Mapping[str, Any]) -> Outcome:
        given = {name: to_backend(x, self.backend) for name, x in inputs.items()}
        before = {name: plain(x) for name, x in given.items()}
        try:
            with np.errstate(all="ignore"):
                returned = plain(self.function(**given))
        except TimeUp as stop:
            return Outcome(raised=Raised("TimeUp", str(stop)), backend=self.backend)
        except UnusableValue as error:
            return Outcome(raised=Raised("UnusableValue", str(error)), backend=self.backend)
        except (Exception, SystemExit) as error:
            return Outcome(raised=describe(error), backend=self.backend)
        changed = tuple(name for name in given if not identical(before[name], plain(given[name])))
        return Outcome(returned, None, changed, self.backend)


def plain(value: Any) -> Value:
    """The value as base-class arrays (or strings), copied; tuples and lists of arrays as tuples.

    Raises UnusableValue for anything else.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (tuple, list)) and any(holds_array(part) for part in value):
        return tuple(plain(part) for part in value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach().cpu()
        return np.array((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(), subok=False)
    if not isinstance(value, (np.ndarray, np.generic, bool, int, float, list, tuple)):
        raise UnusableValue(f"expected an array, got {type(value).__name__}")
    try:
        array = np.array(value, copy=True, subok=False)
    except ValueError as error:
        raise UnusableValue(f"expected an array, got rows of unequal length ({error})") from None
    if array.dtype.kind not in "biuf":
        raise UnusableValue(f"expected numbers, got an array of {array.dtype}")
    return array


def holds_array(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return value is None or isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def identical(a: Value, b: Value) -> bool:
    """True when two plain values are the same, NaN equal to NaN."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and a.dtype == b.dtype and bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(identical, a, b))
    return bool(a == b)


def to_backend(x: Any, backend: str) -> Any:
    """An array as the backend's own kind; anything else as it is."""
    if backend == "torch" and isinstance(x, np.ndarray):
        return sys.modules["torch"].from_numpy(np.array(x))
    return np.copy(x) if isinstance(x, np.ndarray) else x


def returns_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return torch is not None and any(isinstance(part, torch.Tensor) for part in parts)


def describe(error: BaseException) -> Raised:
    """The exception with the learner's own lines, without ours above or a library's below."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [f for f in frames if not ("site-packages" in f.filename or "/lib/python" in f.filename)]
    lines = []
    for frame in own[-3:]:
        text = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
        lines.append(f"line {frame.lineno}, in {frame.name}: {text}")
    return Raised(type(error).__name__, str(error), "\n".join(lines))


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeUp in the code inside after so long, where the platform has timers (not Windows)."""
    usable = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not usable:
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeUp(f"still running after {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
