"""What keeps a run from its turns for a while: a disk too full to save it, or other runs that must make room."""

from __future__ import annotations

import shutil

from rftui.link_server import Server
from rftui.messages import Retry, Unsaved
from rftui.runs import RUNNING, WAITING, Run
from rftui.scheduler.placement import Placements
from rftui.scheduler.registry import Registry

_SENTENCES = {
    "memory": "ran out of memory: the other runs of its device make room",
    "child": "lost a process that loads its data",
    "device": "lost its device: the worker there is started again",
}


class Retries:
    """Runs that cannot be saved are saved when there is room; those that ran out of memory go on once there is
    some."""

    def __init__(self, registry: Registry, server: Server, placements: Placements) -> None:
        self._registry = registry
        self._server = server
        self._placements = placements

    def unsaved(self, run: Run, report: Unsaved) -> None:
        """The run waits for room on the disk; it keeps its last checkpoint."""
        place = self._placements[run.id]
        if place.disk is None:
            text = f"Run {run.id} paused: {report.error}; it continues when there is room"
            self._registry.log(text, run, "error")
        place.disk = report.needed
        run.state = WAITING if run.state == RUNNING else run.state
        run.error = f"paused: {report.error}"

    def saved(self, run: Run) -> None:
        """The run has a new checkpoint."""
        place = self._placements[run.id]
        place.retried = False
        if place.disk is not None:
            self._registry.log(f"Run {run.id} saved; it continues", run)
        self.over(run)

    def over(self, run: Run) -> None:
        """The run waits for no disk: it was saved, or no worker holds it any longer."""
        place = self._placements[run.id]
        if place.disk is not None:
            place.disk = run.error = None

    def again(self, run: Run, worker: str, why: str) -> bool:
        """Whether a run that failed for this reason, as `messages.Failed` tells it, goes back and tries once more."""
        place = self._placements[run.id]
        if why not in _SENTENCES or place.retried:
            return False
        place.retried = True
        if why == "memory":
            place.cleared_for_it = worker
        self._registry.log(f"Run {run.id} {_SENTENCES[why]}; it continues from its last checkpoint", run, "error")
        return True

    def look(self) -> None:
        """Have the runs saved that wait for room on the disk, if there is some."""
        for number, needed in self._placements.waiting_for_disk.items():
            worker = self._placements[number].worker
            if worker and shutil.disk_usage(self._registry.experiment.path).free >= needed:
                self._server.task(worker, Retry(number))
