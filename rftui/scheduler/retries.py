"""What keeps a run from its turns for a while: a disk too full to save it, or other runs that must make room."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from rftui.link_server import Server
from rftui.messages import Retry, Unsaved
from rftui.runs import RUNNING, WAITING, Run
from rftui.scheduler.registry import Registry

_TOLD = {
    "memory": "ran out of memory: the other runs of its device make room",
    "child": "lost a process that loads its data",
}


class Retries:
    """`making_room`: worker -> the run that gets it next, once the others there are freed."""

    def __init__(self, registry: Registry, server: Server) -> None:
        self.making_room: dict[str, int] = {}
        self._registry = registry
        self._server = server
        self._unsaved: dict[int, int] = {}  # run -> bytes that it waits for
        self._set_back: set[int] = set()  # since their last checkpoint

    @property
    def blocked(self) -> set[int]:
        """Runs that cannot start a turn."""
        return self.unsaved_runs | set(self.making_room.values())

    @property
    def unsaved_runs(self) -> set[int]:
        """Runs that wait for room on the disk."""
        return set(self._unsaved)

    def unsaved(self, run: Run, report: Unsaved) -> None:
        """The run waits for room on the disk; it keeps its last checkpoint."""
        if run.id not in self._unsaved:
            self._registry.log(f"run {run.id} is paused, {report.error}; it goes on when there is room", run, "error")
        self._unsaved[run.id] = report.needed
        run.state = WAITING if run.state == RUNNING else run.state
        run.error = f"paused: {report.error}"

    def saved(self, run: Run) -> None:
        """The run has a new checkpoint."""
        self._set_back.discard(run.id)
        if run.id in self._unsaved:
            self._registry.log(f"run {run.id} is saved and goes on", run)
        self.over(run)

    def over(self, run: Run) -> None:
        """The run waits for no disk: it was saved, or no worker holds it any more."""
        if self._unsaved.pop(run.id, None):
            run.error = None

    def again(self, run: Run, worker: str, why: str) -> bool:
        """Whether a run that failed for this reason, as `messages.Failed` tells it, goes back and tries once more."""
        if not why or run.id in self._set_back:
            return False
        self._set_back.add(run.id)
        if why == "memory":
            self.making_room[worker] = run.id
        self._registry.log(f"run {run.id} {_TOLD[why]}, and it goes on from its last checkpoint", run, "error")
        return True

    def look(self, resident: Mapping[int, str]) -> None:
        """Have the runs saved that wait for room on the disk, if there is some."""
        for number, needed in self._unsaved.items():
            if number in resident and shutil.disk_usage(self._registry.experiment.path).free >= needed:
                self._server.task(resident[number], Retry(number))
