"""Workers that an earlier scheduler left: this one starts its own when they are gone.

They notice that their scheduler has died and end after their step, or after ten seconds; what is left then is killed.
So two generations never train the same runs, and no checkpoint can come from the older one.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil

from rftui.faults import FAILED, Fault
from rftui.paths import ExperimentDir
from rftui.scheduler.store import Store

_PATIENCE = 12.0
_AFTER_KILL = 10.0


def birth(pid: int) -> str | None:
    """What tells this process from any other that has its number at another time; None where there is none."""
    try:
        if sys.platform != "linux":
            return str(psutil.Process(pid).create_time())
        # Counted from the boot, unlike psutil's, which moves when the clock is set.
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {started}"
    except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        return None


class Predecessors:
    """`gone` is asked again and again until it is true."""

    def __init__(self, experiment: ExperimentDir, store: Store) -> None:
        self._experiment = experiment
        self._store = store
        self._began = time.monotonic()
        self._killed = False

    def gone(self) -> bool:
        """Whether none lives. Those that take too long are killed. Raises Fault where that does not end them."""
        if self._experiment.workers_gone():
            return True
        waited = time.monotonic() - self._began
        if waited > _PATIENCE and not self._killed:
            self._killed = True
            for pid in self._alive():
                kill_group(pid)
        if waited > _PATIENCE + _AFTER_KILL:
            named = "".join(f" (process {pid})" for pid in self._alive())
            name = self._experiment.name
            raise Fault(
                f"{name}: a worker of an earlier scheduler{named} neither ends nor can be killed; end it, on whatever "
                f"machine it runs, and open {name} again",
                code=FAILED,
            )
        return False

    def _alive(self) -> list[int]:
        return [pid for pid, born in self._store.workers() if born and birth(pid) == born]


def kill_group(leader: int) -> None:
    """Kill a worker, which leads its group, and its children."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has just ended by itself
