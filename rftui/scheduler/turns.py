"""Who has which device: gives turns by the policy, and takes runs back."""

from __future__ import annotations

import copy
from typing import Any

from rftui import messages
from rftui.link_server import Server
from rftui.runs import DELETED, FAILED, QUEUED, RUNNING, STOPPED, STOPPING, WAITING, Run
from rftui.scheduler.incidents import Incidents, one_line
from rftui.scheduler.placement import DELETE, MOVE, Placements
from rftui.scheduler.policy import Move, choose
from rftui.scheduler.recovery import reposition
from rftui.scheduler.registry import Registry
from rftui.scheduler.retries import Retries
from rftui.scheduler.weight_snapshots import WeightSnapshots
from rftui.store import Unwritten

_LONG = 5.0
"""Seconds of a turn from which on moving a run to an idle worker pays: it costs a checkpoint and a rebuilt trainer."""

_FREED = (messages.Halted, messages.Finished, messages.Failed)
"""Reports after which the worker holds the run no longer."""


class Turns:
    """`placements`: where each run is; `snapshots`: the warm clones that wait for weights; `retries`: the runs that
    wait for room. Turns are given once `open`."""

    def __init__(self, registry: Registry, server: Server, incidents: Incidents) -> None:
        self.open = False
        self.placements = Placements()
        self.snapshots = WeightSnapshots(registry, server, self.placements, self.fail)
        self.retries = Retries(registry, server, self.placements)
        self._registry = registry
        self._server = server
        self._incidents = incidents
        self._ending: set[str] = set()

    @property
    def resident(self) -> dict[int, str]:
        """Run -> the worker that holds its state."""
        return self.placements.resident

    def assign(self) -> None:
        """Give turns to idle workers."""
        if not self.open:
            return
        self._use_cleared_workers()
        places = self.placements
        idle = [
            name
            for name, device in self._registry.devices.items()
            if device.state == "ready"
            and name not in self._ending
            and places.training_on(name) is None
            and places.cleared(name) is None
        ]
        if not idle:
            return
        steps = choose(
            self._registry.runs.values(),
            idle,
            places.resident,
            blocked=places.blocked,
            moving=places.moving,
            worth_moving={run for run, place in places.items() if place.turn_seconds > _LONG},
            since={run: place.since for run, place in places.items()},
        )
        for step in steps:
            run = self._registry.runs[step.run]
            if isinstance(step, Move):
                self.halt(run, MOVE)
            else:
                self._try_to_start(run, step.worker)

    def halt(self, run: Run, why: str) -> None:
        """Have the run saved and freed at its next step; why is STOP, DELETE or MOVE."""
        place = self.placements[run.id]
        asked, place.leaving = place.leaving is not None, why
        # A deleted run that waits for room on the disk must not wait on.
        unsaved = why == DELETE and place.disk is not None
        if place.worker and (unsaved or not asked):
            self._server.task(place.worker, messages.Halt(run.id, save=not unsaved))

    def recover(self, report: Any) -> None:
        """Something unexpected happened as a report was handled, so that what is kept of its run may be wrong: the
        run is saved, freed, and goes on from its checkpoint; the second time, with no turn ended between, it is
        stopped."""
        run = self._registry.runs[report.run]
        self._follow_anew(run, held=not isinstance(report, _FREED), saved=not isinstance(report, messages.Unsaved))

    def _follow_anew(self, run: Run, *, held: bool, saved: bool = True) -> None:
        place = self.placements[run.id]
        place.faults += 1
        place.turn = None
        if held and place.worker:
            self._registry.devices[place.worker].run = None
            if place.leaving is None:
                place.leaving = MOVE
            self._server.task(place.worker, messages.Halt(run.id, save=saved))
            self._registry.touch(run)
            return
        place.free()
        self.put_back(run)

    def ends(self, worker: str) -> None:
        """The worker ends itself, so that it gets no more turns."""
        self._ending.add(worker)

    def lost(self, worker: str) -> None:
        """The worker died: its runs go back to their last committed checkpoints."""
        self._ending.discard(worker)
        if (waiting := self.placements.cleared(worker)) is not None:
            self.placements[waiting].cleared_for_it = None
        in_turn = self.placements.training_on(worker)
        self._registry.devices[worker].run = None
        for number in self.placements.held_by(worker):
            run, place = self._registry.runs[number], self.placements[number]
            self.retries.over(run)
            place.free()
            place.deaths += number == in_turn
            if run.state != DELETED:
                self.go_back(run, keep=run.state == STOPPING)
            if not run.active:
                self.snapshots.freed(run)
            elif place.deaths > 1:
                self.fail(run, "its worker died twice while it trained, with no checkpoint between")
        self.snapshots.lost(worker)

    def go_back(self, run: Run, *, keep: bool = False) -> None:
        """The run, which no worker holds, goes on from its newest whole checkpoint, or is done if it was at its end.

        `keep`: it waits, stopped, until it is resumed. So does one whose files cannot be read.
        """
        run.state = STOPPED if keep else QUEUED
        self.placements.wait(run.id)
        try:
            reposition(self._registry, run)
        except Unwritten:
            raise
        except Exception as error:
            self._incidents.note(f"finding where run {run.id} is", error)
            run.state, run.device = STOPPED, None
            run.error = f"its files in {self._registry.experiment.run(run.id).path} cannot be read: {one_line(error)}"
            self._registry.touch(run)

    def fail(self, run: Run, error: str) -> None:
        """The run, which no worker holds, cannot go on."""
        self.snapshots.forget(run)
        run.state, run.error = FAILED, error
        self._registry.log(f"Run {run.id} failed: {error}", run, "error")
        self._registry.touch(run)
        self.snapshots.freed(run)

    def park(self) -> None:
        """No run trains any longer; those that are not at their end go on when the experiment is opened again."""
        for run in self._registry.runs.values():
            if run.active:
                run.device = None
                run.state = STOPPED if run.state == STOPPING else WAITING if run.step else QUEUED
                self._registry.touch(run)

    def free_unsaved(self) -> None:
        """Have the runs that wait for room on the disk freed without being saved."""
        for number in self.placements.waiting_for_disk:
            if worker := self.placements[number].worker:
                self._server.task(worker, messages.Halt(number, save=False))

    # ------------------------------------------------------------ how a turn begins and ends

    def _try_to_start(self, run: Run, worker: str) -> None:
        """A run that cannot be started must not keep the others from their turns."""
        held = self.placements[run.id].worker is not None
        try:
            self._start(run, worker)
        except Unwritten:
            raise
        except Exception as error:
            self._incidents.note(f"starting a turn of run {run.id}", error)
            self._registry.devices[worker].run = None
            self._follow_anew(run, held=held)

    def _start(self, run: Run, worker: str) -> None:
        place = self.placements[run.id]
        # The one that its step and curves were set by: the disk may say otherwise a moment later.
        resume = None if place.worker else run.checkpoint
        run.state, run.device = RUNNING, worker
        run.turns += 1
        place.worker, place.turn = worker, self._registry.store.begin_turn(run, worker)
        # A copy: it is pickled later, by a thread of the link, and the run changes meanwhile.
        self._server.task(worker, messages.Turn(copy.copy(run), resume))
        self._registry.devices[worker].run = run.id
        self._registry.touch_device(worker)
        self._registry.touch(run)

    def end_turn(self, run: Run, seconds: float) -> None:
        """The run has held the device for `seconds` in the turn that is over."""
        place = self.placements[run.id]
        if place.turn is not None and place.worker:
            self._registry.store.end_turn(place.turn, run.step)
            place.turn = None
            self.placements.wait(run.id)
            self._registry.devices[place.worker].run = None
            self._registry.touch_device(place.worker)
        if seconds:
            run.active_seconds += seconds
            place.turn_seconds = seconds
            steps = run.step - place.turn_step
            if steps > 0:
                self._registry.pace[run.id] = seconds / steps
        place.turn_step = run.step
        self._registry.touch(run)

    def leave(self, run: Run, seconds: float) -> None:
        """No worker holds the run any longer."""
        self.end_turn(run, seconds)
        self.retries.over(run)
        self.placements[run.id].free()
        run.device = None

    def put_back(self, run: Run) -> None:
        """What is kept of a run that no worker holds may be wrong: its checkpoint tells where it is."""
        if run.state == DELETED:
            return
        stopped = self.placements[run.id].faults > 1
        self.go_back(run, keep=stopped or run.state == STOPPING)
        if stopped and run.state == STOPPED:
            run.error = "stopped, because rftui failed to follow it twice; resume tries again"
            self._registry.log(f"Run {run.id} {run.error}", run, "error")
        self._registry.touch(run)

    def _use_cleared_workers(self) -> None:
        """Give a worker to the run for which it was cleared."""
        held = set(self.resident.values())
        for number, place in self.placements.items():
            worker = place.cleared_for_it
            if worker and worker not in held and self._registry.devices[worker].state == "ready":
                place.cleared_for_it = None
                if self._registry.runs[number].state == QUEUED:
                    self._try_to_start(self._registry.runs[number], worker)
