"""Calling a learner's function once, and keeping what came of it.

Whatever the function does, the result is an :class:`Outcome` of plain arrays: a subclass with a
lying ``__eq__``, an object array or a generator never gets as far as a comparison.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

STOPPED = ("TimeUp", "Killed")  # types of Raised: the code did not end by itself

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
    called: tuple[str, ...] = ()


class Runner(Protocol):
    """Something that calls the learner's function: here, or in a child process.

    ``ask`` is what to find out: the ``value``; which of the functions in ``watch`` it ``calls``;
    or, in torch, the ``gradient`` of every input, and whether it runs on another device (``meta``).
    """

    backend: str

    def __call__(self, inputs: Mapping[str, Any], ask: str = "value") -> Outcome: ...


class TimeUp(BaseException):
    """The learner's code ran past its time. No Exception: `except Exception` lets it by."""


class UnusableValue(TypeError):
    """The function returned something that holds no numbers."""


class LocalRunner:
    """Calls a function in this process."""

    def __init__(
        self, function: Callable[..., Any], backend: str = "numpy", watch: tuple[str, ...] = ()
    ) -> None:
        self.function = function
        self.backend = backend
        self.watch = watch

    def __call__(self, inputs: Mapping[str, Any], ask: str = "value") -> Outcome:
        given = {name: to_backend(x, self.backend) for name, x in inputs.items()}
        before = {name: plain(x) for name, x in given.items()}
        try:
            with np.errstate(all="ignore"):
                if ask == "gradient":
                    return Outcome(gradients(self.function, given), backend="torch")
                if ask == "meta":
                    invoke(self.function, {name: on_meta(x) for name, x in given.items()})
                    return Outcome(backend="torch")
                if ask == "calls":
                    return Outcome(called=calls_made(self.function, given, self.watch))
                raw = invoke(self.function, given)
                backend = "torch" if returns_torch(raw) else "numpy"
                returned = plain(raw)
        except TimeUp as stop:
            return Outcome(raised=Raised("TimeUp", str(stop)), backend=self.backend)
        except UnusableValue as error:
            return Outcome(raised=Raised("UnusableValue", str(error)), backend=self.backend)
        except (Exception, SystemExit) as error:
            return Outcome(raised=describe(error), backend=self.backend)
        changed = tuple(name for name in given if not identical(before[name], plain(given[name])))
        return Outcome(returned, None, changed, backend)


def invoke(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call by name where the function has these names, else in order: a learner may rename."""
    return function(**given) if takes_by_name(function, given) else function(*given.values())


def takes_by_name(function: Callable[..., Any], given: Mapping[str, Any]) -> bool:
    """True when the parameters have these names, or the function takes nothing in order.

    A catch-all ``**kwargs`` is no name: ``partial(np.einsum, "...")`` wants its arrays in order.
    And a decorator's wrapper may claim the names of what it wraps and yet take ``*args`` alone.
    """
    try:
        inspect.signature(function, follow_wrapped=False).bind(**given)
        signature = inspect.signature(function)
        signature.bind(**given)
    except (TypeError, ValueError):
        return False
    if given.keys() <= signature.parameters.keys():
        return True
    try:
        signature.bind(*given.values())
    except TypeError:
        return True
    return False


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
        return np.array(
            (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(), subok=False
        )
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
    return (
        value is None
        or isinstance(value, np.ndarray)
        or (torch is not None and isinstance(value, torch.Tensor))
    )


def identical(a: Value, b: Value) -> bool:
    """True when two plain values are the same, NaN equal to NaN."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return (
            a.shape == b.shape
            and a.dtype == b.dtype
            and bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
        )
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


def gradients(function: Callable[..., Any], given: Mapping[str, Any]) -> tuple[Any, ...]:
    """The gradient of every floating input, of the sum of squared outputs; None where cut."""
    floats = [
        x.requires_grad_()
        for x in given.values()
        if hasattr(x, "is_floating_point") and x.is_floating_point()
    ]
    value = invoke(function, given)
    parts = value if isinstance(value, (tuple, list)) else (value,)
    loss = sum((part.nan_to_num() ** 2).sum() for part in parts)
    if getattr(loss, "requires_grad", False):
        loss.backward()
    return tuple(None if x.grad is None else plain(x.grad) for x in floats)


def on_meta(x: Any) -> Any:
    return x.to("meta") if returns_torch(x) else x


def calls_made(
    function: Callable[..., Any], given: Mapping[str, Any], watch: tuple[str, ...]
) -> tuple[str, ...]:
    """Which of these functions (dotted names) are called, however the learner got hold of them."""
    targets = {name: target for name in watch if (target := loaded(name)) is not None}
    code = {t.__code__: name for name, t in targets.items() if hasattr(t, "__code__")}
    built_in = {name: t for name, t in targets.items() if name.startswith("torch.")}
    seen: set[str] = set()

    def look(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code in code:
            seen.add(code[frame.f_code])
        elif event == "c_call":
            method_of = type(getattr(arg, "__self__", None)).__module__
            seen.update(
                name
                for name, target in built_in.items()
                if arg is target
                or (method_of.startswith("torch") and name.endswith(f".{arg.__name__}"))
            )

    previous = sys.getprofile()
    sys.setprofile(look)
    try:
        invoke(function, given)
    finally:
        sys.setprofile(previous)
    words = getattr(getattr(function, "__code__", None), "co_names", ())
    seen.update(
        n for n, t in targets.items() if isinstance(t, np.ufunc) and n.rsplit(".", 1)[1] in words
    )
    return tuple(sorted(seen))


def loaded(name: str) -> Any:
    """The object with this dotted name, if its module has been imported; else None."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        if (found := sys.modules.get(".".join(parts[:cut]))) is not None:
            for part in parts[cut:]:
                found = getattr(found, part, None)
            return found
    return None


def describe(error: BaseException) -> Raised:
    """The exception with the learner's own lines, without ours above or a library's below."""
    frames = traceback.extract_tb(error.__traceback__)
    others = ("site-packages", "/lib/python", __file__)
    own = [f for f in frames if not any(path in f.filename for path in others)]
    lines = []
    for frame in own[-3:]:
        text = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
        lines.append(f"line {frame.lineno}, in {frame.name}: {text}")
    return Raised(type(error).__name__, str(error), "\n".join(lines))


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeUp in the code inside after so long; Windows has no timer for it."""
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
