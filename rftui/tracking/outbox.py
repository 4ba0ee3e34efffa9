"""The scheduler's end of tracking: it starts the process that sends to MLflow and wakes it. Imports no MLflow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rftui.paths import ExperimentDir


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
    """The tracking process of an experiment. What it sends it reads from the experiment's database."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin and process.stdout
        self._process = process
        self._wakes, self._says = process.stdin, process.stdout
        self._tail = b""
        os.set_blocking(self._wakes.fileno(), False)
        os.set_blocking(self._says.fileno(), False)

    def wake(self) -> None:
        """There is something new in the database. Never blocks, never raises."""
        try:
            os.write(self._wakes.fileno(), b"\n")
        except (OSError, ValueError):
            pass  # it is awake already (the pipe is full), or gone: then the next one sends the rest

    def notices(self) -> list[str]:
        """What it has to tell the user since the last call, for the event log. Never blocks, never raises."""
        try:
            self._tail += os.read(self._says.fileno(), 65536)
        except (OSError, ValueError):
            return []
        *lines, self._tail = self._tail.split(b"\n")
        return [line.decode(errors="replace") for line in lines]

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
        return True


def start(experiment: ExperimentDir) -> Outbox:
    """Start the tracking process of `experiment`; its own output goes to logs/tracking.txt."""
    environment = os.environ | {"MLFLOW_TRACKING_URI": tracking_uri(experiment.home)}
    with open(experiment.logs / "tracking.txt", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "rftui.tracking", str(experiment.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # MLflow makes an ./mlruns for whatever directory it runs in.
            cwd=experiment.path,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
    return Outbox(process)
