"""Numbered steps with the time elapsed, and commands whose output goes to a log."""

import subprocess
import sys
import time
from pathlib import Path

START = time.monotonic()


def elapsed() -> str:
    minutes, seconds = divmod(int(time.monotonic() - START), 60)
    return f"{minutes}:{seconds:02d}"


def say(text: str) -> None:
    print(text, flush=True)


class Steps:
    """`step = Steps("book", 3); step("Building")` prints `[book 1/3  0:00] Building`."""

    def __init__(self, title: str, total: int):
        self.title, self.total, self.done = title, total, 0

    def __call__(self, text: str) -> None:
        self.done += 1
        say(f"[{self.title} {self.done}/{self.total}  {elapsed()}] {text}")


def run_logged(command: list, log: Path, env: dict | None = None) -> bool:
    """Run a command with its output in `log`, showing its last line. True if it succeeds."""
    log.parent.mkdir(parents=True, exist_ok=True)
    every = 0.5 if sys.stdout.isatty() else 15
    shown = time.monotonic()
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env
        )
        try:
            while process.poll() is None:
                time.sleep(0.1)
                if time.monotonic() - shown >= every:
                    shown = time.monotonic()
                    _show(f"    {elapsed()}  {_last_line(log)}")
        finally:
            if process.poll() is None:
                process.terminate()
    if sys.stdout.isatty():
        _show("")
    return process.returncode == 0


def tail(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in tail(log, 20).splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith("WARNING")), "")[
        :70
    ]


def _show(text: str) -> None:
    if sys.stdout.isatty():
        print("\r\033[K" + text, end="", flush=True)  # rewrites one line of the terminal
    elif text:
        say(text)
