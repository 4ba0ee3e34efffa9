"""`python -m rftui.tracking EXPERIMENT_DIR`: the process that sends an experiment's database to MLflow.

Each line on stdin is a wake-up. The end of stdin, or the death of the process that started this one, means: send
everything, set the final statuses, and end. What the user should know goes to stdout, a line each.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import threading
import time
from pathlib import Path

from rftui.paths import ExperimentDir
from rftui.tracking.ledger import Ledger
from rftui.tracking.outbox import tracking_uri, uri_fault
from rftui.tracking.sender import Sender, log, one_line

_PAUSE = 1.0
"""Seconds between two sends: metrics of a busy second travel together."""

_LONGEST_WAIT = 60.0
_LAST_TRIES = 30.0
"""For so many seconds after the end of stdin it keeps trying; what is left is sent when the experiment is reopened."""


class Wakes:
    """Wake-ups from stdin, gathered by a thread of its own."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self._wake = threading.Event()
        self._parent = os.getppid()
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def wait(self) -> None:
        """Until there is a wake-up or the end."""
        # A process that the scheduler forked may hold the other end of the pipe open after the scheduler's death.
        while not self._wake.wait(2.0) and os.getppid() == self._parent:
            pass
        if os.getppid() != self._parent:
            self.closed.set()
        self._wake.clear()

    def _read(self) -> None:
        while os.read(0, 65536):
            self._wake.set()
        self.closed.set()
        self._wake.set()


def serve(sender: Sender, wakes: Wakes, say: int) -> None:
    """Send at every wake-up until the end; after an error again after a wait that grows."""
    wait, deadline, troubled = _PAUSE, None, False
    while True:
        closing = wakes.closed.is_set()
        if closing and deadline is None:
            deadline, wait = time.monotonic() + _LAST_TRIES, _PAUSE
        try:
            for notice in sender.send(closing):
                tell(say, notice)
        except Exception as error:
            log.exception("tracking failed; it is tried again in %.0f s", wait)
            if not troubled:
                tell(say, f"tracking to MLflow fails and is tried again (logs/tracking.txt): {one_line(error)}")
            troubled = True
            if deadline and time.monotonic() + wait > deadline:
                return
            if closing:
                time.sleep(wait)
            else:
                wakes.closed.wait(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
            continue
        if troubled:
            tell(say, "tracking to MLflow works again")
        wait, troubled = _PAUSE, False
        if closing:
            return
        wakes.closed.wait(_PAUSE)
        wakes.wait()


def tell(say: int, notice: str) -> None:
    """A line for the scheduler's event log; lost where nobody reads."""
    try:
        os.write(say, notice.encode() + b"\n")
    except OSError:
        pass


def main(argv: list[str]) -> int:
    experiment = ExperimentDir(Path(argv[0]))
    say = os.dup(1)
    os.set_blocking(say, False)
    os.dup2(2, 1)  # what MLflow prints goes to the log
    os.umask(0o077)
    os.nice(5)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    uri = tracking_uri(experiment.home)
    if fault := uri_fault(uri):
        tell(say, f"not tracked to MLflow: {fault}")
        return 1
    # No sockets but those to a server that the user named, and no long waits inside MLflow: this loop waits itself.
    os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_TRACKING_URI": uri}
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    wakes = Wakes()
    with open(experiment.logs / "tracking.lock", "w") as lock:
        # The tracker of a scheduler before this one may still be sending the same points.
        fcntl.flock(lock, fcntl.LOCK_EX)
        from rftui.tracking.mlflow import BATCH, Tracker, lasting

        ledger = Ledger(experiment.db)
        serve(Sender(ledger, Tracker(uri, experiment), lasting, BATCH), wakes, say)
        ledger.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
