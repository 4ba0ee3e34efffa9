"""The scheduler's present state, kept in the store and shown to viewers."""

from __future__ import annotations

import copy
import os
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from rftui.curves import Curves
from rftui.link_server import Server
from rftui.messages import Attach, Device, Event, ExperimentInfo, Field, Rule, Snapshot, Update
from rftui.paths import ExperimentDir
from rftui.runs import Run
from rftui.scheduler.advice import Advice
from rftui.store import Store

_CALM = 0.1
"""Seconds between two updates that only bring steps and points."""


class Registry:
    """Runs, devices and the experiment. What changes is noted by `touch`, and goes out with `flush`."""

    def __init__(self, experiment: ExperimentDir, store: Store, server: Server, devices: list[str]) -> None:
        self.experiment = experiment
        self.store = store
        self.runs = {run.id: run for run in store.runs()}
        self.devices = {name: Device(name) for name in devices}
        self.schema: dict[str, list[Field]] = {}
        rows = (store.fits() or [{"rows": 0}])[-1]["rows"]
        self.info = ExperimentInfo(experiment.name, str(experiment.path), pid=os.getpid(), rows=rows)
        self.steps: deque[float] = deque(maxlen=400)
        self.pace: dict[int, float] = {}  # run -> seconds that a step took in its last turn
        self.curves = store.thinned()
        self.ends = store.chunk_ends()  # run -> chunk -> how it ended
        self.revision = 0  # grows with whatever a rule may decide by
        self._advice = Advice(store, self.runs)
        self._server = server
        self._sequence = 0
        self._flushed = 0.0
        self._urgent = False
        self._changed: set[int] = set()
        self._points: list[tuple[int, str, int, float]] = []
        self._rewound: dict[int, int] = {}
        self._events: list[Event] = []
        self._devices: set[str] = set()
        self._info = self._schema = False

    # ------------------------------------------------------------ changes

    def touch(self, run: Run, *, urgent: bool = True) -> None:
        self._changed.add(run.id)
        self._urgent |= urgent
        self.revision += urgent

    def touch_device(self, name: str, *, urgent: bool = True) -> None:
        self._devices.add(name)
        self._urgent |= urgent

    def add_run(self, run: Run) -> None:
        self.store.add_run(run)
        self.runs[run.id] = run
        self.touch(run)
        self._advice.meet(run)
        if run.parent in self.runs:
            self._changed.add(run.parent)

    def points(self, run: Run, step: int, values: dict[str, float]) -> None:
        points = [(run.id, metric, step, value) for metric, value in values.items()]
        self.store.add_points(points)
        self._points += points
        for point in points:
            self.curves.add(*point)
        run.metrics = run.metrics | values  # replaced, not changed: copies of the run are on their way to viewers
        self.touch(run, urgent=False)

    def end_chunk(self, run: Run) -> None:
        """The run stands where its chunks so far have ended, or just past that."""
        if run.chunk and (end := self.store.end_chunk(run.id, run.chunk, run.step)):
            self.ends.setdefault(run.id, {})[run.chunk] = end
            self.revision += 1

    def rewind(self, run: Run, step: int, history: Iterable[tuple[int, dict[str, float]]]) -> None:
        """The run goes on from `step`: what it did past it is void, and of its `history` up to it (step, metric ->
        value) nothing is missing."""
        voided = self.store.rewind(run.id, step)
        self.ends[run.id] = {chunk: end for chunk, end in self.ends.get(run.id, {}).items() if end.step <= step}
        run.step = step
        self._rewound[run.id] = step
        self._points = [point for point in self._points if point[0] != run.id or point[2] <= step]
        self.curves.rewind(run.id, step)
        logged = [(run.id, metric, at, value) for at, values in history for metric, value in values.items()]
        missing = self.store.add_missing(logged)
        self._points += missing
        for point in missing:
            self.curves.add(*point)
        run.metrics = self.store.last_values(run.id)
        if voided or missing:
            self._advice.outdated(run)
        self.touch(run)

    def log(self, text: str, run: Run | None = None, level: str = "info") -> None:
        self._events.append(self.store.log(text, run.id if run else None, level))
        self._urgent = True

    def tell(self, text: str) -> None:
        """An error for the viewers that are there, where the store cannot take it."""
        self._sequence += 1
        number = max((event.id for event in self.store.events(1)), default=0) + 1
        self._server.broadcast(Update(self._sequence, events=[Event(number, time.time(), text, None, "error")]))

    def set_schema(self, schema: dict[str, list[Field]]) -> None:
        self.schema, self._schema, self._urgent = schema, True, True

    def set_info(self, state: str, waiting_for: str = "") -> None:
        if (self.info.state, self.info.waiting_for) != (state, waiting_for):
            self.info.state, self.info.waiting_for = state, waiting_for
            self.store.set_meta("state", state)
            self._info = self._urgent = True

    def set_rules(self, rules: list[Rule]) -> None:
        self.info.rules = rules
        self._info = self._urgent = True

    def estimate(self, workers: int) -> None:
        """Refresh the seconds that are left and the steps a second of all runs together."""
        now = time.monotonic()
        recent = [at for at in self.steps if now - at < 15]
        self.info.steps_per_second = len(recent) / max(1.0, now - recent[0]) if len(recent) > 1 else None
        active = [run for run in self.runs.values() if run.active]
        self.info.eta = None
        if self.pace and active:
            whole = [seconds * self.runs[run].total_steps for run, seconds in self.pace.items()]
            typical = sum(whole) / len(whole)
            left = [
                self.pace[run.id] * (run.total_steps - run.step) if run.id in self.pace else typical for run in active
            ]
            self.info.eta = max(sum(left) / workers, *left)
        self._info = True

    # ------------------------------------------------------------ out

    def due(self) -> float | None:
        """Seconds until the changes should be flushed; None where there are none."""
        if not (self._changed or self._points or self._events or self._devices or self._info or self._schema):
            return None
        return 0.0 if self._urgent else max(0.0, self._flushed + _CALM - time.monotonic())

    def flush(self) -> None:
        """Keep what changed in the store, and tell every viewer."""
        for run in self._changed:
            if new := self._advice.renew(self.runs[run]):
                self.log(new, self.runs[run], "notice")
            self.store.save_run(self.runs[run])
        self.store.commit()
        self._sequence += 1
        self._server.broadcast(
            Update(
                self._sequence,
                [copy.copy(self.runs[run]) for run in sorted(self._changed)],
                self._points,
                self._rewound,
                self._events,
                [replace(self.devices[name]) for name in sorted(self._devices)],
                replace(self.info) if self._info else None,
                self.schema if self._schema else {},
            )
        )
        self._changed, self._points, self._rewound, self._events, self._devices = set(), [], {}, [], set()
        self._info = self._schema = self._urgent = False
        self._flushed = time.monotonic()

    def welcome(self, attach: Attach) -> None:
        """Send a viewer everything, or what it wants of it, as of the last flush."""
        self._server.attach(attach.viewer, attach.brief)
        if attach.brief:
            snapshot = Snapshot(self._sequence, replace(self.info), [], Curves(), [], [], self.schema)
        else:
            snapshot = Snapshot(
                self._sequence,
                replace(self.info),
                [copy.copy(run) for run in self.runs.values()],
                self.curves.copy(),
                self.store.events(),
                [replace(device) for device in self.devices.values()],
                self.schema,
            )
        self._server.send(attach.viewer, snapshot)
