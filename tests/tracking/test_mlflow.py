"""The tracking process and a real MLflow on a database in the home."""

import json
import math
import os
import select
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient
from mlflow.entities import ViewType

from rftui.tracking import mlflow_uri
from rftui.tracking import outbox as tracking_outbox
from rftui.tracking.outbox import start
from rftui.tracking.trackers import Point, target

KNOBS = {
    "training_args.learning_rate": 3e-4,
    "peft_config.r": 8,
    "peft_config.target_modules": ["q_proj", "v_proj"],
    "training_args.per_device_train_batch_size": 4,
    "system_prompt": "be kind " * 3000,
    "hf_token": "hf_SECRETSECRETSECRET",
}


@pytest.fixture(autouse=True)
def no_tracking_uri(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def tracking_uri(home):
    return f"sqlite:///{home}/mlflow.db"


def tracked(experiment):
    """MLflow's runs of the experiment by rftui's run id."""
    client = MlflowClient(tracking_uri(experiment.home))
    found = client.get_experiment_by_name(experiment.name)
    runs = client.search_runs([found.experiment_id], run_view_type=ViewType.ALL)
    return client, {int(run.data.tags["rftui.run"]): run for run in runs}


def track(experiment, timeout=90.0):
    """Send everything and end."""
    outbox = start(experiment)
    outbox.wake()
    assert outbox.close(timeout), (experiment.logs / "tracking.txt").read_text()
    assert outbox.notices() == []


def artifact(run, path):
    return Path(run.info.artifact_uri.removeprefix("file://"), path).read_text()


def test_runs_become_mlflow_runs(database):
    experiment = database.experiment
    database.run(1, state="done", knobs=KNOBS, config={"model_name": "tiny", "hf_token": "hf_SECRETSECRETSECRET"})
    database.run(2, state="failed", parent=1, algo="DPO", error="out of memory")
    database.run(3, state="running")
    database.run(4, state="stopped")
    database.points(1, "loss", range(1, 1501), lambda step: 1 / step)
    database.points(1, "rouge@1/é", [5], lambda step: math.nan)
    experiment.run(1).path.mkdir()
    experiment.run(1).log.write_text("it trained\n")
    track(experiment)

    client, runs = tracked(experiment)
    assert {number: run.info.status for number, run in runs.items()} == {
        1: "FINISHED",
        2: "FAILED",
        3: "KILLED",
        4: "KILLED",
    }
    first = runs[1]
    assert first.info.run_name == "run 1" and first.info.start_time == 1700000000000
    assert first.data.params["training_args.learning_rate"] == "0.0003"
    assert first.data.params["peft_config.target_modules"] == "['q_proj', 'v_proj']"
    assert set(first.data.params) == set(KNOBS) and "SECRET" not in str(first.data.params)
    assert len(first.data.params["system_prompt"]) == 6000
    assert artifact(first, "params/system_prompt.txt") == KNOBS["system_prompt"]
    history = client.get_metric_history(first.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(step, 1 / step) for step in range(1, 1501)]
    assert history[0].timestamp == 1700000001000
    assert math.isnan(client.get_metric_history(first.info.run_id, "rouge_1/é")[0].value)
    assert json.loads(artifact(first, "config.json"))["config"]["model_name"] == "tiny"
    assert "SECRET" not in artifact(first, "config.json")
    assert artifact(first, "log.txt") == "it trained\n"
    assert runs[2].data.tags["rftui.parent"] == "1" and runs[2].data.tags["rftui.algo"] == "DPO"
    left = {path.name for path in experiment.home.iterdir()}
    assert left <= {"exp", "mlflow.db", "mlflow.db-wal", "mlflow.db-shm"}

    # The next scheduler goes on with the same MLflow runs.
    database.run(3, state="running", knobs={"training_args.learning_rate": 1.0})
    database.points(3, "loss", [1, 2])
    database.run(4, state="deleted")
    MlflowClient(tracking_uri(experiment.home)).delete_run(runs[2].info.run_id)
    outbox = start(experiment)
    database.run(3, state="done")
    database.run(2, state="waiting")
    outbox.wake()
    assert outbox.close(90)
    [notice] = outbox.notices()
    assert notice.startswith(f"MLflow at {experiment.home}/mlflow.db refuses run 2")
    client, again = tracked(experiment)
    assert {number: run.info.run_id for number, run in again.items()} == {
        number: run.info.run_id for number, run in runs.items()
    }
    assert again[3].info.status == "FINISHED" and again[3].data.metrics == {"loss": 2.0}
    assert again[4].info.lifecycle_stage == "deleted" and again[1].info.lifecycle_stage == "active"
    assert client.get_metric_history(first.info.run_id, "loss") == history


def test_two_homes_first_tracked_at_once_share_a_database(tmp_path, database, make_database, monkeypatch):
    other = make_database(tmp_path / "other", "exp")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/a shared.db")
    for each in (database, other):
        each.run(1, state="done")
        each.points(1, "loss", [1])
    outboxes = [start(each.experiment) for each in (database, other)]
    assert all(outbox.close(120) for outbox in outboxes)
    client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    [found] = [each for each in client.search_experiments() if each.name == "exp"]
    runs = client.search_runs([found.experiment_id])
    assert {run.data.tags["rftui.path"] for run in runs} == {
        str(database.experiment.path),
        str(other.experiment.path),
    }


def told(outbox):
    """What it says next; the scheduler never waits for that."""
    select.select([outbox.process.stdout], [], [], 90)
    return outbox.notices()


def kill(outbox):
    outbox.process.kill()
    outbox.process.wait()


def test_a_process_that_is_killed_is_started_again_and_sends_the_rest(database):
    database.run(1, state="done")
    database.points(1, "loss", [1, 2])
    outbox = start(database.experiment)
    kill(outbox)
    outbox.wake()
    kill(outbox)
    assert not outbox.close(90), "the first that is waited for was killed, too"
    assert outbox.close(90)
    assert outbox.notices() == ["the tracking process was killed (signal 9) and is started again"] * 2
    _, runs = tracked(database.experiment)
    assert runs[1].data.metrics == {"loss": 2.0} and runs[1].info.status == "FINISHED"


def test_a_process_that_is_killed_again_and_again_is_left(database, monkeypatch):
    monkeypatch.setattr(tracking_outbox, "_LIVES", 1)
    outbox = start(database.experiment)
    for _ in range(2):
        kill(outbox)
        outbox.wake()
    assert outbox.close(90)
    assert outbox.notices() == [
        "the tracking process was killed (signal 9) and is started again",
        "the tracking process was killed (signal 9) once more and is left; `rftui open exp"
        f" --home {database.experiment.home}` sends what is missing",
    ]


def test_a_process_that_fails_is_started_again_and_said_to_be_left_at_last(database, monkeypatch):
    monkeypatch.setattr(tracking_outbox, "_LIVES", 1)
    database.experiment.outbox.write_text("no database" * 1000)
    outbox = start(database.experiment)
    while not outbox.close(90):
        pass
    again, last = outbox.notices()
    assert again == "the tracking process failed (status 1; logs/tracking.txt) and is started again"
    assert "once more and is left; `rftui open exp" in last
    assert "file is not a database" in (database.experiment.logs / "tracking.txt").read_text()


def test_the_process_sends_and_ends_when_its_scheduler_is_killed(database):
    database.run(1, state="running")
    database.points(1, "loss", [1])
    code = (
        "import sys, signal; from pathlib import Path; from rftui.paths import ExperimentDir;"
        "from rftui.tracking.outbox import start;"
        f"outbox = start(ExperimentDir(Path({str(database.experiment.path)!r})));"
        "print(outbox.process.pid, flush=True); assert 'mlflow' not in sys.modules; signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as scheduler:
        tracking = psutil.Process(int(scheduler.stdout.readline()))
        scheduler.send_signal(signal.SIGKILL)
    while tracking.is_running():
        try:
            assert not tracking.net_connections("inet")
            tracking.wait(0.2)
        except (psutil.TimeoutExpired, psutil.NoSuchProcess):
            pass
    _, runs = tracked(database.experiment)
    assert runs[1].info.status == "KILLED" and runs[1].data.metrics == {"loss": 1.0}


def test_a_server_that_is_down_is_told_once_and_does_not_hold_the_scheduler(database, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    database.run(1, state="running")
    outbox = start(database.experiment)
    [notice] = told(outbox)
    assert notice == (
        "MLflow at 127.0.0.1:9 does not answer (ConnectionError); what is missing there is sent again later"
    )
    for _ in range(100_000):
        outbox.wake()
    assert not outbox.close(0)
    outbox.process.kill()


def test_a_folder_as_tracking_uri_is_refused_with_what_to_do(database, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    outbox = start(database.experiment)
    assert outbox.close(30)
    [notice] = outbox.notices()
    assert "./mlruns names a folder" in notice and "migrate-filestore" in notice
    assert mlflow_uri.fault("sqlite:////x.db") is None and mlflow_uri.fault("https://host") is None


def test_a_relative_database_is_the_one_of_the_directory_of_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///my.db")
    where = target(tmp_path / "home")
    assert (where.uri, where.cwd) == ("sqlite:///my.db", tmp_path) and str(where) == f"MLflow at {tmp_path}/my.db"


def test_mlflow_tells_how_far_a_metric_has_come(database):
    from rftui.tracking.mlflow import connect

    database.run(1)
    tracker = connect(tracking_uri(database.experiment.home), database.experiment)
    tracked_run = tracker.create(database.runs[1])
    assert tracker.last_step(tracked_run, "rouge@1") == -1
    tracker.log_points(tracked_run, [Point("rouge@1", step, math.nan, 1.7e9 + step) for step in (1, 3, 2)])
    assert tracker.last_step(tracked_run, "rouge@1") == 3


def test_a_database_that_was_being_made_when_its_maker_was_killed_is_made_again(database):
    experiment = database.experiment
    (experiment.home / "mlflow.db.new").write_bytes(b"half a database" * 100)
    database.run(1, state="done")
    track(experiment)
    assert tracked(experiment)[1][1].info.status == "FINISHED"
    assert not list(experiment.home.glob("mlflow.db.*"))


def test_a_home_may_have_any_name(tmp_path, make_database):
    """`#`, `?`, `%41` and blanks are syntax in the URI of a database."""
    home = tmp_path / "lr 5%41 #1 is it? yes"
    database = make_database(home, "exp #2? 50%41")
    database.run(1, state="done", knobs={"long": "x" * 7000})
    database.points(1, "loss", [1, 2])
    track(database.experiment)
    assert {path.name for path in tmp_path.iterdir()} == {home.name}
    assert {path.name.partition("-")[0] for path in home.iterdir()} == {"exp #2? 50%41", "mlflow.db"}
    with sqlite3.connect(home / "mlflow.db") as db:
        assert db.execute("SELECT status FROM runs").fetchall() == [("FINISHED",)]
        assert db.execute("SELECT step FROM metrics ORDER BY step").fetchall() == [(1,), (2,)]
    [artifact] = database.experiment.path.glob("mlruns/*/artifacts/params/long.txt")
    assert artifact.read_text() == "x" * 7000
    assert stat.S_IMODE(database.experiment.outbox.stat().st_mode) == 0o600
