"""An experiment's database as the scheduler writes it, made with plain SQL."""

import json
import sqlite3
from dataclasses import asdict, replace

import pytest

from rftui.paths import create
from rftui.runs import Run

_TABLES = """
CREATE TABLE runs (id INTEGER PRIMARY KEY, data TEXT);
CREATE TABLE metrics (seq INTEGER PRIMARY KEY AUTOINCREMENT, run INTEGER, metric TEXT, step INTEGER, value REAL,
                      time REAL);
"""


class Database:
    def __init__(self, home, name="exp"):
        self.experiment = create(home, name)
        self._connection = sqlite3.connect(self.experiment.db, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=OFF")  # nothing here cuts the power
        self._connection.executescript(_TABLES)
        self.runs = {}

    def run(self, number, **fields):
        """Add the run, or change fields of it."""
        known = self.runs.get(number) or Run(number, f"run {number}", created=1700000000.0)
        run = self.runs[number] = replace(known, **fields)
        data = json.dumps(asdict(run))
        self._connection.execute("INSERT OR REPLACE INTO runs (id, data) VALUES (?, ?)", (number, data))

    def points(self, run, metric, steps, value=float):
        for step in steps:
            row = (run, metric, step, value(step), 1700000000.0 + step)
            self._connection.execute(
                "INSERT INTO metrics (run, metric, step, value, time) VALUES (?, ?, ?, ?, ?)", row
            )

    def kept_before(self, run, tracker_run, last_seq, **sent):
        """As an rftui without an outbox of its own kept what was sent."""
        self._connection.execute("CREATE TABLE outbox (run INTEGER PRIMARY KEY, tracker_run, last_seq, sent)")
        self._connection.execute(
            "INSERT INTO outbox VALUES (?, ?, ?, ?)", (run, tracker_run, last_seq, json.dumps(sent))
        )

    def dump(self):
        return list(self._connection.iterdump())

    def rewind(self, run, step):
        self._connection.execute("DELETE FROM metrics WHERE run = ? AND step > ?", (run, step))


@pytest.fixture
def make_database():
    return Database


@pytest.fixture
def database(tmp_path):
    return Database(tmp_path)
