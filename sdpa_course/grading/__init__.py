"""The engine that grades: it knows no exercise.

``check``, ``hint``, ``solution``, ``progress`` and ``review`` are what a learner calls.
"""

from .face import check

__all__ = ["check"]
