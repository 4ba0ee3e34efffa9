"""The part of an experiment's database that holds what was measured: points, chunk ends, and what rules decided by
them. Only `thinned` and `curves` without a run read all points."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable
from typing import Any

from rftui.automl.verdicts import End, Verdict, chunk_value
from rftui.curves import Curves, Thinned

Curve = list[tuple[int, float]]
"""Step and value, in step order."""


class Metrics:
    """These methods of a `Store`."""

    _db: sqlite3.Connection

    def _write(self, statement: str, values: Any = (), *, many: bool = False) -> sqlite3.Cursor:
        raise NotImplementedError

    # ------------------------------------------------------------ points

    def add_points(self, points: Iterable[tuple[int, str, int, float]]) -> None:
        """(run, metric, step, value); a point that is there already stays."""
        now = time.time()
        self._write(
            "INSERT OR IGNORE INTO metrics (run, metric, step, value, time) VALUES (?, ?, ?, ?, ?)",
            [(*point, now) for point in points],
            many=True,
        )

    def add_missing(self, points: Iterable[tuple[int, str, int, float]]) -> list[tuple[int, str, int, float]]:
        """Like `add_points`; those that were not there, in the order given."""
        (newest,) = self._db.execute("SELECT max(seq) FROM metrics").fetchone()
        self.add_points(points)
        rows = self._db.execute(
            "SELECT run, metric, step, value FROM metrics WHERE seq > ? ORDER BY seq", (newest or 0,)
        )
        return [(run, metric, step, _number(value)) for run, metric, step, value in rows]

    def curves(self, run: int | None = None) -> dict[int, dict[str, Curve]]:
        """run -> metric -> all points; of one run, or of all."""
        runs = [run] if run is not None else [each for (each,) in self._db.execute("SELECT DISTINCT run FROM metrics")]
        found = {each: {metric: self.curve(each, metric) for metric in self._metrics(each)} for each in runs}
        return {each: curves for each, curves in found.items() if curves}

    def curve(self, run: int, metric: str) -> Curve:
        """All points of one metric of a run."""
        query = "SELECT step, value FROM metrics WHERE run = ? AND metric = ? ORDER BY step"
        rows = self._db.execute(query, (run, metric))
        return [(step, _number(value)) for step, value in rows]

    def counts(self, run: int) -> dict[str, int]:
        """metric -> how many points it has."""
        return dict(self._db.execute("SELECT metric, count(*) FROM metrics WHERE run = ? GROUP BY metric", (run,)))

    def thinned(self) -> Curves:
        """The curves of all runs, as they are kept in memory."""
        curves = Curves()
        for run, metric in self._db.execute("SELECT DISTINCT run, metric FROM metrics").fetchall():
            curves.setdefault(run, {})[metric] = Thinned(self.curve(run, metric))
        return curves

    def last_values(self, run: int) -> dict[str, float]:
        """metric -> its last value."""
        last = {}
        for metric in self._metrics(run):
            (value,) = self._db.execute(
                "SELECT value FROM metrics WHERE run = ? AND metric = ? ORDER BY step DESC LIMIT 1", (run, metric)
            ).fetchone()
            last[metric] = _number(value)
        return last

    def _metrics(self, run: int) -> list[str]:
        """The metrics that a run has, each found by one look into the index."""
        found: list[str] = []
        query = "SELECT min(metric) FROM metrics WHERE run = ? AND metric > ?"
        while name := self._db.execute(query, (run, found[-1] if found else "")).fetchone()[0]:
            found.append(name)
        return found

    def rewind(self, run: int, step: int) -> bool:
        """Forget the run's points and chunk ends past `step`; whether there were any."""
        tables = ("metrics", "chunk_ends")
        gone = [self._write(f"DELETE FROM {table} WHERE run = ? AND step > ?", (run, step)) for table in tables]
        return any(each.rowcount for each in gone)

    # ------------------------------------------------------------ chunk ends, decisions

    def end_chunk(self, run: int, chunk: int, step: int) -> End | None:
        """The run stands at `step`, where this many of its chunks have ended; noted once: None where it was. What each
        metric was there comes from its points past the chunk end before."""
        query = "SELECT max(chunk), max(step) FROM chunk_ends WHERE run = ?"
        known, since = self._db.execute(query, (run,)).fetchone()
        if known is not None and known >= chunk:
            return None
        points: dict[str, list[float]] = {}
        rows = self._db.execute(
            "SELECT metric, value FROM metrics WHERE run = ? AND step > ? AND step <= ? ORDER BY step",
            (run, since or 0, step),
        )
        for metric, value in rows:
            points.setdefault(metric, []).append(_number(value))
        end = End(step, {metric: chunk_value(metric, of_chunk) for metric, of_chunk in points.items()})
        self._write("INSERT INTO chunk_ends VALUES (?, ?, ?, ?)", (run, chunk, step, json.dumps(end.values)))
        return end

    def chunk_ends(self) -> dict[int, dict[int, End]]:
        """run -> chunk -> how it ended."""
        ends: dict[int, dict[int, End]] = {}
        for run, chunk, step, values in self._db.execute("SELECT * FROM chunk_ends ORDER BY run, chunk"):
            ends.setdefault(run, {})[chunk] = End(step, json.loads(values))
        return ends

    def decide(self, rule: str, verdict: Verdict) -> None:
        """Keep what a rule decided."""
        values = (rule, verdict.run, verdict.rung, verdict.outcome, verdict.reason, time.time())
        self._write("INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?)", values)

    def decisions(self, rule: str) -> dict[tuple[int, int], str]:
        """(run, rung) -> outcome of all that a rule decided."""
        rows = self._db.execute("SELECT run, rung, outcome FROM decisions WHERE rule = ?", (rule,))
        return {(run, rung): outcome for run, rung, outcome in rows}


def _number(value: float | None) -> float:
    """A value as it was: SQLite keeps a NaN as NULL."""
    return float("nan") if value is None else value
