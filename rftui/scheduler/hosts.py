"""Where worker processes run: a host starts them, watches them and ends them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from rftui.paths import ExperimentDir
from rftui.scheduler.recovery import birth, kill_group


class Process(NamedTuple):
    """A worker's process: its number on its machine, and what tells it from any other of that number."""

    pid: int
    birth: str | None


class WorkerHost(Protocol):
    """What the scheduler needs of whatever runs its workers. Each is called by its slot's name."""

    def start(self, name: str, environment: dict[str, str], ended: Callable[[int], None]) -> Process:
        """Start a worker (again) with these variables; `ended` is called, in any thread, with its exit status
        (negative for a signal). Raises OSError."""

    def running(self, name: str) -> bool: ...

    def kill(self, name: str) -> None:
        """At once, with its children; nothing where it has ended."""

    def wait(self, name: str, seconds: float) -> bool:
        """Whether it has ended within `seconds`."""

    def log(self, name: str) -> Path:
        """The file to which it writes what it says."""


class LocalHost:
    """This machine: a process a worker, in a session of its own. `inherited`: the variables that workers get from this
    process."""

    def __init__(self, experiment: ExperimentDir, inherited: Mapping[str, str]) -> None:
        self._experiment = experiment
        self._inherited = dict(inherited)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, environment: dict[str, str], ended: Callable[[int], None]) -> Process:
        own = {"RFTUI_SCHEDULER": str(os.getpid())}
        with open(self.log(name), "ab") as log, self._experiment.lock_worker() as lock:
            process = subprocess.Popen(
                [sys.executable, "-m", "rftui.training.worker"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._inherited | environment | own | {"RFTUI_LOCK": str(lock.fileno())},
                pass_fds=[lock.fileno()],  # from before its first moment to its last
                start_new_session=True,
            )
        self._processes[name] = process
        threading.Thread(target=lambda: ended(process.wait()), daemon=True).start()
        return Process(process.pid, birth(process.pid))

    def running(self, name: str) -> bool:
        return name in self._processes and self._processes[name].poll() is None

    def kill(self, name: str) -> None:
        if self.running(name):  # else its number may be another's
            kill_group(self._processes[name].pid)

    def wait(self, name: str, seconds: float) -> bool:
        try:
            self._processes[name].wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def log(self, name: str) -> Path:
        return self._experiment.logs / f"worker-{name}.txt"
