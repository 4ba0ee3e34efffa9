"""The scheduler's end of tracking: it starts the process that sends to the tracker and wakes it. Imports no tracker's
library."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from rftui.paths import ExperimentDir, how_to_open
from rftui.tracking.trackers import target

REFUSED = 3
"""Exit code of a tracking process that said why nothing can be tracked."""

_LIVES = 5
"""So often a process that was killed, or failed, is started again."""


class Outbox:
    """The tracking process of an experiment, started anew a few times where it dies. What it sends it reads from the
    experiment's database; its own output goes to logs/tracking.txt."""

    def __init__(self, experiment: ExperimentDir) -> None:
        self._experiment = experiment
        self._target = target(experiment.home)
        self._lives = _LIVES
        self._closing = False
        self._notices: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._tail = b""
        self._start()

    def wake(self) -> None:
        """There is something new in the database. Never blocks, never raises."""
        self._revive()
        if self.process and self.process.stdin:
            try:
                os.write(self.process.stdin.fileno(), b"\n")
            except (OSError, ValueError):
                pass  # it is awake already (the pipe is full), or gone: then the next one sends the rest

    def notices(self) -> list[str]:
        """What it has to tell the user since the last call, for the event log. Never blocks, never raises."""
        self._hear()
        told, self._notices = self._notices, []
        return told

    def close(self, timeout: float) -> bool:
        """Let it send everything and end; whether it did within `timeout` seconds. Else it goes on by itself for some
        more seconds, and sends nothing after that."""
        self._closing = True
        if self.process is None:
            return not self._revive()
        try:
            if self.process.stdin:
                self.process.stdin.close()
        except OSError:
            pass
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return not self._revive()

    def _hear(self) -> None:
        if self.process is None or self.process.stdout is None:
            return
        try:
            while read := os.read(self.process.stdout.fileno(), 65536):
                self._tail += read
        except (OSError, ValueError):
            pass
        *lines, self._tail = self._tail.split(b"\n")
        self._notices += [line.decode(errors="replace") for line in lines]

    def _revive(self) -> bool:
        """Start it again if it died, but not for ever; whether that was so."""
        status = self.process.poll() if self.process else 1
        if status is None or status == REFUSED or (status == 0 and self._closing) or self._lives < 0:
            return False
        self._hear()
        died = f"was killed (signal {-status})" if status < 0 else f"failed (status {status}; logs/tracking.txt)"
        self._lives -= 1
        if self._lives < 0:
            how = how_to_open(self._experiment)
            self._notices.append(f"the tracking process {died} once more and is left; `{how}` sends what is missing")
            return False
        self._notices.append(f"the tracking process {died} and is started again")
        self._start()
        return True

    def _start(self) -> None:
        if self.process and self.process.stdout:
            self.process.stdout.close()
        self.process, self._tail = None, b""
        try:
            with open(self._experiment.logs / "tracking.txt", "ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "rftui.tracking", str(self._experiment.path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    cwd=self._target.cwd,
                    start_new_session=True,
                    bufsize=0,
                )
        except OSError as error:
            self._notices.append(f"the tracking process cannot be started: {error.strerror}")
            return
        assert process.stdin and process.stdout
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        self.process = process


def send_rest(experiment: ExperimentDir, patience: float = 30.0) -> list[str]:
    """Send what the tracker still lacks of an experiment that no scheduler holds, for at most so many seconds; what is
    to be said of it, a line each."""
    tracking, until = Outbox(experiment), time.monotonic() + patience
    while not (ended := tracking.close(0.2)) and time.monotonic() < until:
        pass
    slow = [] if ended else ["tracking has not ended: what it does not send is sent when the experiment is opened"]
    return tracking.notices() + slow


def start(experiment: ExperimentDir) -> Outbox:
    """Start the tracking process of `experiment`."""
    return Outbox(experiment)
