"""Warm clones and their parents' weights: asked for, arrived, or lost with the worker that was to link them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rftui.checkpoints import checkpoint_marker, link_checkpoint, newest_checkpoint
from rftui.link_server import Server
from rftui.messages import SnapshotWeights
from rftui.runs import Run
from rftui.scheduler.placement import Placements
from rftui.scheduler.policy import entry_turns
from rftui.scheduler.registry import Registry


class WeightSnapshots:
    """`fail` ends a clone that will not get its parent's weights.

    A worker is asked to link the weights at the parent's next step. If it dies first, they come from the parent's
    newest checkpoint; where there is none, another worker is asked once the parent has taken a step again.
    """

    def __init__(
        self, registry: Registry, server: Server, placements: Placements, fail: Callable[[Run, str], None]
    ) -> None:
        self._placements = placements
        self._registry = registry
        self._server = server
        self._fail = fail

    @property
    def waiting(self) -> dict[int, int]:
        """Clone -> the parent whose weights it waits for."""
        return self._placements.waiting_for_weights

    def ask(self, clones: list[Run], parent: Run, worker: str) -> None:
        """Have the worker that holds the parent link its weights at its next step, the same for all the clones."""
        for clone in clones:
            self._placements[clone.id].parent, self._placements[clone.id].linker = parent.id, worker
        self._server.task(worker, SnapshotWeights(parent.id, [clone.id for clone in clones]))

    def link(self, clone: Run, parent: Run, checkpoint: Path) -> None:
        """Start the clone from a checkpoint of its parent, without a worker. Raises OSError."""
        link_checkpoint(checkpoint, self._registry.experiment.run(clone.id).start)
        assert self.arrived(clone), "the checkpoint was whole"

    def arrived(self, clone: Run) -> bool:
        """Take the clone's position from the parent's weights in its `start/`; False where they are not there."""
        marker = checkpoint_marker(self._registry.experiment.run(clone.id).start)
        if marker is None:
            return False
        parent = self._registry.runs[clone.parent or 0]
        self.forget(clone)
        clone.start_step = parent.start_step + int(marker["step"])
        clone.start_row = int(marker["row"])
        clone.start_epoch = clone.start_row / marker["rows"]
        others = (run for run in self._registry.runs.values() if run is not clone)
        clone.turns = entry_turns(others, clone.fit, self.waiting)
        self._registry.touch(clone)
        return True

    def forget(self, clone: Run) -> None:
        """The clone waits no longer."""
        self._placements[clone.id].parent = self._placements[clone.id].linker = None

    def ready(self, clone: Run) -> None:
        """A worker says that it has linked the weights."""
        if clone.id in self.waiting and not self.arrived(clone):
            self._fail(clone, "its parent's weights were not linked whole")

    def stepped(self, parent: Run, worker: str) -> None:
        """Ask again for what another worker was asked for in vain."""
        if owed := [clone for clone in self._of(parent) if self._placements[clone.id].linker is None]:
            self.ask(owed, parent, worker)

    def freed(self, parent: Run) -> None:
        """No worker holds the parent any more; the one that did still links what it was asked for, if it can."""
        if newest_checkpoint(self._registry.experiment.run(parent.id).checkpoints):
            self._settle(parent, [clone for clone in self._of(parent) if self._placements[clone.id].linker is None])
        else:
            self._settle(parent, self._of(parent))

    def lost(self, worker: str) -> None:
        """The worker died; the runs that it held are back at their checkpoints."""
        for number in [clone for clone, place in self._placements.items() if place.linker == worker]:
            clone = self._registry.runs[number]
            self._settle(self._registry.runs[clone.parent or 0], [clone])

    def all_lost(self) -> None:
        """No worker lives any more."""
        for clone, parent in list(self.waiting.items()):
            self._settle(self._registry.runs[parent], [self._registry.runs[clone]])

    def take_up(self, clone: Run) -> None:
        """The scheduler that had accepted the clone ended before the weights had come."""
        if not self.arrived(clone):
            self._placements[clone.id].parent = clone.parent or 0
            self._settle(self._registry.runs[clone.parent or 0], [clone])

    def _of(self, parent: Run) -> list[Run]:
        return [self._registry.runs[clone] for clone, number in self.waiting.items() if number == parent.id]

    def _settle(self, parent: Run, clones: list[Run]) -> None:
        """Nobody links the weights for these clones: do it, or wait for the parent's next step, or let them fail."""
        newest = newest_checkpoint(self._registry.experiment.run(parent.id).checkpoints)
        for clone in clones:
            self._placements[clone.id].linker = None
            if newest:
                try:
                    self.link(clone, parent, newest)
                except OSError as error:
                    self._fail(clone, not_linked(parent, error))
                    continue
                place = f"the last checkpoint of run {parent.id}, step {clone.start_step - parent.start_step}"
                self._registry.log(f"Run {clone.id} starts warm from {place}", clone, "notice")
            elif not parent.active:
                self._fail(clone, "its parent ended before there were weights to start from")


def not_linked(parent: Run, error: OSError) -> str:
    """Why a clone fails whose parent's weights could not be linked."""
    why = error.strerror or error.args[0][0][2]  # copytree gathers its files' errors in one
    return f"the weights of run {parent.id} cannot be linked: {why}"
