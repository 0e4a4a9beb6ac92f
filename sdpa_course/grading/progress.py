"""What a learner has done: attempts and hints, kept outside the course so that updating it is safe.

One SQLite file in the user's data directory holds everything. Each attempt is one transaction, so
that several kernels may write at once and a process that is killed loses at most the attempt it was
writing. Nothing here decides a grade: where the file cannot be written, grading goes on and says so
once.

``SDPA_HOME`` chooses another directory. ``SDPA_PROGRESS=off`` keeps attempts in memory only, for
building the book and for tests.

When a passed exercise comes back for review follows a published schedule, :data:`INTERVALS`.
"""

from __future__ import annotations

import contextlib
import html
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import sqlite3

FILE = "progress.sqlite"
FORMAT = "sdpa-progress"
BUSY = 30.0  # seconds to wait for another process to finish writing
DAY = 86400.0
INTERVALS = (1, 3, 7, 14, 30)
"""Days from one review of a passed exercise to the next.

Spacing is what matters: Latimier, Peyre and Ramus (2021, *Educational Psychology Review* 33,
959-987) find a large benefit of spaced over massed retrieval, and none of expanding over uniform
intervals. Expanding ones are used because they ask for less time.
"""

# Step n brings a file of version n to version n + 1. Steps are only ever added.
MIGRATIONS = (
    """
    CREATE TABLE attempts (
        uid TEXT PRIMARY KEY, exercise TEXT NOT NULL, at REAL NOT NULL,
        status TEXT NOT NULL, faults TEXT NOT NULL, answer TEXT);
    CREATE INDEX attempts_of ON attempts (exercise, at);
    """,
    """
    CREATE TABLE hints (
        uid TEXT PRIMARY KEY, exercise TEXT NOT NULL, at REAL NOT NULL, text TEXT NOT NULL);
    CREATE INDEX hints_of ON hints (exercise, at);
    """,
)
VERSION = len(MIGRATIONS)

clock: Callable[[], float] = time.time


@dataclass(frozen=True)
class Attempt:
    """One graded answer. ``at`` is in seconds since 1970, ``faults`` the ids that were named."""

    uid: str
    exercise: str
    at: float
    status: str
    faults: tuple[str, ...] = ()
    answer: str | None = None


@dataclass(frozen=True)
class Hint:
    """One hint that was given."""

    uid: str
    exercise: str
    at: float
    text: str


class Store(Protocol):
    """Where attempts and hints are kept."""

    def add(self, *entries: Attempt | Hint) -> None: ...

    def attempts(self, exercise: str | None = None) -> list[Attempt]: ...

    def hints(self, exercise: str | None = None) -> list[Hint]: ...


# -- the functions that others call ------------------------------------------------------------


def record(
    exercise_id: str, status: str, faults: Sequence[str] = (), answer_source: str | None = None
) -> int:
    """Keep an attempt. Returns its number: 1 for the first at this exercise.

    Examples
    --------
    >>> os.environ["SDPA_PROGRESS"] = "off"
    >>> record("an.example", "failed", ["scale.forgotten"])
    1
    >>> last_attempt("an.example").faults
    ('scale.forgotten',)
    """
    keep(Attempt(new_uid(), exercise_id, clock(), status, tuple(faults), answer_source))
    return len(attempts(exercise_id))


def attempts(exercise_id: str | None = None) -> list[Attempt]:
    """The attempts at an exercise, or at all of them, the oldest first."""
    return read(lambda store: store.attempts(exercise_id))


def last_attempt(exercise_id: str) -> Attempt | None:
    """The latest attempt at an exercise."""
    return next(reversed(attempts(exercise_id)), None)


def hints_given(exercise_id: str) -> list[Hint]:
    """The hints given for an exercise, the oldest first."""
    return read(lambda store: store.hints(exercise_id))


def hint_is_due(exercise_id: str) -> bool:
    """True when there has been an attempt since the last hint (or none of either yet)."""
    given, last = hints_given(exercise_id), last_attempt(exercise_id)
    return not given or (last is not None and last.at > given[-1].at)


def record_hint(exercise_id: str, text: str = "") -> bool:
    """Keep that a hint was given. False, and nothing kept, when a new attempt must come first."""
    if not hint_is_due(exercise_id):
        return False
    keep(Hint(new_uid(), exercise_id, clock(), text))
    return True


def summary() -> dict[str, dict[str, Any]]:
    """Exercise → its attempts, whether it ever passed, its last status, when a review is due."""
    by_exercise: dict[str, list[Attempt]] = {}
    for attempt in attempts():
        by_exercise.setdefault(attempt.exercise, []).append(attempt)
    return {
        exercise: {
            "attempts": len(made),
            "passed": any(a.status == "passed" for a in made),
            "last_status": made[-1].status,
            "last_at": made[-1].at,
            "due_at": due_at(made),
        }
        for exercise, made in by_exercise.items()
    }


def review(now: float | None = None) -> list[str]:
    """The exercises to do again now, the longest due first."""
    now = clock() if now is None else now
    due = {exercise: s["due_at"] for exercise, s in summary().items() if s["due_at"] is not None}
    return sorted((e for e in due if due[e] <= now), key=lambda e: (due[e], e))


def due_at(made: Iterable[Attempt]) -> float | None:
    """When an exercise with these attempts comes back; None before it was passed or once learnt.

    A pass on or after the due time moves on to the next interval, an earlier pass changes nothing,
    and a wrong answer to a due review starts the intervals again.

    Examples
    --------
    >>> passed = lambda day: Attempt("", "x.y", day * DAY, "passed")
    >>> [due_at(made) / DAY for made in ([passed(0)], [passed(0), passed(1)])]
    [1.0, 4.0]
    """
    step, due = 0, None
    for attempt in made:
        if attempt.status == "passed" and (due is None or attempt.at >= due):
            if step == len(INTERVALS):
                return None
            due = attempt.at + INTERVALS[step] * DAY
            step += 1
        elif attempt.status == "failed" and due is not None and attempt.at >= due:
            step = 0
    return due


def export_json() -> str:
    """Everything that is kept, as JSON text for :func:`import_json`."""
    rows = {"attempts": attempts(), "hints": read(lambda store: store.hints())}
    kept = {kind: [asdict(row) for row in found] for kind, found in rows.items()}
    return json.dumps({"format": FORMAT, "version": VERSION, **kept}, indent=1, ensure_ascii=False)


def import_json(text: str) -> int:
    """Merge what :func:`export_json` gave. Returns how many entries were new; twice adds nothing.

    Raises ValueError when the text is not such an export; then nothing is kept.
    """
    entries = entries_of(text)
    before = len(attempts()) + len(read(lambda store: store.hints()))
    keep(*entries)
    return len(attempts()) + len(read(lambda store: store.hints())) - before


def entries_of(text: str) -> list[Attempt | Hint]:
    try:
        data = json.loads(text)
        if data["format"] != FORMAT or data["version"] > VERSION:
            raise ValueError(f"it is {data['format']!r}, version {data['version']}")
        made = [Attempt(**{**row, "faults": tuple(row["faults"])}) for row in data["attempts"]]
        return [*made, *(Hint(**row) for row in data["hints"])]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"expected an export of `sdpa progress --export` (format {FORMAT!r}, version up to "
            f"{VERSION}): {type(error).__name__}: {error}"
        ) from None


# -- where they are kept -------------------------------------------------------------------------


def data_directory() -> Path:
    """The folder that holds the file: ``SDPA_HOME``, or the platform's place for a user's data."""
    if chosen := os.environ.get("SDPA_HOME"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "sdpa-course"
    if sys.platform == "darwin":
        return Path.home() / "Library/Application Support/sdpa-course"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "sdpa-course"


def is_off() -> bool:
    """True when nothing is to be written (``SDPA_PROGRESS=off``)."""
    return os.environ.get("SDPA_PROGRESS", "").lower() in ("off", "0", "no", "false")


class Memory:
    """Keeps attempts and hints until the process ends."""

    def __init__(self) -> None:
        self.entries: dict[str, Attempt | Hint] = {}

    def add(self, *entries: Attempt | Hint) -> None:
        for entry in entries:
            self.entries.setdefault(entry.uid, entry)

    def attempts(self, exercise: str | None = None) -> list[Attempt]:
        return [a for a in self._of(exercise) if isinstance(a, Attempt)]

    def hints(self, exercise: str | None = None) -> list[Hint]:
        return [h for h in self._of(exercise) if isinstance(h, Hint)]

    def _of(self, exercise: str | None) -> list[Attempt | Hint]:
        of = [e for e in self.entries.values() if exercise in (None, e.exercise)]
        return sorted(of, key=lambda entry: entry.at)


class Database:
    """Keeps attempts and hints in an SQLite file. Each call opens it anew, so forks are safe."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, *entries: Attempt | Hint) -> None:
        with self.opened() as db, writing(db):
            for e in entries:
                table = "attempts" if isinstance(e, Attempt) else "hints"
                row = [json.dumps(x) if isinstance(x, tuple) else x for x in vars(e).values()]
                places = ", ".join("?" * len(row))
                db.execute(f"INSERT OR IGNORE INTO {table} VALUES ({places})", row)

    def attempts(self, exercise: str | None = None) -> list[Attempt]:
        rows = self._rows("attempts", exercise)
        return [
            Attempt(uid, of, at, status, tuple(json.loads(faults)), answer)
            for uid, of, at, status, faults, answer in rows
        ]

    def hints(self, exercise: str | None = None) -> list[Hint]:
        return [Hint(*row) for row in self._rows("hints", exercise)]

    def _rows(self, table: str, exercise: str | None) -> list[Any]:
        where = "" if exercise is None else "WHERE exercise = ?"
        values = () if exercise is None else (exercise,)
        with self.opened() as db:
            query = f"SELECT * FROM {table} {where} ORDER BY at, rowid"
            return db.execute(query, values).fetchall()

    @contextlib.contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        import sqlite3

        is_new = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self.path, timeout=BUSY, isolation_level=None)
        with contextlib.closing(db):
            if is_new:
                use_wal(db)
            db.execute("PRAGMA synchronous = NORMAL")  # in WAL mode safe from a killed process
            migrate(db)
            yield db


class NewerFile(Exception):
    """The file was written by a later version of the course."""


def use_wal(db: sqlite3.Connection) -> None:
    """Let readers and a writer work at once, where the file system allows it."""
    import sqlite3

    with contextlib.suppress(sqlite3.OperationalError):  # another process is doing the same
        db.execute("PRAGMA journal_mode = WAL")


@contextlib.contextmanager
def writing(db: sqlite3.Connection) -> Iterator[None]:
    """One transaction: all of it or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def version_of(db: sqlite3.Connection) -> int:
    return db.execute("PRAGMA user_version").fetchone()[0]


def migrate(db: sqlite3.Connection) -> None:
    """Bring the file to the present version, step by step, in one transaction."""
    if version_of(db) == VERSION:
        return
    with writing(db):
        found = version_of(db)  # read again: another process may have been first
        if found > VERSION:
            raise NewerFile(f"it has version {found}, this course knows versions up to {VERSION}")
        for step in MIGRATIONS[found:]:
            for statement in filter(str.strip, step.split(";")):
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {VERSION}")


_memory = Memory()
_said: set[str] = set()


def keep(*entries: Attempt | Hint) -> None:
    """Write entries to the file or, where that cannot be, to memory."""
    with_store(lambda store: store.add(*entries))


def read(query: Callable[[Store], list[Any]]) -> list[Any]:
    if not is_off() and not (data_directory() / FILE).exists() and not _memory.entries:
        return []  # reading makes no file
    return with_store(query)


def with_store(use: Callable[[Store], Any]) -> Any:
    """Do something with the file; with memory when progress is off or the file cannot be used."""
    if is_off():
        return use(_memory)
    try:
        import sqlite3
    except ImportError:  # as in a browser
        return use(_memory)
    database = Database(data_directory() / FILE)
    try:
        try:
            return use(database)
        except sqlite3.DatabaseError as error:
            if not is_corrupt(error):
                raise
            set_aside(database.path, str(error))
            return use(database)
    except (OSError, sqlite3.Error, NewerFile) as error:
        say_once(
            f"Your progress is not being kept: {database.path} cannot be used ({error}). "
            "Grading works as always. Set SDPA_HOME to a folder that you can write to."
        )
        return use(_memory)


def is_corrupt(error: sqlite3.DatabaseError) -> bool:
    """True for damage, False for a lock, a missing right or a full disk."""
    import sqlite3

    damage = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    code = getattr(error, "sqlite_errorcode", None)
    # A file of this version without our tables is damage too.
    return (code is not None and code & 0xFF in damage) or "no such table" in str(error)


def set_aside(path: Path, reason: str) -> None:
    """Rename a damaged file, with what belongs to it, so that a new one can be begun."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(clock()))
    aside = path.with_name(f"{path.stem}-damaged-{stamp}-{new_uid()[:4]}{path.suffix}")
    with contextlib.suppress(FileNotFoundError):  # another process has just done it
        os.replace(path, aside)
        say_once(
            f"The file with your progress was damaged ({reason}). It is now {aside}, and a new one "
            "has been begun. Nothing else was changed; an export can be read back with "
            "`sdpa progress --import FILE`."
        )
    for ending in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{ending}", f"{aside}{ending}")


def say_once(message: str) -> None:
    if message not in _said:
        _said.add(message)
        print(message, file=sys.stderr)


def new_uid() -> str:
    return uuid.uuid4().hex


# -- what `progress()` shows ---------------------------------------------------------------------

MARKS = {"passed": "✓", "begun": "…", "open": "·"}
WORDS = {"passed": "passed", "begun": "begun", "open": "not begun"}


@dataclass(frozen=True)
class Line:
    """One exercise in the overview."""

    exercise: str
    title: str
    state: str  # "passed", "begun" or "open"
    attempts: int
    due: bool


@dataclass(frozen=True)
class Chapter:
    """One chapter in the overview."""

    number: str
    title: str
    lines: tuple[Line, ...]

    @property
    def passed(self) -> int:
        return sum(line.state == "passed" for line in self.lines)


class Progress:
    """Chapters and exercises with what was done: text in a terminal, HTML in a notebook.

    ``catalogue`` lists ``(number, title, [(exercise id, title), ...])`` for each chapter.
    """

    def __init__(
        self,
        catalogue: Iterable[tuple[str, str, Sequence[tuple[str, str]]]],
        now: float | None = None,
    ) -> None:
        done, due = summary(), set(review(now))
        self.chapters = tuple(
            Chapter(number, title, tuple(line_of(id, name, done, due) for id, name in exercises))
            for number, title, exercises in catalogue
        )

    @property
    def due(self) -> list[Line]:
        """The exercises to do again now."""
        return [line for chapter in self.chapters for line in chapter.lines if line.due]

    def to_text(self) -> str:
        lines = []
        for chapter in self.chapters:
            count = f"{chapter.passed} of {len(chapter.lines)}"
            lines.append(f"{chapter.number} {chapter.title}  ({count} passed)")
            lines += [f"   {MARKS[x.state]} {x.exercise}{remark(x)}" for x in chapter.lines]
        return "\n".join([*lines, "", self.closing()])

    def to_html(self) -> str:
        rows = []
        for chapter in self.chapters:
            head = html.escape(f"{chapter.number} {chapter.title}")
            rows.append(
                f'<tr><th scope="rowgroup" colspan="3" style="text-align:left">{head} '
                f"({chapter.passed} of {len(chapter.lines)} passed)</th></tr>"
            )
            for line in chapter.lines:
                rows.append(
                    f'<tr><td style="text-align:left">{html.escape(line.title)} '
                    f"<code>{html.escape(line.exercise)}</code></td>"
                    f'<td>{WORDS[line.state]}</td><td style="text-align:left">'
                    f"{html.escape(remark(line).strip())}</td></tr>"
                )
        caption = '<caption style="text-align:left">Your progress</caption>'
        return f"<table>{caption}{''.join(rows)}</table><p>{html.escape(self.closing())}</p>"

    def to_dict(self) -> dict[str, Any]:
        return {"chapters": [{**asdict(c), "passed": c.passed} for c in self.chapters]}

    def closing(self) -> str:
        if self.due:
            return "Worth doing again now: " + ", ".join(line.exercise for line in self.due)
        return "Nothing is due for review."

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return self.to_html()


def line_of(exercise: str, title: str, done: dict[str, dict[str, Any]], due: set[str]) -> Line:
    found = done.get(exercise)
    if found is None:
        return Line(exercise, title, "open", 0, False)
    state = "passed" if found["passed"] else "begun"
    return Line(exercise, title, state, found["attempts"], exercise in due)


def remark(line: Line) -> str:
    """How many attempts there were and whether a review is due, in a few words."""
    words = []
    if line.attempts:
        words.append(f"{line.attempts} attempt{'s' if line.attempts > 1 else ''}")
    if line.due:
        words.append("due for review")
    return f"  ({', '.join(words)})" if words else ""
