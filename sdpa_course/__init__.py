"""Scaled dot-product attention: a course, its implementations, and a grader that names the mistake.

The public face is small: ``check``, ``hint``, ``solution``, ``progress``, ``review``. Importing the
package imports nothing else; NumPy, torch and matplotlib come with the modules that use them
(``sdpa_course.with_numpy``, ``sdpa_course.with_torch``, ``sdpa_course.plots``).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .grading.face import check, hint, progress, review, solution

__all__ = ["check", "hint", "progress", "review", "solution"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in __all__:
        from .grading import face

        return getattr(face, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
