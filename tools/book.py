"""Build the book and serve it.

python tools/book.py build    build into _build/html, if anything has changed; a warning is an error
python tools/book.py serve    serve what was built on 127.0.0.1
python tools/book.py course   both
"""

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

from progress import Steps, elapsed, run_logged, say, tail

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
HTML = BUILD / "html"
PREFERRED_PORT = (
    8000  # the same address next time, so that the browser still knows the reader's settings
)


def main() -> None:
    actions = {"build": [build], "serve": [serve], "course": [build, serve]}
    if len(sys.argv) != 2 or sys.argv[1] not in actions:
        sys.exit(__doc__)
    for action in actions[sys.argv[1]]:
        action()


def build() -> None:
    code, text = fingerprint(code_files()), fingerprint(book_files())
    step = Steps("book", 2)
    if recorded("book") == code + text and (HTML / "index.html").exists():
        say("Book: up to date in _build/html")
        return

    # The cache of executed notebooks knows their code, not the package's.
    if recorded("code") != code:
        shutil.rmtree(BUILD / ".jupyter_cache", ignore_errors=True)
    # A warning is reported only when its page is read, so that every page has to be read again.
    shutil.rmtree(HTML, ignore_errors=True)
    shutil.rmtree(BUILD / ".doctrees", ignore_errors=True)

    step("Building the book: notebooks are run and pages written (a minute or more the first time)")
    log = BUILD / "book.log"
    command = [
        str(Path(sys.executable).with_name("jupyter-book")),
        "build",
        "book",
        "--config",
        "_config.yml",
    ]
    command += ["--path-output", ".", "-W", "--keep-going", "-n"]
    os.chdir(ROOT)  # _config.yml names book/_ext from here
    if not run_logged(command, log, env=build_environment()):
        sys.exit(f"{complaints(log)}\n\nThe book was not built. The whole log: {log}")
    record("code", code)
    record("book", code + text)
    step(f"Done: _build/html/index.html, {count_pages()} pages, no warning")


def serve() -> None:
    if not (HTML / "index.html").exists():
        sys.exit("There is no book yet: python tools/book.py build")
    server = make_server()
    host, port = server.server_address[:2]
    say(f"\n  The book is at  http://{host}:{port}/  ({elapsed()}; Ctrl-C stops serving it)\n")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        say("\nStopped.")


def make_server(port: int = PREFERRED_PORT) -> ThreadingHTTPServer:
    handler = partial(Quiet, directory=str(HTML))
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError:  # taken: let the system choose a free one
        return ThreadingHTTPServer(("127.0.0.1", 0), handler)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def end_headers(self):
        self.send_header("Cache-Control", "no-cache")  # a rebuilt page is shown at once
        super().end_headers()


def complaints(log: Path) -> str:
    """The warnings and errors of a build, or the end of its log where there are none."""
    text = re.sub(r"\x1b\[[\d;]*m", "", log.read_text(encoding="utf-8", errors="replace"))
    found = re.findall(r"^.*\b(?:WARNING|ERROR|CRITICAL): .*$", text, re.MULTILINE)
    found += re.findall(r"following cell:\n(-+\n(?s:.*?)\n-+\s+.*)$", text, re.MULTILINE)
    return "\n".join(dict.fromkeys(found)).replace(f"{ROOT}{os.sep}", "") or tail(log)


def build_environment() -> dict:
    """An exception that a chapter shows is its last line, without paths of this machine."""
    profile = BUILD / "ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_config.py").write_text('c.InteractiveShell.xmode = "Minimal"\n')
    # Building the book is no attempt of the learner.
    progress = {"SDPA_PROGRESS": "off"}
    return {**os.environ, **progress, "PYTHONUTF8": "1", "IPYTHONDIR": str(BUILD / "ipython")}


def book_files() -> list:
    return [ROOT / "_config.yml", *files_under("book"), Path(__file__)]


def code_files() -> list:
    return [ROOT / "requirements.txt", *files_under("sdpa_course")]


def files_under(folder: str) -> list:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0:
        return [
            ROOT / name
            for name in sorted(listed.stdout.split("\0"))
            if name and (ROOT / name).is_file()
        ]
    return sorted(
        path
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


def fingerprint(paths: list) -> str:
    total = hashlib.sha256(f"{platform.python_version()} {torch_version()}".encode())
    for path in paths:
        total.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return total.hexdigest()


def torch_version() -> str:
    return metadata.version("torch") if importlib.util.find_spec("torch") else "none"


def recorded(name: str) -> str:
    stamp = BUILD / f".{name}-fingerprint"
    return stamp.read_text() if stamp.exists() else ""


def record(name: str, value: str) -> None:
    (BUILD / f".{name}-fingerprint").write_text(value)


def count_pages() -> int:
    return len(list(HTML.glob("*.html")))


if __name__ == "__main__":
    main()
