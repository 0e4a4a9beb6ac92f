"""The graded exercises: one module per concept, found by name.

Nothing here runs an exercise; the modules are imported when one of their exercises is asked for.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module, util
from typing import Any

from ..grading.exercise import Exercise

CHAPTERS: dict[str, str] = {
    "00": "lookup",
    "01": "dot_product",
    "02": "scaling",
    "03": "softmax",
    "04": "attention",
    "05": "masking",
    "06": "multihead",
    "07": "backward",
    "08": "training",
}


@cache
def chapters() -> dict[str, str]:
    """Chapter number → concept, for the chapters that have exercises."""
    return {n: c for n, c in CHAPTERS.items() if util.find_spec(f"{__name__}.{c}") is not None}


@cache
def exercises_of(concept: str) -> tuple[Exercise, ...]:
    """The exercises of a concept, in teaching order. Raises LookupError for an unknown concept."""
    if concept not in chapters().values():
        raise LookupError(
            f"There is no concept {concept!r}. There are: {', '.join(chapters().values())}."
        )
    return tuple(import_module(f"{__name__}.{concept}").EXERCISES)


def all_exercises() -> tuple[Exercise, ...]:
    """Every exercise, in the order of the book."""
    return tuple(e for concept in chapters().values() for e in exercises_of(concept))


def find(name: Any) -> Exercise:
    """The exercise called ``concept.name`` or ``name``, or the one a function is named after.

    Raises LookupError, with the nearest names, when there is none.
    """
    name = name if isinstance(name, str) else getattr(name, "__name__", repr(name))
    concept = name.split(".")[0]
    among = (
        exercises_of(concept) if "." in name and concept in chapters().values() else all_exercises()
    )
    for exercise in among:
        if name in (exercise.id, exercise.name):
            return exercise
    from difflib import get_close_matches

    near = get_close_matches(name, [x for e in all_exercises() for x in (e.id, e.name)], n=3)
    advice = f" Did you mean {' or '.join(near)}?" if near else " `sdpa list` names them all."
    raise LookupError(f"No exercise is called {name!r}.{advice}")
