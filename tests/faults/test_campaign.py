"""Eight kills, one for each kind of victim at least; and that a campaign would notice what it is there for."""

import copy
import dataclasses
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from rftui.runs import DONE, Run
from rftui.store import Store
from tests.faults.campaign import campaign
from tests.faults.outcome import differences, read
from tests.faults.plan import KILLS_AT_ONCE, VICTIMS, plan


@pytest.mark.slow
def test_an_experiment_whose_processes_are_killed_ends_as_if_it_had_not_been_disturbed():
    folder = Path(tempfile.mkdtemp(prefix="f-"))  # the path of a socket must be short
    figures = campaign(folder, KILLS_AT_ONCE, seed=0)
    assert figures.kills.total() == KILLS_AT_ONCE and figures.kills.keys() == set(VICTIMS)
    shutil.rmtree(folder)


def test_a_seed_draws_the_same_kills_each_time():
    assert plan(3, 2) == plan(3, 2) != plan(3, 1)
    assert {kill.victim for kill in plan(3, 2).kills} == set(VICTIMS)


@pytest.fixture
def outcome(tmp_path):
    """Of one run of three steps, as store and MLflow have it."""
    final = tmp_path / "runs" / "1" / "final"
    final.mkdir(parents=True)
    (final / "adapter_model.safetensors").write_bytes(b"weights")
    store = Store.create(tmp_path / "experiment.db")
    store.add_run(Run(0, "r", state=DONE, step=3, final=str(final)))
    store.add_points([(1, "loss", step, 1 / step) for step in (1, 2, 3)])
    store.close()
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as db:
        db.executescript(
            "CREATE TABLE runs (run_uuid, status, lifecycle_stage); CREATE TABLE tags (run_uuid, key, value);"
            "CREATE TABLE metrics (run_uuid, key, step, value, is_nan, timestamp);"
            "INSERT INTO runs VALUES ('a', 'FINISHED', 'active'); INSERT INTO tags VALUES ('a', 'rftui.run', '1');"
        )
        db.executemany(
            "INSERT INTO metrics VALUES ('a', 'loss', ?, ?, 0, 0)", [(step, 1 / step) for step in (1, 2, 3)]
        )
        db.commit()

    def again(statement="", database="mlflow.db"):
        with closing(sqlite3.connect(tmp_path / database)) as db:
            db.executescript(statement)
        return read(tmp_path / "experiment.db", tmp_path / "mlflow.db")

    return again


def test_two_equal_outcomes_do_not_differ(outcome):
    assert differences(outcome(), outcome()) == []


@pytest.mark.parametrize(
    ("database", "statement", "told"),
    [
        ("mlflow.db", "INSERT INTO metrics VALUES ('a', 'loss', 2, 0.5, 0, 9)", "r in MLflow: loss has twice 2"),
        ("mlflow.db", "DELETE FROM metrics WHERE step = 3", "r in MLflow: loss lacks steps 3"),
        ("mlflow.db", "UPDATE metrics SET value = 0 WHERE step = 1", "r in MLflow: loss has other values at 1"),
        ("mlflow.db", "UPDATE runs SET status = 'RUNNING'", "MLflow calls r RUNNING"),
        (
            "mlflow.db",
            "INSERT INTO runs VALUES ('b', 'FINISHED', 'active'); INSERT INTO tags VALUES ('b', 'rftui.run', '1')",
            "MLflow has 2 runs for run 1",
        ),
        ("experiment.db", "DELETE FROM metrics WHERE step = 2", "r in the store: loss lacks steps 2"),
        (
            "experiment.db",
            "INSERT INTO metrics VALUES (9, 1, 'loss', 4, 0, 0)",
            "r in the store: loss has steps too many 4",
        ),
        ("experiment.db", "UPDATE runs SET data = json_set(data, '$.step', 2)", "r: step is 2, not 3"),
        ("experiment.db", "DELETE FROM runs", "r: missing"),
    ],
)
def test_what_is_kept_or_sent_otherwise_is_told(outcome, database, statement, told):
    reference = outcome()
    assert told in differences(reference, outcome(statement, database))


def test_other_weights_are_told(outcome, tmp_path):
    reference = outcome()
    (tmp_path / "runs" / "1" / "final" / "adapter_model.safetensors").write_bytes(b"Weights")
    assert differences(reference, outcome()) == ["r: other weights than the undisturbed run's"]


def test_what_is_left_and_how_a_run_ended_is_told(outcome):
    reference, found = outcome(), copy.deepcopy(outcome())
    found.faults.append("a process is left: 7 python")
    found = dataclasses.replace(found, states={"r": "failed: boom"})
    assert differences(reference, found) == ["a process is left: 7 python", "r is failed: boom"]
