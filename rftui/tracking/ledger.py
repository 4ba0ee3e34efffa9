"""What tracking reads and writes of an experiment's database: runs and metrics, and its own table, the outbox."""

from __future__ import annotations

import json
import math
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rftui.runs import Run


class Point(NamedTuple):
    """A value of a metric; `seq` orders all points of the database, `time` is in seconds."""

    seq: int
    metric: str
    step: int
    value: float
    time: float


@dataclass
class Entry:
    """How far a run was sent.

    `steps`: metric -> the last step sent; a step that a restart trains again gets a new `seq` and is not sent again.
    `sending`: metrics that are on their way; it is not known whether they arrived until it is empty again.
    `params`: knob -> digest of the value sent. `status`: MLflow's, "DELETED" for a deleted run, "" before the first.
    """

    run: int
    tracker_run: str | None = None
    last_seq: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    sending: list[str] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    status: str = ""


class Ledger:
    """The database of one experiment: read freely, written only in the table `outbox`."""

    def __init__(self, database: Path) -> None:
        self._read = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
        self._write = sqlite3.connect(database, timeout=30, isolation_level=None)

    def runs(self) -> list[Run]:
        rows = self._read.execute("SELECT data FROM runs ORDER BY id")
        return [Run.from_json(data) for (data,) in rows]

    def points(self, run: int, after: int, limit: int) -> list[Point]:
        """The run's points past `seq` `after`, in order, at most `limit`."""
        rows = self._read.execute(
            "SELECT seq, metric, step, value, time FROM metrics WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?",
            (run, after, limit),
        )
        # SQLite keeps a NaN as NULL.
        return [
            Point(seq, name, step, math.nan if value is None else value, at) for seq, name, step, value, at in rows
        ]

    def entries(self) -> dict[int, Entry]:
        """What was sent, by run."""
        rows = self._read.execute("SELECT run, tracker_run, last_seq, sent FROM outbox")
        return {run: Entry(run, tracker_run, seq, **json.loads(sent)) for run, tracker_run, seq, sent in rows}

    def save(self, entry: Entry) -> None:
        sent: dict[str, Any] = {name: getattr(entry, name) for name in ("steps", "sending", "params", "status")}
        self._write.execute(
            "INSERT OR REPLACE INTO outbox (run, tracker_run, last_seq, sent) VALUES (?, ?, ?, ?)",
            (entry.run, entry.tracker_run, entry.last_seq, json.dumps(sent)),
        )

    def close(self) -> None:
        self._read.close()
        self._write.close()
