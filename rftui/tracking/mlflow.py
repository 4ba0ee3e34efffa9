"""The one module that talks to MLflow."""

from __future__ import annotations

import fcntl
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from requests.exceptions import RequestException
from sqlalchemy.engine import make_url

from rftui.paths import ExperimentDir
from rftui.runs import Run
from rftui.tracking.mlflow_uri import served
from rftui.tracking.trackers import Point

_PARAMS_AT_ONCE = 100
_LONGEST_PARAM = 6000
_CUT = " ... [cut: the whole value is the artifact params/{}.txt]"

_LASTING = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "PERMISSION_DENIED"}


def connect(uri: str, experiment: ExperimentDir) -> MlflowTracker:
    """The tracker of one experiment."""
    return MlflowTracker(uri, experiment)


class MlflowTracker:
    """The MLflow experiment of one rftui experiment. Every method raises whatever MLflow raises."""

    batch = 1000

    def __init__(self, uri: str, experiment: ExperimentDir) -> None:
        self._uri = uri
        self._experiment = experiment

    def open(self) -> None:
        """Find or make the MLflow experiment; what fails here fails for every run."""
        if self._uri.startswith("sqlite:///") and "?" not in self._uri:
            _make_database(self._uri)
        self._experiment_id  # noqa: B018

    @cached_property
    def _client(self) -> MlflowClient:
        return MlflowClient(self._uri)

    @cached_property
    def _experiment_id(self) -> str:
        name = self._experiment.name
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return self._client.create_experiment(name, self._artifacts)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self._client.get_experiment_by_name(name)  # somebody else was quicker
                assert found is not None
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return found.experiment_id

    @property
    def _artifacts(self) -> str | None:
        """A server knows where it keeps artifacts; a bare database would put them under the current directory."""
        return None if served(self._uri) else (self._experiment.path / "mlruns").as_uri()

    def create(self, run: Run) -> str:
        """The id of the MLflow run for `run`: that of one made before a crash, else a new one."""
        tags = {"rftui.run": str(run.id), "rftui.path": str(self._experiment.path), "rftui.algo": run.algo}
        if run.parent is not None:
            tags["rftui.parent"] = str(run.parent)
        for found in self._client.search_runs([self._experiment_id], f"tags.`rftui.run` = '{run.id}'"):
            # Another home may track an experiment of the same name to the same server.
            if found.data.tags.get("rftui.path") == tags["rftui.path"]:
                return found.info.run_id
        start = int(run.created * 1000) or None
        return self._client.create_run(self._experiment_id, start, tags, run.name[:250]).info.run_id

    def log_params(self, tracker_run: str, params: dict[str, str]) -> None:
        """MLflow refuses a second value of a param, so each is sent once."""
        entities = []
        for knob, text in params.items():
            key = _key(knob)
            if len(text) > _LONGEST_PARAM:
                self._client.log_text(tracker_run, text, f"params/{key}.txt")
                cut = _CUT.format(key)
                text = text[: _LONGEST_PARAM - len(cut)] + cut
            entities.append(Param(key, text))
        for some in _batches(entities, _PARAMS_AT_ONCE):
            self._client.log_batch(tracker_run, params=some)

    def log_changes(self, tracker_run: str, changes: dict[str, str]) -> None:
        """Params that were sent and have another value now."""
        tags = [RunTag(f"rftui.now.{_key(knob)}", text[:5000]) for knob, text in changes.items()]
        for some in _batches(tags, _PARAMS_AT_ONCE):
            self._client.log_batch(tracker_run, tags=some)

    def log_points(self, tracker_run: str, points: Iterable[Point]) -> None:
        """At most BATCH points; all of them arrive or none."""
        metrics = [Metric(_key(point.metric), point.value, int(point.time * 1000), point.step) for point in points]
        self._client.log_batch(tracker_run, metrics=metrics)

    def last_step(self, tracker_run: str, metric: str) -> int:
        """The highest step of the metric that MLflow has; -1 where it has none."""
        history = self._client.get_metric_history(tracker_run, _key(metric))
        return max((found.step for found in history), default=-1)

    def log_artifacts(self, tracker_run: str, run: Run) -> None:
        """The run's configuration and log, as they are at its end."""
        plain = run.to_dict()
        self._client.log_dict(tracker_run, {key: plain[key] for key in ("config", "changes", "knobs")}, "config.json")
        log = self._experiment.run(run.id).log
        if log.exists():
            self._client.log_artifact(tracker_run, str(log))

    def set_status(self, tracker_run: str, status: str) -> None:
        if status in ("RUNNING", "SCHEDULED"):
            self._client.update_run(tracker_run, status)
        else:
            self._client.set_terminated(tracker_run, status)

    def delete(self, tracker_run: str) -> None:
        self._client.set_terminated(tracker_run, "KILLED")
        self._client.delete_run(tracker_run)

    def lasting(self, error: Exception) -> bool:
        return isinstance(error, MlflowException) and error.error_code in _LASTING

    def explain(self, error: Exception) -> str:
        cause: BaseException | None = error
        while cause:
            if isinstance(cause, RequestException):  # its text is the whole request
                return f"does not answer ({type(cause).__name__})"
            cause = cause.__cause__ or cause.__context__
        return f"fails: {(str(error).strip().splitlines() or [type(error).__name__])[0][:300]}"


def _make_database(uri: str) -> None:
    """MLflow makes its tables in dozens of steps, and can use a database neither while another process is at it nor
    after one was killed at it. So it is made under another name, by one process at a time."""
    path = Path(make_url(uri).database or "")  # as MLflow reads it
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if not path.exists():
            work = path.with_name(f"{path.name}.new")
            work.unlink(missing_ok=True)
            MlflowClient(f"{uri}.new").search_experiments(max_results=1)
            work.replace(path)
    finally:
        os.close(folder)


def _key(name: str) -> str:
    """`name` in the characters that MLflow allows, and not shaped like a path that leads elsewhere."""
    plain = posixpath.normpath(re.sub(r"[^\w./ -]", "_", name)[:250])
    return plain if not plain.startswith((".", "/")) else "_" + plain.lstrip("./")


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
