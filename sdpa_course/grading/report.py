"""What a learner sees: one object, shown as text, as HTML and as JSON."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .call import Raised
from .exercise import Exercise, Fault
from .shrink import Example

Status = Literal["passed", "failed", "not_attempted", "error"]
HEADLINE = {
    "passed": "right",
    "failed": "not right yet",
    "not_attempted": "not attempted yet",
    "error": "could not be run",
}
MARK = {"passed": "✓", "failed": "✗", "not_attempted": "○", "error": "!"}


@dataclass(frozen=True)
class Report:
    """The result of one check.

    ``mistakes`` are the faults found; ``faults`` their ids. ``done`` are the sub-goals reached,
    ``notes`` what else is to be said. ``nearest`` is a fault that comes close but does not fit.
    """

    exercise: str
    title: str
    status: Status
    mistakes: tuple[Fault, ...] = ()
    done: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    nearest: Fault | None = None
    example: Example | None = None
    raised: Raised | None = None
    link: str = ""
    advice: str = ""
    backend: str = "numpy"

    @property
    def faults(self) -> list[str]:
        """The ids of the mistakes found; [] when passed."""
        return [fault.id for fault in self.mistakes]

    def to_dict(self) -> dict[str, Any]:
        """Everything in the report, ready for JSON."""
        return {
            "exercise": self.exercise,
            "title": self.title,
            "status": self.status,
            "faults": self.faults,
            "mistakes": [
                {"id": f.id, "says": f.says, "why": f.why, "link": f.link} for f in self.mistakes
            ],
            "nearest": self.nearest.id if self.nearest else None,
            "done": list(self.done),
            "missed": list(self.missed),
            "notes": list(self.notes),
            "example": example_as_dict(self.example) if self.example else None,
            "raised": vars(self.raised) if self.raised else None,
            "link": self.link,
            "advice": self.advice,
            "backend": self.backend,
        }

    def to_text(self) -> str:
        """The report for a terminal."""
        lines = [f"{MARK[self.status]} {self.exercise}: {HEADLINE[self.status]}"]
        lines += [f"  ✓ {goal}" for goal in self.done]
        lines += [f"  ✗ {goal}" for goal in self.missed]
        for fault in self.mistakes:
            lines += ["", f"  {fault.says}  [{fault.id}]"]
            lines += [f"  {fault.why}"] if fault.why else []
            lines += [f"  Read: {place(fault.link)}"] if fault.link not in ("", self.link) else []
        if self.raised:
            lines += ["", f"  {self.raised.type}: {self.raised.message}"]
            lines += [f"    {line}" for line in self.raised.trace.splitlines()]
        lines += [line for note in self.notes for line in ("", f"  {note}")]
        if self.nearest:
            lines += ["", f"  Near, but not the same: {self.nearest.says}"]
        if self.example:
            lines += ["", "  The smallest input that shows it:"]
            lines += [f"    {line}" for line in example_as_text(self.example)]
        if self.link and self.status in ("failed", "error"):
            lines += ["", f"  Read: {place(self.link)}"]
        lines += [f"  {self.advice}"] if self.advice else []
        return "\n".join(lines)

    def to_html(self) -> str:
        """The report for a notebook: the same words, with the two matrices drawn side by side."""
        from .drawing import draw_example

        e, headline = html.escape, HEADLINE[self.status]
        parts = [f"<p><strong>{MARK[self.status]} {e(self.exercise)}: {headline}</strong></p>"]
        goals = [f"<li>✓ {e(goal)}</li>" for goal in self.done]
        goals += [f"<li>✗ {e(goal)}</li>" for goal in self.missed]
        if goals:
            parts.append(f'<ul style="list-style: none; padding-left: 1em">{"".join(goals)}</ul>')
        for fault in self.mistakes:
            read = f" Read: {anchor(fault.link)}." if fault.link not in ("", self.link) else ""
            parts.append(
                f"<p><strong>{e(fault.says)}</strong> {e(fault.why)}{read} "
                f'<a href="../book/field-guide.ipynb#{e(fault.id)}">'
                f"<code>{e(fault.id)}</code></a></p>"
            )
        if self.raised:
            trace = f"<pre>{e(self.raised.trace)}</pre>" if self.raised.trace else ""
            parts.append(
                f"<p><code>{e(self.raised.type)}: {e(self.raised.message)}</code></p>{trace}"
            )
        parts += [f"<p>{e(note)}</p>" for note in self.notes]
        if self.nearest:
            parts.append(f"<p>Near, but not the same: {e(self.nearest.says)}</p>")
        if self.example:
            parts.append("<p>The smallest input that shows it:</p>")
            parts.append(f"<pre>{e(chr(10).join(example_as_text(self.example)))}</pre>")
            parts.append(draw_example(self.example.expected, self.example.actual.value))
        if self.link and self.status in ("failed", "error"):
            parts.append(f"<p>Read: {anchor(self.link)}</p>")
        if self.advice:
            parts.append(f"<p>{e(self.advice)}</p>")
        return (
            f'<section class="sdpa-report sdpa-{self.status}" role="status" '
            f'aria-label="{e(self.exercise)}: {headline}">{"".join(parts)}</section>'
        )

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return self.to_html()


def place(link: str) -> str:
    """Where the book says more: "02-scaling, the wrong root"."""
    page, _, slug = link.partition("#")
    return ", ".join([page, *([slug.replace("-", " ")] if slug else [])])


def anchor(link: str) -> str:
    """The same as a link to the chapter's notebook; the book turns it into one to its page."""
    page, _, slug = link.partition("#")
    target = html.escape(f"../book/{page}.ipynb" + (f"#{slug}" if slug else ""))
    return f'<a href="{target}">{html.escape(place(link))}</a>'


def example_as_text(example: Example) -> list[str]:
    """Inputs, expected and actual, aligned."""
    shown = {**{f"{name}": x for name, x in example.inputs.items()}, "expected": example.expected}
    raised = example.actual.raised
    shown["yours"] = f"{raised.type}: {raised.message}" if raised else example.actual.value
    width = max(map(len, shown)) + 2
    lines = []
    for name, x in shown.items():
        first, *rest = written(x).splitlines() or [""]
        lines += [f"{name:<{width}}{first}", *(" " * width + line for line in rest)]
    return lines


def written(x: Any) -> str:
    """A value in few characters, rounded to four figures."""
    if isinstance(x, tuple):
        return "\n".join(map(written, x))
    if isinstance(x, np.ndarray):
        if x.size > 60:
            return f"array of shape {x.shape}"
        return np.array2string(
            x, precision=4, suppress_small=bool(x.size and np.abs(np.nan_to_num(x)).max() < 1e5)
        )
    return f"{x:.4g}" if isinstance(x, float) else str(x)


def example_as_dict(example: Example) -> Mapping[str, Any]:
    raised = example.actual.raised
    return {
        "inputs": {name: jsonable(x) for name, x in example.inputs.items()},
        "expected": jsonable(example.expected),
        "actual": {"raised": raised.type, "message": raised.message}
        if raised
        else jsonable(example.actual.value),
    }


def jsonable(x: Any) -> Any:
    """Arrays as nested lists; NaN and infinities, which JSON has not, as strings."""
    if isinstance(x, tuple):
        return [jsonable(part) for part in x]
    if isinstance(x, np.ndarray):
        return jsonable(x.tolist())
    if isinstance(x, list):
        return [jsonable(part) for part in x]
    if isinstance(x, float) and not np.isfinite(x):
        return str(x)
    if isinstance(x, np.generic):
        return jsonable(x.item())
    return x


def not_attempted(exercise: Exercise, note: str = "") -> Report:
    return Report(
        exercise.id,
        exercise.title,
        "not_attempted",
        notes=(note,) if note else (),
        link=exercise.link,
    )


def passed(exercise: Exercise, **words: Any) -> Report:
    return Report(
        exercise.id, exercise.title, "passed", link=exercise.link, advice=exercise.next, **words
    )


def failed(exercise: Exercise, faults: tuple[Fault, ...] = (), **words: Any) -> Report:
    link = next((f.link for f in faults if f.link), exercise.link)
    return Report(exercise.id, exercise.title, "failed", mistakes=faults, link=link, **words)


def error(exercise: Exercise, note: str) -> Report:
    return Report(
        exercise.id, exercise.title, "error", notes=(note,) if note else (), link=exercise.link
    )


def timed_out(exercise: Exercise, why: str) -> Report:
    advice = "" if "ended the process" in why else " Is there a loop that never ends?"
    return error(exercise, f"Your code was stopped: {why}.{advice}")
