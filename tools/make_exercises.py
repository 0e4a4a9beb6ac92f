"""Write the exercise notebooks from the declarations of the exercises.

    python tools/make_exercises.py            write those that have changed
    python tools/make_exercises.py --check    say which are out of date

A notebook in exercises/ is made, never edited: change sdpa_course/exercises/ and run this.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["SDPA_PROGRESS"] = "off"

from sdpa_course.exercises import chapters, exercises_of, find  # noqa: E402
from sdpa_course.grading.answers import check_answer  # noqa: E402
from sdpa_course.grading.notebook import (  # noqa: E402
    as_text,
    file_name,
    notebook,
    stub,
    with_outputs,
)

FOLDER = ROOT / "exercises"


def main() -> None:
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    wanted = wanted_files()
    stale = [path for path, text in wanted.items() if not path.exists() or read(path) != text]
    extra = sorted(set(FOLDER.glob("*.ipynb")) - set(wanted))
    if "--check" in sys.argv:
        for path in stale + extra:
            print(f"{path.relative_to(ROOT)} is out of date: python tools/make_exercises.py")
        sys.exit(1 if stale or extra else 0)
    FOLDER.mkdir(exist_ok=True)
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8", newline="\n")
        print(f"wrote {path.relative_to(ROOT)}")
    for path in extra:
        path.unlink()
        print(f"removed {path.relative_to(ROOT)}, which no chapter has")


def wanted_files() -> dict[Path, str]:
    """Every notebook and what has to be in it."""
    return {
        FOLDER / file_name(number, concept): as_text(
            with_outputs(notebook(number, concept, exercises_of(concept)), untouched)
        )
        for number, concept in chapters().items()
    }


def untouched(exercise_id: str):
    """The report on an exercise that nobody has begun."""
    exercise = find(exercise_id)
    space: dict = {}
    exec(stub(exercise), space)
    return check_answer(exercise, space[exercise.name], source=stub(exercise))


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    main()
