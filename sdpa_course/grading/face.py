"""What a learner calls: check, hint, solution, progress, review."""

from __future__ import annotations

from typing import Any

from .check import check_answer
from .report import Report


def check(answer: Any, exercise: Any = None, *, backend: str | None = None) -> Report:
    """Grade an answer and say what is wrong with it.

    Parameters
    ----------
    answer
        The function you wrote; or, for a prediction, a quiz or an order of lines, your answer.
    exercise
        Its name, such as ``"scaling.scale_scores"``. Not needed where the function's own name says it.
    backend
        ``"numpy"`` or ``"torch"``; found out from what the function returns if left out.

    Returns
    -------
    Report
        ``report.status``, ``report.faults``, ``report.to_dict()``. It shows itself in a notebook.

    Raises
    ------
    LookupError
        If there is no such exercise.
    """
    from ..exercises import find

    found = find(exercise if exercise is not None else answer)
    return check_answer(found, answer, backend=backend)
