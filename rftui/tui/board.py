"""What a viewer knows of an experiment. Pure: snapshots and updates in, and what of it is shown."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from rftui.curves import Curves
from rftui.formatting import clean, format_cell
from rftui.messages import Device, Event, ExperimentInfo, Field, Snapshot, Update
from rftui.naming import short
from rftui.paths import ExperimentDir, how_to_open
from rftui.runs import DELETED, QUEUED, Run
from rftui.tui.lineage import Branch, tree

_EVENTS = 500

RESTORING = "restoring"
"""What a deleted run is doing while its undo is asked for."""


@dataclass
class Change:
    """What an update changed: the ids of runs whose row changed, the parts of the screen that did, and whether the
    set or order of rows did."""

    runs: set[int] = field(default_factory=set)
    curves: set[int] = field(default_factory=set)
    events: bool = False
    devices: bool = False
    experiment: bool = False
    layout: bool = False

    def merge(self, other: Change) -> None:
        self.runs |= other.runs
        self.curves |= other.curves
        for part in ("events", "devices", "experiment", "layout"):
            setattr(self, part, getattr(self, part) or getattr(other, part))


class Board:
    """Runs are shown by id, clones under their parents; `shown` names them in the order of the rows.

    `asked`: run -> (what it is doing, the state it was in then) for an op whose effect has not been seen yet.
    """

    def __init__(self) -> None:
        self.experiment: ExperimentInfo | None = None
        self.runs: dict[int, Run] = {}
        self.curves = Curves()
        self.events: list[Event] = []
        self.devices: dict[str, Device] = {}
        self.schema: dict[str, list[Field]] = {}
        self.marked: set[int] = set()
        self.asked: dict[int, tuple[str, str]] = {}
        self.filter = ""
        self.sort: str | None = None
        self.descending = False
        self.shown: list[int] = []
        self.branches: dict[int, Branch] = {}
        self.knobs: list[str] = []
        self._deleted: list[int] = []
        self._restoring: set[int] = set()

    # ------------------------------------------------------------ in

    def reset(self, snapshot: Snapshot) -> Change:
        """Everything anew."""
        self.experiment = snapshot.experiment
        self.runs = {run.id: run for run in snapshot.runs}
        self.curves = snapshot.curves
        self.events = snapshot.events
        self.devices = {device.name: device for device in snapshot.devices}
        self.schema = snapshot.schema
        self._deleted = [number for number in self._deleted if number in self.runs]
        for run in snapshot.runs:
            self._settle(run)
        self.arrange()
        return Change(set(self.runs), set(self.runs), True, True, True, True)

    def apply(self, update: Update) -> Change:
        """What changed since."""
        change = Change(events=bool(update.events), devices=bool(update.devices))
        before = {number: (run.state == DELETED, run.knobs) for number, run in self.runs.items()}
        for run in update.runs:
            self.runs[run.id] = run
            self._settle(run)
            change.runs.add(run.id)
        for number, step in update.rewound.items():
            self.curves.rewind(number, step)
            change.curves.add(number)
        for number, metric, step, value in update.points:
            self.curves.add(number, metric, step, value)
            change.curves.add(number)
        change.runs |= change.curves
        self.events = (self.events + update.events)[-_EVENTS:]
        self.devices |= {device.name: device for device in update.devices}
        if update.experiment:
            self.experiment, change.experiment = update.experiment, True
        self.schema = update.schema or self.schema
        after = {number: (run.state == DELETED, run.knobs) for number, run in self.runs.items()}
        if before != after or self.sort or self.filter:
            change.layout = self.arrange()
        return change

    # ------------------------------------------------------------ what is shown

    def set_filter(self, text: str) -> None:
        self.filter = text
        self.arrange()

    def sort_by(self, key: str | None, *, descending: bool = False) -> None:
        """Order the rows by a metric ("loss", "eval_loss"), or by lineage (None); those without it are the last."""
        self.sort, self.descending = key, descending
        self.arrange()

    def targets(self, cursor: int | None) -> list[Run]:
        """The runs that an op acts on: the marked ones, else the one under the cursor."""
        marked = [self.runs[number] for number in self.shown if number in self.marked]
        return marked or ([self.runs[cursor]] if cursor in self.runs else [])

    def metrics(self) -> list[str]:
        """The metrics that any run has, the losses and the reward first."""
        names = {name for of_run in self.curves.values() for name in of_run}
        first = [name for name in ("loss", "eval_loss", "reward", "eval_reward") if name in names]
        return first + sorted(names - set(first))

    def plotted(self, cursor: int | None) -> list[int]:
        """The runs whose curves are drawn: the marked ones; else all there are, if few; else the cursor's."""
        marked = [number for number in self.shown if number in self.marked]
        if marked:
            return marked
        begun = [number for number in self.shown if self.curves.get(number)]
        return begun if len(begun) <= 8 else [cursor] if cursor in begun else begun[:1]

    def count(self, *states: str) -> int:
        return sum(run.state in states for run in self.runs.values())

    @property
    def active(self) -> int:
        return sum(run.active for run in self.runs.values())

    @property
    def opens(self) -> str:
        """The command that opens the experiment again."""
        return clean(how_to_open(ExperimentDir(Path(self.experiment.path)))) if self.experiment else ""

    @property
    def faults(self) -> list[str]:
        """What is wrong where nothing could be trained at all."""
        if any(run.turns or run.step or run.state != QUEUED for run in self.alive):
            return []
        errors = [(event, self.runs.get(event.run or 0)) for event in self.events if event.level == "error"]
        return [f"run {run.id} {run.name}: {event.text}" if run else event.text for event, run in errors]

    @property
    def alive(self) -> list[Run]:
        """The runs that are not deleted."""
        return [run for run in self.runs.values() if run.state != DELETED]

    @property
    def deleted(self) -> list[int]:
        """The runs that are deleted or asked to be, the newest last; before them those that cannot come back."""
        there = sorted(self._deleted, key=lambda number: bool(self.runs[number].before))
        return [*there, *(number for number, (doing, _) in self.asked.items() if doing == "deleting")]

    @property
    def restorable(self) -> list[Run]:
        """The deleted runs that can be restored until the scheduler ends."""
        return [run for number in self.deleted if (run := self.runs[number]).before or run.state != DELETED]

    @property
    def unsaved(self) -> list[Run]:
        """The active runs that could not be saved, as the disk is full."""
        return [run for run in self.runs.values() if run.active and run.error]

    def _settle(self, run: Run) -> None:
        """An op that was asked for has been seen to work."""
        if self.asked.get(run.id, ("", run.state))[1] != run.state:
            del self.asked[run.id]
        if run.state != DELETED and run.id in self._deleted:
            self._deleted.remove(run.id)
        elif run.state == DELETED and run.id not in self._deleted:
            self._deleted.append(run.id)

    def arrange(self) -> bool:
        """Order the rows anew; whether anything about them changed."""
        before = (self.shown, self.knobs, self._restoring)
        alive = {run.id: run for run in self.alive}
        self.marked &= set(alive)
        self._restoring = {number for number, (doing, _) in self.asked.items() if doing == RESTORING}
        there = alive | {number: self.runs[number] for number in self._restoring}
        wanted = self.filter.lower()
        found = {n for n, run in there.items() if wanted in f"{n} {run.name} {run.state}".lower()}
        if self.sort:
            self.shown = sorted(found, key=lambda number: (*self._rank(number, self.sort or ""), number))
            self.branches = {}
        else:
            self.branches = tree(self.runs, [number for number in tree(self.runs, sorted(there)) if number in found])
            self.shown = list(self.branches)
        self.knobs = _varying(list(alive.values()))
        return before != (self.shown, self.knobs, self._restoring)

    def _rank(self, number: int, metric: str) -> tuple[bool, float]:
        value = self.runs[number].metrics.get(metric, math.nan)
        return (False, -value if self.descending else value) if math.isfinite(value) else (True, 0.0)


def _varying(runs: list[Run]) -> list[str]:
    """The dotted names of the knobs in which runs differ, the learning rate and the rank first."""
    names = dict.fromkeys(name for run in runs for name in run.knobs)
    differing = [name for name in names if len({repr(run.knobs.get(name)) for run in runs}) > 1]
    first = ("lr", "r", "alpha", "batch")
    return sorted(differing, key=lambda name: first.index(short(name)) if short(name) in first else len(first))


def summary(board: Board) -> list[str]:
    """How the runs stand, for the terminal that the viewer leaves behind."""
    runs = [board.runs[run] for run in board.shown]
    width = max([len(clean(run.name)) for run in runs] + [4])
    lines = [
        f"{run.id:>4}  {clean(run.name):<{width}}  {run.state:<8}  {run.chunk}/{run.chunks or '-'}  "
        + "  ".join(f"{word} {format_cell(run.metrics.get(metric))}" for word, metric in _told(run))
        for run in runs
    ]
    return lines + ([f"Reopen with: {board.opens}"] if board.experiment else [])


def _told(run: Run) -> list[tuple[str, str]]:
    """The metrics that say how well a run does, each with its word."""
    if run.algo == "GRPO":
        return [("reward", "reward"), ("eval", "eval_reward")]
    return [("loss", "loss"), ("eval", "eval_loss")]
