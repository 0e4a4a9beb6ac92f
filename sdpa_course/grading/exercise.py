"""What an exercise is: a model with its mistakes as switches, inputs to try it on, and words.

An exercise is declared in one file, beside its wrong programs and the message that each must get.
Its heart is a **model**: the right answer as a plain function whose keyword-only parameters are
switches. With every switch at its default the model is the reference. A **fault** is a setting of
one or more switches, so that faults on different switches compose::

    exercise = Exercise("scaling.scale_scores", kind="implement", title="Scale the scores", ...)

    @exercise.inputs
    def _(rng, B=2, L=5, S=6, d_k=7):
        return {"q": rng.normal(size=(B, L, d_k)), "k": rng.normal(size=(B, S, d_k))}

    @exercise.model
    def _(q, k, *, factor=lambda q: q.shape[-1] ** -0.5):
        return q @ k.swapaxes(-1, -2) * factor(q)

    exercise.fault("scale.forgotten", "The scores are not scaled.", factor=lambda q: 1.0)

Where a mistake is not a setting of the model it is a wrong program of its own, declared with
:meth:`Exercise.program`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

Kind = Literal["implement", "fix", "parsons", "predict", "quiz", "catch"]
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """A named mistake that can be run.

    ``switches`` are settings of the exercise's model; ``program`` is a whole wrong program
    instead. Exactly one of the two is given, except in a *catch* exercise, where ``when`` says of
    an answer whether it makes this mistake and ``program`` returns one such answer.
    """

    id: str
    says: str
    why: str = ""
    link: str = ""
    hint: str = ""
    hidden: str = ""
    cite: str = ""
    switches: Mapping[str, Any] = field(default_factory=dict)
    program: Callable[..., Any] | None = None
    when: Callable[..., bool] | None = None

    def composes_with(self, other: Fault) -> bool:
        """True when both are switch settings and no switch is set by both."""
        return (
            self.program is None
            and other.program is None
            and self.switches.keys().isdisjoint(other.switches)
        )


@dataclass(frozen=True)
class Fit:
    """A continuous switch, whose setting is fitted to the learner's output and then named.

    ``setting(value)`` turns a number into the switch's setting; ``right(dims)`` is the number that
    the formula uses; ``grid`` are the values from which the fit starts. ``says`` may use
    ``{found}``, ``{value}``, ``{right}`` and the dimensions.
    """

    id: str
    switch: str
    says: str
    right: Callable[[Mapping[str, int]], float]
    setting: Callable[[float], Any] = lambda value: value
    grid: tuple[float, ...] = tuple(
        float(s * 10**e) for s in (1, -1) for e in np.linspace(-3, 3, 25)
    )
    integer: bool = False
    why: str = ""
    link: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Probe:
    """One input on which right and wrong differ. ``goal`` is the sub-goal it proves, in words."""

    goal: str
    inputs: Inputs
    dims: Mapping[str, int] = field(default_factory=dict)
    seed: int | None = None
    magnitude: float = 1.0
    loose: float = 0.0

    def fresh(self) -> Inputs:
        """A copy of the inputs that a learner's function may do what it likes with."""
        return {
            name: np.copy(x) if isinstance(x, np.ndarray) else x for name, x in self.inputs.items()
        }


@dataclass(frozen=True)
class Solution:
    """A right way to write the answer. The first one of an exercise is the one shown first."""

    function: Any
    note: str = ""
    backend: str = "numpy"
    shown: bool = True
    name: str = ""

    @property
    def source(self) -> str:
        """The solution as the learner would have typed it, under the learner's name."""
        if isinstance(self.function, str):
            return self.function
        return source_of(self.function, self.name)


@dataclass(frozen=True)
class Option:
    """One choice of a quiz, with the explanation that choosing it brings."""

    letter: str
    text: str
    says: str
    right: bool = False


@dataclass(eq=False)
class Exercise:
    """A graded exercise. See the module's docstring for how one is declared.

    Parameters
    ----------
    id
        ``concept.name``; ``name`` is the name of the function (or variable) the learner writes.
    kind
        ``implement``, ``fix``, ``parsons``, ``predict``, ``quiz`` or ``catch``.
    title, statement
        What the learner reads (Markdown).
    link
        Where the book teaches it: ``"02-scaling#heading-slug"``.
    goals
        Switch → sub-goal in words. A switch that no fault touches is reported as done.
    backends
        ``("numpy",)`` or ``("numpy", "torch")``.
    built_from
        Dotted names of functions that would be the answer itself; an answer may not call them.
    hints
        Said one at a time, when no fault's own hint fits.
    reason
        Why the solution is right, shown with it. ``question`` is asked back.
    tolerance
        For *predict*: relative tolerance of the answer.
    lines, header
        For *parsons*: letter → line of code, and the ``def`` line they stand under.
    outputs
        Names of the returned arrays, where there are several: the result first, then what it was
        computed from.
    properties
        What must hold of any right answer (:mod:`.properties`); asked when no fault fits.
    related
        The inputs belong together, such as weights and the log-sum-exp of the same scores: a
        smallest example shows them as they were made and does not round them one by one.
    exceptions
        Pair of fault ids ``"a b"`` → the reason why it is declared not to be told apart.
    """

    id: str
    kind: Kind
    title: str
    statement: str
    link: str = ""
    goals: Mapping[str, str] = field(default_factory=dict)
    backends: tuple[str, ...] = ("numpy",)
    built_from: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    reason: str = ""
    question: str = ""
    next: str = ""
    tolerance: float | None = None
    lines: Mapping[str, str] = field(default_factory=dict)
    header: str = ""
    outputs: tuple[str, ...] = ("output",)
    properties: tuple[Callable[..., Any], ...] = ()
    related: bool = False
    faults: list[Fault] = field(default_factory=list)
    fits: list[Fit] = field(default_factory=list)
    solutions: list[Solution] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    exceptions: dict[str, str] = field(default_factory=dict)
    stub_function: Callable[..., Any] | None = None
    run: Callable[..., Any] = lambda: None
    box: Callable[..., Any] | None = None
    make_inputs: Callable[..., Inputs] | None = None
    _declared: list[tuple[str, Callable[[], Inputs], dict[str, Any]]] = field(default_factory=list)

    @property
    def concept(self) -> str:
        return self.id.split(".")[0]

    @property
    def name(self) -> str:
        return self.id.split(".")[1]

    # -- declaring ---------------------------------------------------------------------------

    def stub(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as the learner first sees it; in a *fix* exercise, the broken one."""
        self.stub_function = function
        return function

    def model(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The right answer, with the mistakes as keyword-only switches."""
        self.run = function
        return function

    def black_box(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """In a *catch* exercise: the wrong function that the learner must catch."""
        self.box = function
        return function

    def inputs(self, function: Callable[..., Inputs]) -> Callable[..., Inputs]:
        """``make(rng, **sizes) -> inputs``. Its parameters after ``rng`` are the dimensions."""
        self.make_inputs = function
        return function

    def probe(self, goal: str, *, seed: int = 0, magnitude: float = 1.0, **sizes: int) -> None:
        """Add an input made by :meth:`inputs` with these sizes."""

        def make() -> Inputs:
            assert self.make_inputs is not None
            return self.make_inputs(np.random.default_rng(seed), **sizes)

        self._declared.append(
            (goal, make, {"dims": self.dims(**sizes), "seed": seed, "magnitude": magnitude})
        )

    def special(
        self, goal: str, *, magnitude: float = 1.0, loose: float = 0.0, **dims: int
    ) -> Callable[..., Callable[[], Inputs]]:
        """Decorate a function ``() -> inputs`` that makes an input by hand.

        ``magnitude`` is the size of the largest score, if large: it loosens the tolerance as
        rounding does. ``loose`` sets the tolerance itself, for half-precision inputs.
        """

        def add(make: Callable[[], Inputs]) -> Callable[[], Inputs]:
            self._declared.append(
                (goal, make, {"dims": dims, "magnitude": magnitude, "loose": loose})
            )
            return make

        return add

    def add(self, *faults: Fault | Fit) -> None:
        """Add faults declared elsewhere, such as those that several exercises share."""
        for fault in faults:
            (self.fits if isinstance(fault, Fit) else self.faults).append(fault)  # type: ignore[arg-type]

    def fault(
        self,
        id: str,
        says: str,
        *,
        why: str = "",
        link: str = "",
        hint: str = "",
        hidden: str = "",
        cite: str = "",
        **switches: Any,
    ) -> None:
        """Add a mistake as a setting of the model's switches."""
        self.add(Fault(id, says, why, link, hint, hidden, cite, switches))

    def program(self, id: str, says: str, **words: Any) -> Callable[..., Callable[..., Any]]:
        """Decorate a whole wrong program; in *predict*, one that returns a wrong answer."""

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            self.add(Fault(id, says, program=function, **words))
            return function

        return add

    def order(self, id: str, letters: str, says: str, **words: Any) -> None:
        """In *parsons*: a wrong order of the lines and what is wrong with it."""
        self.add(Fault(id, says, program=self.assemble(letters), **words))

    def wrong(self, value: Any, id: str, says: str, **words: Any) -> None:
        """In *predict*: a wrong answer that betrays a known misconception."""
        self.add(Fault(id, says, program=lambda: value, **words))

    def option(self, letter: str, text: str, says: str, *, right: bool = False) -> None:
        """In *quiz*: a choice and the explanation it brings."""
        self.options.append(Option(letter, text, says, right))
        if right:
            self.run = lambda: letter
            self.solutions.insert(0, Solution(letter, says))
        else:
            self.wrong(letter, f"{self.concept}.{self.name}_{letter}", says)

    def solution(self, note: Any = "", *, backend: str = "numpy", shown: bool = True) -> Any:
        """Decorate a right solution; ``shown=False`` for one that only has to be accepted."""

        def add(function: Any) -> Any:
            self.solutions.append(Solution(function, note, backend, shown, self.name))
            return function

        if callable(note):
            function, note = note, ""
            return add(function)
        return add

    # -- reading -----------------------------------------------------------------------------

    def dims(self, **sizes: int) -> dict[str, int]:
        """The dimensions of an input: the sizes in the signature of :meth:`inputs`, overridden."""
        if self.make_inputs is None:
            return sizes
        parameters = list(inspect.signature(self.make_inputs).parameters.values())[1:]
        return {p.name: sizes.get(p.name, p.default) for p in parameters}

    @cached_property
    def probes(self) -> list[Probe]:
        """The fixed probes, in the order in which they were declared."""
        if not self._declared:
            return [Probe("the answer", {})]
        return [Probe(goal, make(), **words) for goal, make, words in self._declared]

    @cached_property
    def expected(self) -> list[Any]:
        """What the reference returns on every fixed probe."""
        return [self.run(**probe.fresh()) for probe in self.probes]

    def fault_named(self, id: str) -> Fault:
        """The fault with this id. Raises KeyError if the exercise has none."""
        for fault in self.faults:
            if fault.id == id:
                return fault
        raise KeyError(f"{self.id} has no fault {id!r}")

    def variant(self, *faults: Fault) -> Callable[..., Any]:
        """The program that makes these mistakes at once; with none, the reference."""
        if len(faults) == 1 and faults[0].program is not None:
            return faults[0].program
        switches: dict[str, Any] = {}
        for fault in faults:
            if fault.program is not None or not switches.keys().isdisjoint(fault.switches):
                raise ValueError(
                    f"{[f.id for f in faults]} do not compose: they set the same switch"
                )
            switches.update(fault.switches)
        return lambda **inputs: self.run(**inputs, **switches)

    def combinations(
        self, size: int, among: Sequence[Fault] | None = None
    ) -> Iterator[tuple[Fault, ...]]:
        """Every set of ``size`` faults that compose, of all faults or of these."""
        faults = self.faults if among is None else among

        def extend(chosen: tuple[Fault, ...], start: int) -> Iterator[tuple[Fault, ...]]:
            if len(chosen) == size:
                yield chosen
                return
            for i in range(start, len(faults)):
                if all(faults[i].composes_with(f) for f in chosen):
                    yield from extend((*chosen, faults[i]), i + 1)

        return extend((), 0)

    def assemble(self, letters: str) -> Callable[..., Any]:
        """In *parsons*: the function made of these lines, in this order.

        Raises SyntaxError when the lines do not form a function and KeyError for an unknown letter.
        """
        source = "\n".join([self.header, *(f"    {self.lines[letter]}" for letter in letters)])
        namespace: dict[str, Any] = {"np": np}
        exec(compile(source, f"<{self.id}>", "exec"), namespace)
        return namespace[self.name]

    @property
    def stub_source(self) -> str:
        """What stands in the cell before the learner types anything."""
        if self.stub_function is not None:
            return source_of(self.stub_function, self.name)
        blank = '""' if self.kind in ("quiz", "parsons") else "None"
        return f"{self.name} = {blank}  # your answer\n"


def source_of(function: Callable[..., Any], name: str = "") -> str:
    """The source of a function without its decorators, at the left margin, under this name."""
    source = textwrap.dedent(inspect.getsource(function))
    start = ast.parse(source).body[0].lineno
    lines = source.splitlines()[start - 1 :]
    if name:
        lines[0] = lines[0].replace(f"def {function.__name__}(", f"def {name}(", 1)
    return "\n".join(lines) + "\n"
