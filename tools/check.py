"""Run the checks, all of them or those named.

    python tools/check.py [lint] [types] [unit] [notebooks] [numpy-only] [book]

Each goes on after another has failed; the last lines say how each ended.
"""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

from nb import notebooks_in
from progress import Steps, elapsed, say

ROOT = Path(__file__).resolve().parent.parent
WORKERS = ["-n", "auto", "--maxprocesses", "8"]
NOTEBOOK_FOLDERS = ["book", "exercises"]


def main() -> None:
    checks = {
        "lint": lint,
        "types": types,
        "unit": unit,
        "notebooks": notebooks,
        "numpy-only": numpy_only,
        "book": book,
    }
    wanted = sys.argv[1:] or list(checks)
    if unknown := set(wanted) - set(checks):
        sys.exit(f"No check is called {', '.join(sorted(unknown))}.\n{__doc__}")

    os.chdir(ROOT)
    os.environ["SDPA_PROGRESS"] = "off"  # a test is no attempt of the learner
    step, outcomes = Steps("test", len(wanted)), {}
    for name in wanted:
        step(f"{name}: {checks[name].__doc__}")
        start = time.monotonic()
        passed = checks[name]()
        outcomes[name] = f"{'passed' if passed else 'FAILED'}  {time.monotonic() - start:.0f} s"

    say(f"\nAfter {elapsed()}:")
    for name, outcome in outcomes.items():
        say(f"  {name:<11} {outcome}")
    sys.exit(1 if any("FAILED" in outcome for outcome in outcomes.values()) else 0)


def lint() -> bool:
    """ruff, on code and notebooks, and their format"""
    return all([python("-m", "ruff", "check", "."), python("-m", "ruff", "format", "--check", ".")])


def types() -> bool:
    """mypy, on the package"""
    return python("-m", "mypy")


def unit() -> bool:
    """tests/ and the doctests of the package"""
    return python("-m", "pytest", *WORKERS)


def notebooks(env: dict | None = None) -> bool:
    """every notebook is run again and must give the outputs it shows"""
    folders = [
        folder
        for folder in NOTEBOOK_FOLDERS
        if (ROOT / folder).is_dir() and notebooks_in(ROOT / folder)
    ]
    if not folders:
        say("    no notebook yet")
        return True
    nbval = [
        "--nbval",
        "--nbval-current-env",
        "--nbval-sanitize-with",
        "tests/sanitize.cfg",
        "--nbval-cell-timeout",
        "300",
    ]
    # loadfile: the cells of one notebook share a kernel, so one worker runs them all.
    return python("-m", "pytest", *nbval, "--dist", "loadfile", *WORKERS, *folders, env=env)


def numpy_only() -> bool:
    """the same with torch hidden, and every test can still be collected"""
    if importlib.util.find_spec("torch") is None:
        say("    torch is not installed: the checks above have shown it")
        return True
    hidden = {**os.environ, "PYTHONPATH": str(ROOT / "tools" / "without_torch")}
    collected = python("-m", "pytest", "--collect-only", "-qq", env=hidden)
    return all([collected, notebooks(hidden)])


def book() -> bool:
    """the book, built with warnings as errors"""
    return python("tools/book.py", "build")


def python(*arguments: str, env: dict | None = None) -> bool:
    command = [sys.executable, *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, env=env).returncode == 0


if __name__ == "__main__":
    main()
