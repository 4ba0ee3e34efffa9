"""The trackers that runs can be sent to, and what each must offer. Light: a tracker's own library is imported by its
module, in the tracking process alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from rftui.paths import ExperimentDir
from rftui.redaction import credentials
from rftui.runs import Run
from rftui.tracking import mlflow_uri


class Point(NamedTuple):
    """A value of a metric at an optimizer step; `time` is in seconds since 1970."""

    metric: str
    step: int
    value: float
    time: float


class Tracker(Protocol):
    """Where the runs of one experiment are sent. Any method may raise: what is not `lasting` is tried again, and each
    call may therefore come twice, except `log_points` whose points arrived (`last_step` is asked for that)."""

    batch: int
    """So many points are taken at once, all or none."""

    def open(self) -> None:
        """Find or make the experiment; what fails here fails for every run."""

    def create(self, run: Run) -> str:
        """The tracker's id of `run`; that of one made before a crash where there is one."""

    def log_params(self, tracker_run: str, params: dict[str, str]) -> None:
        """Knobs that were not sent before."""

    def log_changes(self, tracker_run: str, changes: dict[str, str]) -> None:
        """Knobs that were sent and have another value now."""

    def log_points(self, tracker_run: str, points: list[Point]) -> None:
        """At most `batch` points; all of them arrive or none."""

    def last_step(self, tracker_run: str, metric: str) -> int:
        """The highest step of the metric that the tracker has; -1 where it has none."""

    def log_artifacts(self, tracker_run: str, run: Run) -> None:
        """The run's configuration and log, as they are at its end."""

    def set_status(self, tracker_run: str, status: str) -> None:
        """SCHEDULED, RUNNING, FINISHED, FAILED or KILLED."""

    def delete(self, tracker_run: str) -> None: ...

    def lasting(self, error: Exception) -> bool:
        """Whether trying again later will not help, as for a run that someone deleted in the tracker."""

    def explain(self, error: Exception) -> str:
        """What is wrong, as the end of a sentence that begins with the tracker's name and host."""


@dataclass(frozen=True)
class Kind:
    """`name` is what people call it; `variable` the environment variable that names where it keeps the runs.

    `address(home)` is that place as a URI, and the directory in which the URI is to be read; `fault(uri)` says why
    nothing can be tracked there, None where it can; `place(uri, cwd)` names it for people, without credentials.
    `module` has the function `connect(uri, experiment)`, which makes the Tracker; `environment` is set before it is
    imported, where the user did not.
    """

    name: str
    variable: str
    module: str
    address: Callable[[Path], tuple[str, Path]]
    fault: Callable[[str], str | None]
    place: Callable[[str, Path], str]
    environment: Mapping[str, str] = field(default_factory=dict)


KINDS = [
    Kind(
        "MLflow",
        mlflow_uri.VARIABLE,
        "rftui.tracking.mlflow",
        mlflow_uri.address,
        mlflow_uri.fault,
        mlflow_uri.place,
        mlflow_uri.ENVIRONMENT,
    )
]
"""The first whose variable is set is used, else the first of all."""


@dataclass(frozen=True)
class Target:
    """Where the runs of a home are tracked. `uri` is to be read in the directory `cwd`, and never to be shown."""

    kind: Kind
    uri: str
    cwd: Path

    def __str__(self) -> str:
        return f"{self.kind.name} at {self.kind.place(self.uri, self.cwd)}"

    @property
    def fault(self) -> str | None:
        """Why nothing can be tracked there, in a line that says what to do; None where it can."""
        return self.kind.fault(self.uri)

    @property
    def secrets(self) -> set[str]:
        """What no text may hold: of the URI, and what the environment holds for this tracker."""
        prefix = self.kind.variable.rpartition("_")[0]
        given = {os.environ.get(f"{prefix}_{name}", "") for name in ("PASSWORD", "TOKEN", "API_KEY")}
        return credentials(self.uri) | given - {""}

    def connect(self, experiment: ExperimentDir) -> Tracker:
        """The tracker itself; imports its library."""
        for name, value in self.kind.environment.items():
            os.environ.setdefault(name, value)
        return cast(Tracker, import_module(self.kind.module).connect(self.uri, experiment))


def target(home: Path) -> Target:
    """Where the runs of `home` are tracked, by the environment."""
    kind = next((each for each in KINDS if os.environ.get(each.variable)), KINDS[0])
    return Target(kind, *kind.address(home))
