"""The ``sdpa`` command.

Exit status: 0 when everything that was checked passed, 1 when something did not, 2 when it could
not be run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

OWN_FOLDER = "my-work"
MARKS = {"✓": "32", "✗": "31", "!": "33"}  # a line's first mark → its colour


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit status."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a console that cannot show ✓ shows ?
    words = parser().parse_args(arguments)
    if words.command is None:
        parser().print_help()
        return 2
    try:
        status = words.run(words)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read the output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (LookupError, ValueError, OSError) as problem:
        print(f"sdpa {words.command}: {message(problem)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="sdpa", description="The exercises of the attention course.")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")

    def command(run: Any, says: str) -> argparse.ArgumentParser:
        name = run.__name__.removesuffix("_command")
        made = commands.add_parser(name, help=says, description=says)
        made.set_defaults(run=run)
        return made

    command(list_command, "list the chapters and their exercises")
    start = command(start_command, f"put a chapter's exercise notebook into {OWN_FOLDER}/")
    start.add_argument(
        "chapter", nargs="?", help='its number or concept, such as "02"; all if none'
    )
    check = command(check_command, "grade every exercise that a notebook or Python file answers")
    check.add_argument("file", type=Path)
    check.add_argument("--json", action="store_true", help="print the reports as JSON")
    for run, says in (
        (hint_command, "the next hint; one for each new attempt"),
        (solution_command, "a worked solution and why it is right"),
    ):
        command(run, says).add_argument("exercise", help='such as "scaling.scale_scores"')
    progress = command(progress_command, "what you have done")
    way = progress.add_mutually_exclusive_group()
    way.add_argument("--export", metavar="FILE", help='write it as JSON; "-" prints it')
    way.add_argument("--import", metavar="FILE", dest="read", help="add what was exported")
    way.add_argument("--json", action="store_true", help="print the overview as JSON")
    command(review_command, "what is worth doing again now")
    command(doctor_command, "what is installed and found here")
    return top


def list_command(_: argparse.Namespace) -> int:
    from .exercises import chapters, exercises_of

    for number, concept in chapters().items():
        print(f"{number} {concept}")
        for exercise in exercises_of(concept):
            print(f"   {exercise.id:<44} {exercise.kind:<10} {exercise.title}")
    return 0


def start_command(words: argparse.Namespace) -> int:
    for number, concept in chosen(words.chapter):
        path, said = put(Path(OWN_FOLDER), *fresh_notebook(number, concept))
        print(f"{path}: {said}")
    print(f"Open one with: jupyter lab {OWN_FOLDER}")
    return 0


def chosen(chapter: str | None) -> list[tuple[str, str]]:
    """The chapters that are meant by a number, a concept or nothing."""
    from .exercises import chapters

    wanted = [
        (number, concept)
        for number, concept in chapters().items()
        if chapter is None or chapter in (number, number.lstrip("0"), concept)
    ]
    if not wanted:
        names = ", ".join(f"{number} {concept}" for number, concept in chapters().items())
        raise LookupError(f"There is no chapter {chapter!r}. There are: {names}.")
    return wanted


def fresh_notebook(number: str, concept: str) -> tuple[str, str]:
    """File name and text: the repository's own notebook or, where there is none, one made now."""
    from .exercises import exercises_of
    from .grading.notebook import as_text, file_name, notebook

    name = file_name(number, concept)
    if (shipped := exercise_notebooks() / name).exists():
        return name, shipped.read_text(encoding="utf-8")
    return name, as_text(notebook(number, concept, exercises_of(concept)))


def exercise_notebooks() -> Path:
    """Where the repository keeps them. An installed package has no such folder."""
    return Path(__file__).resolve().parent.parent / "exercises"


def put(folder: Path, name: str, text: str) -> tuple[Path, str]:
    """Write a file without touching one that is there. Returns where, and what was done."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in names_for(folder / name):
        try:
            with path.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except FileExistsError:
            if path.read_text(encoding="utf-8", errors="replace") == text:
                return path, "there already, not begun"
            continue
        second = "" if path.name == name else f" ({name} holds your work and stays as it is)"
        return path, f"written{second}"
    raise AssertionError("there is always another name")


def names_for(path: Path) -> Iterator[Path]:
    yield path
    number = 2
    while True:
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")
        number += 1


def check_command(words: argparse.Namespace) -> int:
    from .grading import progress
    from .grading.submission import grade_file

    graded = grade_file(words.file)
    for report, source in zip(graded.reports, graded.sources, strict=True):
        if report.status != "not_attempted":
            progress.record(report.exercise, report.status, report.faults, source)
    if words.json:
        print(json.dumps(graded.to_dict(), ensure_ascii=False, indent=1))
    else:
        show(graded.to_text())
    return 0 if graded.passed else 1


def hint_command(words: argparse.Namespace) -> int:
    from .grading.face import hint

    print(hint(words.exercise))
    return 0


def solution_command(words: argparse.Namespace) -> int:
    from .grading.face import solution

    print(solution(words.exercise))
    return 0


def progress_command(words: argparse.Namespace) -> int:
    from .grading import progress as kept

    if words.export == "-":
        print(kept.export_json())
    elif words.export:
        Path(words.export).write_text(kept.export_json() + "\n", encoding="utf-8")
        print(f"Written to {words.export}")
    elif words.read:
        new = kept.import_json(Path(words.read).read_text(encoding="utf-8"))
        print(f"{new} entries added from {words.read}")
    else:
        from .grading.face import progress

        overview = progress()
        if words.json:
            print(json.dumps(overview.to_dict(), ensure_ascii=False, indent=1))
        else:
            show(overview.to_text())
    return 0


def review_command(_: argparse.Namespace) -> int:
    from .grading.face import review

    print(review())
    return 0


def doctor_command(_: argparse.Namespace) -> int:
    """Say what is here. Status 2 when something that every exercise needs is missing."""
    found = dict(diagnosis())
    width = max(map(len, found))
    for name, (fine, says) in found.items():
        show(f"{'✓' if fine else '!'} {name:<{width}}  {says}")
    return 0 if found["Python"][0] and found["NumPy"][0] else 2


def diagnosis() -> Iterator[tuple[str, tuple[bool, str]]]:
    """What is looked at → whether it is fine, and what was found."""
    yield "Python", (sys.version_info >= (3, 11), f"{sys.version.split()[0]}, {sys.executable}")
    yield "NumPy", version_of("numpy", "the exercises need it: pip install numpy")
    yield "torch", torch_here()
    yield "progress", data_directory_here()
    yield "notebooks", notebooks_here()
    yield "time limits", time_limits_here()


def version_of(module: str, without: str) -> tuple[bool, str]:
    from importlib import metadata

    try:
        return True, metadata.version(module)
    except metadata.PackageNotFoundError:
        return False, f"not installed; {without}"


def torch_here() -> tuple[bool, str]:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return True, "not installed; the NumPy exercises do not need it"
    import torch

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return True, f"{torch.__version__}, CUDA: {', '.join(devices) or 'no device'}"


def data_directory_here() -> tuple[bool, str]:
    from .grading.progress import data_directory, is_off

    if is_off():
        return True, "kept in memory only (SDPA_PROGRESS=off)"
    folder = data_directory()
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK):
        return True, f"kept in {folder}"
    return False, f"cannot be kept: {nearest} is not writable; set SDPA_HOME to another folder"


def notebooks_here() -> tuple[bool, str]:
    from .exercises import chapters

    folder = exercise_notebooks()
    count = len(list(folder.glob("*.ipynb"))) if folder.is_dir() else 0
    if count:
        return True, f"{count} in {folder}"
    return True, f"made when asked for; {len(chapters())} chapters have exercises"


def time_limits_here() -> tuple[bool, str]:
    import signal

    if hasattr(signal, "setitimer"):
        return True, "in notebooks and in `sdpa check`"
    return False, "in `sdpa check` only: this platform has no timers that stop a notebook's cell"


def show(text: str) -> None:
    """Print, in colour where that is wanted."""
    print("\n".join(map(coloured, text.split("\n"))) if colour_wanted() else text)


def colour_wanted() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.name != "nt"


def coloured(line: str) -> str:
    found = re.match(r"\s*([✓✗!]) ", line)
    return f"\x1b[{MARKS[found[1]]}m{line}\x1b[0m" if found else line


def message(problem: BaseException) -> str:
    if isinstance(problem, OSError) and problem.filename is not None:
        return f"{problem.filename}: {problem.strerror}"
    return str(problem)


if __name__ == "__main__":
    sys.exit(main())
