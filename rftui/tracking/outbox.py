"""The scheduler's end of tracking: it starts the process that sends to MLflow and wakes it. Imports no MLflow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rftui.paths import ExperimentDir

_LIVES = 5
"""So often a process that is killed is started again."""


def tracking_uri(home: Path) -> str:
    """Where MLflow keeps the runs of `home`: $MLFLOW_TRACKING_URI, else a database in the home."""
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    database = given.removeprefix("sqlite:///")
    if database != given and not database.startswith("/"):
        return f"sqlite:///{Path.cwd() / database}"  # the tracking process runs in another directory
    return given or f"sqlite:///{home / 'mlflow.db'}"


def uri_fault(uri: str) -> str | None:
    """Why MLflow cannot track to `uri`, in a line that says what to do; None where it can."""
    if os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() in ("true", "1"):
        return None
    if "://" in uri and not uri.startswith("file:"):
        return None
    return (
        f"MLFLOW_TRACKING_URI={uri} names a folder, and MLflow no longer keeps runs in folders: unset it, or set it"
        " to a database (sqlite:///mlflow.db) or a server; `mlflow migrate-filestore` moves old runs over"
    )


class Outbox:
    """The tracking process of an experiment, started anew a few times where it is killed. What it sends it reads from
    the experiment's database; its own output goes to logs/tracking.txt."""

    def __init__(self, experiment: ExperimentDir) -> None:
        self._experiment = experiment
        self._lives = _LIVES
        self._notices: list[str] = []
        self._tail = b""
        self._start()

    def wake(self) -> None:
        """There is something new in the database. Never blocks, never raises."""
        self._revive()
        try:
            os.write(self._wakes.fileno(), b"\n")
        except (OSError, ValueError):
            pass  # it is awake already (the pipe is full), or gone: then the next one sends the rest

    def notices(self) -> list[str]:
        """What it has to tell the user since the last call, for the event log. Never blocks, never raises."""
        told, self._notices = self._notices, []
        try:
            self._tail += os.read(self._says.fileno(), 65536)
        except (OSError, ValueError):
            return told
        *lines, self._tail = self._tail.split(b"\n")
        return told + [line.decode(errors="replace") for line in lines]

    def close(self, timeout: float) -> bool:
        """Let it send everything and end; whether it did within `timeout` seconds. Else it goes on by itself."""
        try:
            self._wakes.close()
        except OSError:
            pass
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return not self._revive()

    def _revive(self) -> bool:
        """Start it again if it was killed, but not for ever; whether that was so."""
        status = self._process.poll()
        if status is None or status >= 0 or not self._lives:
            return False
        self._lives -= 1
        self._notices.append(f"the tracking process was killed (signal {-status}) and is started again")
        self._start()
        return True

    def _start(self) -> None:
        environment = os.environ | {"MLFLOW_TRACKING_URI": tracking_uri(self._experiment.home)}
        with open(self._experiment.logs / "tracking.txt", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rftui.tracking", str(self._experiment.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # MLflow makes an ./mlruns for whatever directory it runs in.
                cwd=self._experiment.path,
                env=environment,
                start_new_session=True,
                bufsize=0,
            )
        assert self._process.stdin and self._process.stdout
        self._wakes, self._says, self._tail = self._process.stdin, self._process.stdout, b""
        os.set_blocking(self._wakes.fileno(), False)
        os.set_blocking(self._says.fileno(), False)


def start(experiment: ExperimentDir) -> Outbox:
    """Start the tracking process of `experiment`."""
    return Outbox(experiment)
