"""What a learner calls: check, hint, solution, progress, review."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import progress as kept
from .answers import check_answer, written_source
from .exercise import Exercise
from .report import Report

AFTER_AN_ATTEMPT = "Try once more first, with what the last hint said. The next hint follows it."


@dataclass(frozen=True)
class Message:
    """A few words in Markdown."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return self.text


def check(answer: Any, exercise: Any = None, *, backend: str | None = None) -> Report:
    """Grade an answer and say what is wrong with it.

    Parameters
    ----------
    answer
        The function you wrote; or, for a prediction, a quiz or an order of lines, your answer.
    exercise
        Its name, such as ``"scaling.scale_scores"``. Left out, the function's own name says it.
    backend
        ``"numpy"`` or ``"torch"``. Left out, it is seen from what the function returns.

    Returns
    -------
    Report
        ``report.status``, ``report.faults``, ``report.to_dict()``. It shows itself in a notebook.

    Raises
    ------
    LookupError
        If there is no such exercise.
    """
    found = named(exercise if exercise is not None else answer)
    report = check_answer(found, answer, backend=backend)
    if report.status != "not_attempted":
        kept.record(found.id, report.status, report.faults, written_source(answer))
    return report


def hint(exercise: Any) -> Message:
    """The next hint for an exercise, about the mistake found last. One for each new attempt.

    The last hint is the worked solution. Raises LookupError if there is no such exercise.
    """
    found = named(exercise)
    given = {old.text for old in kept.hints_given(found.id)}
    left = [text for text in ladder(found) if text not in given]
    if not left:
        return solution(found)
    return Message(left[0] if kept.record_hint(found.id, left[0]) else AFTER_AN_ATTEMPT)


def ladder(exercise: Exercise) -> list[str]:
    """The hints in order: those of the mistakes found last, then the exercise's own."""
    last = kept.last_attempt(exercise.id)
    hints = {fault.id: fault.hint for fault in exercise.faults}
    hints |= {fit.id: fit.hint for fit in exercise.fits}
    about = [hints.get(id, "") for id in (last.faults if last else ())]
    return [text for text in (*about, *exercise.hints) if text]


def solution(exercise: Any) -> Message:
    """A worked solution, why it is right, a second way to write it, and a question back.

    Raises LookupError if there is no such exercise.
    """
    found = named(exercise)
    lines = [f"**{found.title}**", ""]
    if found.kind == "predict":
        lines += [f"Measured: {float(found.run()):.4g}.", ""]
    for i, way in enumerate([s for s in found.solutions if s.shown][:2]):
        note = f"Another way: {way.note}" if i and way.note else "Another way:" if i else way.note
        code = way.source if found.kind == "quiz" else f"```python\n{way.source}```"
        lines += [note, "", code, ""] if note else [code, ""]
    lines += [text for text in (found.reason, found.question, found.next) if text]
    return Message("\n".join(lines).strip())


def progress() -> kept.Progress:
    """What you have done: chapters, exercises, attempts, and what is due for review."""
    from ..exercises import chapters, exercises_of

    return kept.Progress(
        (number, concept.replace("_", " "), [(e.id, e.title) for e in exercises_of(concept)])
        for number, concept in chapters().items()
    )


def review() -> Message:
    """What you passed some time ago and would do well to do again now."""
    due = kept.review()
    if not due:
        return Message("Nothing is due for review.")
    return Message("\n".join(["Worth doing again now:", "", *(f"- {id}" for id in due)]))


def named(exercise: Any) -> Exercise:
    from ..exercises import find

    return exercise if isinstance(exercise, Exercise) else find(exercise)
