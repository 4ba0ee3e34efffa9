"""Where each run is, what it waits for and why: one object a run. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

STOP, DELETE, MOVE = "stop", "delete", "move"
"""Why a worker was asked to save a run and free it; after MOVE any worker may take it."""


@dataclass
class Placement:
    """One run, as far as devices concern it.

    `worker` holds its state in memory, and `turn` is the number in the store of the turn that it has there now.
    `leaving`: it was asked to save and free itself (STOP, DELETE, MOVE). It cannot start a turn while it waits: for
    the weights of its `parent` (which the worker `linker` was asked to link), for `disk` bytes of room to save itself,
    or for the worker `cleared_for_it` to be free of all other runs.

    `retried`: it went back once since its last checkpoint; `deaths`: of its worker in its turns since then; `faults`:
    how often rftui failed to follow it. `turn_seconds`: the length of its last turn; `turn_step`: where its present
    one began; `since`: a number that grows, from when on it waits for a turn.
    """

    worker: str | None = None
    turn: int | None = None
    leaving: str | None = None
    parent: int | None = None
    linker: str | None = None
    disk: int | None = None
    cleared_for_it: str | None = None
    retried: bool = False
    deaths: int = 0
    faults: int = 0
    turn_seconds: float = 0.0
    turn_step: int = 0
    since: int = 0

    @property
    def blocked(self) -> bool:
        """Whether it waits for something else than its turn."""
        return self.parent is not None or self.disk is not None or self.cleared_for_it is not None

    def free(self) -> None:
        """No worker holds it any longer."""
        self.worker = self.turn = self.leaving = self.disk = None


class Placements:
    """The placement of each run, by its id."""

    def __init__(self) -> None:
        self._of: dict[int, Placement] = {}
        self._moments = count(1)

    def __getitem__(self, run: int) -> Placement:
        return self._of.setdefault(run, Placement())

    def items(self) -> Iterator[tuple[int, Placement]]:
        yield from list(self._of.items())

    def wait(self, run: int) -> None:
        """From now on the run waits for its next turn."""
        self[run].since = next(self._moments)

    def training_on(self, worker: str) -> int | None:
        """The run that has its turn there."""
        return next((run for run, place in self.items() if place.worker == worker and place.turn is not None), None)

    def cleared(self, worker: str) -> int | None:
        """The run for which the worker is cleared."""
        return next((run for run, place in self.items() if place.cleared_for_it == worker), None)

    def held_by(self, worker: str) -> list[int]:
        return [run for run, place in self.items() if place.worker == worker]

    @property
    def resident(self) -> dict[int, str]:
        """Run -> the worker that holds its state."""
        return {run: place.worker for run, place in self.items() if place.worker is not None}

    @property
    def waiting_for_weights(self) -> dict[int, int]:
        """Clone -> the parent whose weights it waits for."""
        return {run: place.parent for run, place in self.items() if place.parent is not None}

    @property
    def waiting_for_disk(self) -> dict[int, int]:
        """Run -> the bytes that must be free before it can be saved."""
        return {run: place.disk for run, place in self.items() if place.disk is not None}

    @property
    def blocked(self) -> set[int]:
        """The runs that cannot start a turn."""
        return {run for run, place in self.items() if place.blocked}

    @property
    def moving(self) -> set[int]:
        return {run for run, place in self.items() if place.leaving == MOVE}
