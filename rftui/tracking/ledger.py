"""What tracking reads (the experiment's database) and what it alone writes (outbox.db)."""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from rftui.paths import ExperimentDir
from rftui.runs import Run
from rftui.tracking.trackers import Point

_SCHEMA = """
CREATE TABLE mark (seq INTEGER NOT NULL);
CREATE TABLE entries (run INTEGER PRIMARY KEY, tracker_run TEXT, sending TEXT, params TEXT, status TEXT);
CREATE TABLE sent (run INTEGER, metric TEXT, step INTEGER, PRIMARY KEY (run, metric)) WITHOUT ROWID;
CREATE TABLE queue (run INTEGER, metric TEXT, step INTEGER, value REAL, time REAL, PRIMARY KEY (run, metric, step))
    WITHOUT ROWID;
"""
# `mark`: the last `seq` of the experiment's points that went into `queue`. `sent`: the last step of each metric that
# was sent; a step that a restart trains again is not sent again.

_GATHER = """
INSERT OR REPLACE INTO queue SELECT new.run, new.metric, new.step, new.value, new.time
    FROM experiment.metrics AS new LEFT JOIN sent ON sent.run = new.run AND sent.metric = new.metric
    WHERE new.seq > ? AND new.seq <= ? AND new.step > coalesce(sent.step, -1)
"""


@dataclass
class Entry:
    """How far a run was sent.

    `sending`: metrics that are on their way; it is not known whether they arrived until it is empty again.
    `params`: knob -> digest of the value sent. `status`: the tracker's, "DELETED" for a deleted run, "" before the
    first.
    """

    run: int
    tracker_run: str | None = None
    sending: list[str] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    status: str = ""


class Ledger:
    """What happened in an experiment, and what of it was sent. One process at a time; what it writes is whole after a
    kill at any moment."""

    def __init__(self, experiment: ExperimentDir) -> None:
        """Takes over, once, what earlier versions kept in the experiment's own database."""
        os.close(os.open(experiment.outbox, os.O_RDWR | os.O_CREAT, 0o600))
        uri = experiment.outbox.absolute().as_uri()
        self._db = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("ATTACH ? AS experiment", (f"{experiment.db.absolute().as_uri()}?mode=ro",))
        if not self._db.execute("PRAGMA main.user_version").fetchone()[0]:
            self._make()
        (self._mark,) = self._db.execute("SELECT seq FROM mark").fetchone()
        rows = self._db.execute("SELECT run, tracker_run, sending, params, status FROM entries")
        self._entries = {
            run: Entry(run, name, json.loads(sending), json.loads(params), status)
            for run, name, sending, params, status in rows
        }
        self._seen: dict[int, str] = {}

    def _make(self) -> None:
        old = self._db.execute("SELECT 1 FROM experiment.sqlite_master WHERE name = 'outbox'").fetchone()
        with self._transaction():
            for statement in filter(str.strip, _SCHEMA.split(";")):
                self._db.execute(statement)
            self._db.execute("INSERT INTO mark VALUES (0)")
            rows = self._db.execute("SELECT run, tracker_run, sent FROM experiment.outbox").fetchall() if old else []
            for run, tracker_run, text in rows:
                sent = json.loads(text)
                steps = [(run, metric, step) for metric, step in sent.pop("steps").items()]
                self._db.executemany("INSERT INTO sent VALUES (?, ?, ?)", steps)
                self._save(Entry(run, tracker_run, **sent))
            self._db.execute("PRAGMA main.user_version = 1")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def gather(self) -> None:
        """Queue the points that came since the last time."""
        with self._transaction():  # both statements see the same points
            (newest,) = self._db.execute("SELECT coalesce(max(seq), 0) FROM experiment.metrics").fetchone()
            if newest > self._mark:
                self._db.execute(_GATHER, (self._mark, newest))
                self._db.execute("UPDATE mark SET seq = ?", (newest,))
        self._mark = max(newest, self._mark)

    def changed_runs(self) -> list[Run]:
        """The runs that are new, or not as they were when this was asked the last time."""
        rows = self._db.execute("SELECT id, data FROM experiment.runs ORDER BY id")
        changed = [(run, data) for run, data in rows if self._seen.get(run) != data]
        self._seen.update(changed)
        return [Run.from_json(data) for _, data in changed]

    def queued(self) -> set[int]:
        """The runs that have points to be sent."""
        return {run for (run,) in self._db.execute("SELECT DISTINCT run FROM queue")}

    def points(self, run: int, limit: int) -> list[Point]:
        """Points of the run that are to be sent, each metric's in the order of its steps."""
        rows = self._db.execute(
            "SELECT metric, step, value, time FROM queue WHERE run = ? ORDER BY metric, step LIMIT ?", (run, limit)
        )
        # SQLite keeps a NaN as NULL.
        return [Point(name, step, math.nan if value is None else value, at) for name, step, value, at in rows]

    def entry(self, run: int) -> Entry:
        return self._entries.get(run) or Entry(run)

    def save(self, entry: Entry) -> None:
        self._save(entry)
        self._entries[entry.run] = entry

    def arrived(self, entry: Entry, steps: Iterable[tuple[str, int]]) -> None:
        """Nothing of the run is on its way; up to these (metric, step) its points were sent."""
        with self._transaction():
            for metric, step in steps:
                self._db.execute("INSERT OR REPLACE INTO sent VALUES (?, ?, ?)", (entry.run, metric, step))
                self._db.execute(
                    "DELETE FROM queue WHERE run = ? AND metric = ? AND step <= ?", (entry.run, metric, step)
                )
            self._save(replace(entry, sending=[]))
        entry.sending = []  # not before that is kept

    def drop(self, run: int) -> None:
        """Send no points of the run."""
        self._db.execute("DELETE FROM queue WHERE run = ?", (run,))

    def _save(self, entry: Entry) -> None:
        values = (entry.run, entry.tracker_run, json.dumps(entry.sending), json.dumps(entry.params), entry.status)
        self._db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?)", values)

    def close(self) -> None:
        self._db.close()


def count_unsent(experiment: ExperimentDir, but: Collection[int] = ()) -> int:
    """Points that have not arrived at the tracker, as far as is known; those of the runs `but` left out. May be asked
    by any process."""
    chosen = f"run NOT IN ({', '.join(map(str, but))})" if but else "TRUE"
    uri = f"{experiment.db.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=5)) as db:
        mark, queued = 0, 0
        if experiment.outbox.exists():
            db.execute("ATTACH ? AS outbox", (f"{experiment.outbox.absolute().as_uri()}?mode=ro",))
            db.execute("BEGIN")  # one look at both
        if db.in_transaction and db.execute("PRAGMA outbox.user_version").fetchone()[0]:
            mark, queued = db.execute(
                f"SELECT seq, (SELECT count(*) FROM outbox.queue WHERE {chosen}) FROM outbox.mark"
            ).fetchone()
        fresh = db.execute(f"SELECT count(*) FROM main.metrics WHERE seq > ? AND {chosen}", (mark,)).fetchone()[0]
        return int(queued + fresh)
