"""What an experiment keeps: runs, events, turns, the journal of ops, and what `metrics` keeps; in SQLite (WAL, one
writer)."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rftui.errors import FAILED, UserError
from rftui.messages import Command, Event, Reply
from rftui.metrics import Metrics
from rftui.paths import ExperimentDir, sync
from rftui.redaction import redact
from rftui.runs import Run

_VERSION = 3
_BUSY = 10.0  # seconds that a connection waits for another's write

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE fits (id INTEGER PRIMARY KEY, num_chunks INTEGER, chunk_size INTEGER, seed INTEGER, rows INTEGER,
    eval_rows INTEGER, created REAL);
CREATE TABLE runs (id INTEGER PRIMARY KEY AUTOINCREMENT, data TEXT NOT NULL);
CREATE TABLE metrics (seq INTEGER PRIMARY KEY AUTOINCREMENT, run INTEGER, metric TEXT, step INTEGER, value REAL,
    time REAL, UNIQUE (run, metric, step));
CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL, run INTEGER, level TEXT, text TEXT);
CREATE TABLE journal (id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL, command TEXT, ok INTEGER, reply TEXT);
CREATE TABLE turns (id INTEGER PRIMARY KEY AUTOINCREMENT, run INTEGER, turn INTEGER, chunk INTEGER, device TEXT,
    step_from INTEGER, step_to INTEGER, started REAL, ended REAL);
"""

_ADDED = {
    2: """
CREATE TABLE chunk_ends (run INTEGER, chunk INTEGER, step INTEGER, "values" TEXT, PRIMARY KEY (run, chunk));
CREATE TABLE decisions (rule TEXT, run INTEGER, rung INTEGER, outcome TEXT, reason TEXT, time REAL,
    PRIMARY KEY (rule, run, rung));
""",
    3: """
CREATE INDEX metrics_by_step ON metrics (run, step);
CREATE INDEX journal_by_command ON journal (json_extract(command, '$.id'));
""",  # and fields of runs have other names
}
"""Version -> what it added to the one before."""


class Unwritten(UserError):
    """The database cannot be written; what was not committed is not in it."""


class Store(Metrics):
    """Written by the scheduler alone, in transactions that `commit` ends.

    Whatever writes raises Unwritten where the database cannot be written. Where the disk is full, `when_full` is
    called first if there is one: once it returns, what was not committed is written again; what it raises is raised.
    """

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        """Raises UserError where the file cannot be read, or was written by a newer rftui. An older one's is brought
        up to date before it is written."""
        self.when_full: Callable[[Unwritten], None] | None = None
        self._path = path
        self._uncommitted: list[Callable[[], Any]] = []
        mode = "ro" if readonly else "rw"
        try:
            self._db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=_BUSY, check_same_thread=False
            )
            # In WAL mode, NORMAL would lose the last commits with the power: an op that was acknowledged, or the row
            # of a run whose files are there, so that the next run would get its number and its checkpoints. FULL
            # costs a sync for each commit, at most ten a second, and none of them waits for training.
            self._db.execute("PRAGMA synchronous = FULL")
            version = int(self.meta("version") or 0)
        except sqlite3.Error as error:
            raise UserError(f"{path} cannot be read: {error}", code=FAILED) from error
        if version > _VERSION:
            raise UserError(
                f"{path} was written by a newer rftui (its format is {version}, this one reads {_VERSION})"
            )
        if version < _VERSION and not readonly:
            self._upgrade(version)

    def _upgrade(self, version: int) -> None:
        added = ";".join(_ADDED[later] for later in range(version + 1, _VERSION + 1))
        for statement in ("BEGIN IMMEDIATE", *filter(str.strip, added.split(";"))):
            self._write(statement)
        self.set_meta("version", str(_VERSION))
        self.commit()

    @classmethod
    def create(cls, path: Path) -> Store:
        """A new store at `path`, which is there whole or not at all."""
        work = path.with_suffix(".new")
        work.unlink(missing_ok=True)
        try:
            db = sqlite3.connect(work, timeout=_BUSY)
            work.chmod(0o600)
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(_SCHEMA + "".join(_ADDED.values()))
            db.execute("INSERT INTO meta VALUES ('version', ?), ('created', ?)", (str(_VERSION), str(time.time())))
            db.commit()
            db.close()
        except sqlite3.Error as error:
            raise _unwritten(path, error) from error
        work.replace(path)
        sync(path.parent)
        return cls(path)

    @classmethod
    def read(cls, path: Path) -> Store:
        """For reading, while the scheduler may write."""
        return cls(path, readonly=True)

    def commit(self) -> None:
        self._attempt(self._db.commit)
        self._uncommitted = []

    def close(self) -> None:
        """Commit and close. Raises Unwritten, and is closed then too."""
        try:
            self.commit()
        finally:
            self._db.close()

    def _write(self, statement: str, values: Any = (), *, many: bool = False) -> sqlite3.Cursor:
        values = list(values) if many else values

        def write() -> sqlite3.Cursor:
            return (self._db.executemany if many else self._db.execute)(statement, values)

        cursor = self._attempt(write)
        self._uncommitted.append(write)
        return cursor

    def _attempt(self, write: Callable[[], Any]) -> Any:
        """Do it, and what was not committed before it; again and again while the disk is full, if `when_full`
        waits."""
        try:
            return write()
        except sqlite3.Error as error:
            if not hasattr(error, "sqlite_errorcode"):  # a value that cannot be bound: the transaction is whole
                raise
            trouble = _unwritten(self._path, error)
            self._db.rollback()
            if self.when_full is None or not _disk_full(error):
                raise trouble from error
        while True:
            self.when_full(trouble)
            try:
                for earlier in self._uncommitted:
                    earlier()
                return write()
            except sqlite3.Error as error:
                trouble = _unwritten(self._path, error)
                self._db.rollback()
                if not _disk_full(error):
                    raise trouble from error

    def meta(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def set_meta(self, key: str, value: str) -> None:
        self._write("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def new_incarnation(self) -> int:
        """A number that no worker of this experiment had before, from 1."""
        number = int(self.meta("incarnation") or 0) + 1
        self.set_meta("incarnation", str(number))
        self.commit()
        return number

    def keep_worker(self, name: str, pid: int, birth: str | None) -> None:
        """Note the process that is the worker `name`, so that a later scheduler can find it."""
        self.set_meta(f"worker {name}", json.dumps([pid, birth]))
        self.commit()

    def workers(self) -> list[tuple[int, str | None]]:
        """Pid and birth of the last process of each worker there ever was."""
        rows = self._db.execute("SELECT value FROM meta WHERE key LIKE 'worker %'")
        return [(pid, birth) for pid, birth in (json.loads(value) for (value,) in rows)]

    # ------------------------------------------------------------ fits and runs

    def add_fit(self, *, num_chunks: int | None, chunk_size: int | None, seed: int, rows: int, eval_rows: int) -> int:
        """The number of the new fit, from 1."""
        values = (num_chunks, chunk_size, seed, rows, eval_rows, time.time())
        cursor = self._write("INSERT INTO fits VALUES (NULL, ?, ?, ?, ?, ?, ?)", values)
        return int(cursor.lastrowid or 0)

    def fits(self) -> list[dict[str, Any]]:
        names = ("id", "num_chunks", "chunk_size", "seed", "rows", "eval_rows", "created")
        return [dict(zip(names, row, strict=True)) for row in self._db.execute("SELECT * FROM fits ORDER BY id")]

    def add_run(self, run: Run) -> int:
        """Gives the run its id (from 1, never used again) and keeps it."""
        run.id = int(self._write("INSERT INTO runs VALUES (NULL, '{}')").lastrowid or 0)
        self.save_run(run)
        return run.id

    def save_run(self, run: Run) -> None:
        self._write("UPDATE runs SET data = ? WHERE id = ?", (run.to_json(), run.id))

    def runs(self) -> list[Run]:
        return [self._read_run(data) for (data,) in self._db.execute("SELECT data FROM runs ORDER BY id")]

    def run(self, number: int) -> Run | None:
        row = self._db.execute("SELECT data FROM runs WHERE id = ?", (number,)).fetchone()
        return self._read_run(row[0]) if row else None

    def _read_run(self, data: str) -> Run:
        """With its paths where the experiment lies now: its directory may have been moved since it was written."""
        run = Run.from_json(data)
        folder = ExperimentDir(self._path.absolute().parent).run(run.id)
        run.checkpoint = str(folder.checkpoints / Path(run.checkpoint).name) if run.checkpoint else None
        run.final = str(folder.final) if run.final else None
        return run

    # ------------------------------------------------------------ events, journal, turns

    def log(self, text: str, run: int | None = None, level: str = "info") -> Event:
        now = time.time()
        cursor = self._write("INSERT INTO events VALUES (NULL, ?, ?, ?, ?)", (now, run, level, text))
        return Event(int(cursor.lastrowid or 0), now, text, run, level)

    def events(self, last: int = 200) -> list[Event]:
        rows = self._db.execute("SELECT id, time, text, run, level FROM events ORDER BY id DESC LIMIT ?", (last,))
        return [Event(*row) for row in rows][::-1]

    def events_since(self, event: int) -> list[Event]:
        """Those that came after the one with this id, in order."""
        rows = self._db.execute("SELECT id, time, text, run, level FROM events WHERE id > ? ORDER BY id", (event,))
        return [Event(*row) for row in rows]

    def journal(self, command: Command) -> int:
        """Note an op before it takes effect."""
        text = json.dumps({"op": command.op} | redact(asdict(command)), default=str)
        cursor = self._write("INSERT INTO journal VALUES (NULL, ?, ?, NULL, NULL)", (time.time(), text))
        return int(cursor.lastrowid or 0)

    def settle(self, entry: int, reply: Reply) -> None:
        """Note how an op was answered."""
        values = (reply.ok, json.dumps(asdict(reply)), entry)
        self._write("UPDATE journal SET ok = ?, reply = ? WHERE id = ?", values)

    def accepted(self, command: str) -> Reply | None:
        """The answer to the command with this id, if it was accepted before."""
        rows = self._db.execute("SELECT reply FROM journal WHERE ok AND json_extract(command, '$.id') = ?", (command,))
        found = rows.fetchone()
        return Reply(**json.loads(found[0])) if found else None

    def begin_turn(self, run: Run, device: str) -> int:
        values = (run.id, run.turns, run.chunk, device, run.step, time.time())
        cursor = self._write("INSERT INTO turns VALUES (NULL, ?, ?, ?, ?, ?, NULL, ?, NULL)", values)
        return int(cursor.lastrowid or 0)

    def end_turn(self, turn: int, step: int) -> None:
        self._write("UPDATE turns SET step_to = ?, ended = ? WHERE id = ?", (step, time.time(), turn))

    def turns(self) -> list[dict[str, Any]]:
        """Every turn, in the order in which they started; `chunk` had ended when it began."""
        names = ("id", "run", "turn", "chunk", "device", "step_from", "step_to", "started", "ended")
        return [dict(zip(names, row, strict=True)) for row in self._db.execute("SELECT * FROM turns ORDER BY id")]


def _unwritten(path: Path, error: sqlite3.Error) -> Unwritten:
    try:
        free = f", with {shutil.disk_usage(path.parent).free / 1e6:,.0f} MB free"
    except OSError:
        free = ""
    return Unwritten(f"{path} cannot be written: {error}{free}", code=FAILED)


def _disk_full(error: sqlite3.Error) -> bool:
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL
