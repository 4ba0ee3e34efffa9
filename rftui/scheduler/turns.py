"""Who has which device: gives turns by the policy, and follows what workers report of their runs."""

from __future__ import annotations

import copy
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rftui import messages
from rftui.checkpoints import committed, newest_checkpoint
from rftui.config.spec import change
from rftui.link_server import Server
from rftui.runs import DELETED, DONE, FAILED, QUEUED, RUNNING, STOPPED, STOPPING, WAITING, Run
from rftui.scheduler.policy import Move, choose
from rftui.scheduler.recovery import reposition
from rftui.scheduler.registry import Registry
from rftui.scheduler.retries import Retries
from rftui.scheduler.weight_snapshots import WeightSnapshots
from rftui.scheduler.workers import Workers

_LONG = 5.0
"""Seconds of a turn from which on moving a run to an idle worker pays: it costs a checkpoint and a rebuilt trainer."""


class Turns:
    """`resident`: run -> the worker that holds its state; `snapshots`: the warm clones that wait for weights;
    `retries`: the runs that wait for room. Turns are given once `open`."""

    def __init__(self, registry: Registry, server: Server, workers: Workers) -> None:
        self.open = False
        self.resident: dict[int, str] = {}
        self.snapshots = WeightSnapshots(registry, server, self.fail)
        self.retries = Retries(registry, server)
        self._registry = registry
        self._server = server
        self._workers = workers
        self._halting: dict[int, str] = {}
        self._turns: dict[str, tuple[int, int]] = {}  # worker -> (run, number of the turn in the store)
        self._lengths: dict[int, float] = {}
        self._began: dict[int, int] = {}  # the step at which the run's present turn began
        self._deaths: Counter[int] = Counter()

    def assign(self) -> None:
        """Give turns to idle workers."""
        if not self.open:
            return
        self._give_room()
        devices = self._registry.devices
        idle = [
            name
            for name, device in devices.items()
            if device.state == "ready" and name not in self._turns and name not in self.retries.making_room
        ]
        if not idle:
            return
        moving = {run for run, why in self._halting.items() if why == "move"}
        long = {run for run, seconds in self._lengths.items() if seconds > _LONG}
        steps = choose(
            self._registry.runs.values(),
            idle,
            self.resident,
            blocked=self.snapshots.waiting.keys() | self.retries.blocked,
            moving=moving,
            worth_moving=long,
        )
        for step in steps:
            run = self._registry.runs[step.run]
            if isinstance(step, Move):
                self.halt(run, "move")
            else:
                self._start(run, step.worker)

    def halt(self, run: Run, why: str) -> None:
        """Have the run saved and freed at its next step: why is "stop", "delete" or "move"."""
        asked, self._halting[run.id] = run.id in self._halting, why
        # A deleted run that waits for room on the disk must not wait on.
        unsaved = why == "delete" and run.id in self.retries.unsaved_runs
        if unsaved or not asked:
            self._server.task(self.resident[run.id], messages.Halt(run.id, save=not unsaved))

    def report(self, worker: str, report: Any) -> None:
        """What a worker says about one of its runs."""
        run = self._registry.runs[report.run]
        match report:
            case messages.Stepped(_, step, chunk, epoch):
                run.step, run.chunk, run.epoch = step, chunk, epoch
                self._registry.steps.append(time.monotonic())
                self._registry.touch(run, urgent=False)
                self.snapshots.stepped(run, worker)
            case messages.Logged(_, step, values):
                self._registry.points(run, step, values)
            case messages.Begun(_, step, total, chunk, chunks, epoch):
                run.step, run.total_steps, run.chunk, run.chunks, run.epoch = step, total, chunk, chunks, epoch
                self._began[run.id] = step
                self._registry.end_chunk(run)  # a clone joins there, or a crash came between the end and its note
                self._registry.touch(run)
            case messages.Saved(_, step, path, seconds, size):
                if not run.checkpoint:
                    cost = f"{seconds:.1f} s and {size / 1e6:.1f} MB"
                    self._registry.log(f"run {run.id} has its first checkpoint, at step {step}; one costs {cost}", run)
                run.checkpoint = path
                run.checkpoints = list(committed(self._checkpoints(run)))
                self._deaths.pop(run.id, None)
                self.retries.saved(run)
                self._registry.touch(run, urgent=False)
            case messages.Adapted(_, changes):
                change(run, changes)
                self._registry.touch(run)
            case messages.Unsaved():
                self.retries.unsaved(run, report)
                self._end_turn(worker, run, report.seconds)
            case messages.WeightsReady(_, clones):
                for clone in clones:
                    self.snapshots.told(self._registry.runs[clone])
            case messages.TurnEnded(_, step, chunk, epoch, seconds):
                self._registry.log(f"run {run.id} chunk {chunk}/{run.chunks} done", run)
                self._registry.end_chunk(run)
                self._end_turn(worker, run, seconds)
                if run.state == RUNNING:
                    run.state = WAITING
            case messages.Halted(_, step, path):
                self._halted(worker, run, step, path)
            case messages.Finished(_, step, final, path, seconds):
                self._leave(worker, run, seconds)
                run.final, run.step, run.checkpoint = final, step, path
                run.chunk = run.chunks if step >= run.total_steps else run.chunk
                if run.state == DELETED:
                    run.before = DONE
                else:
                    run.state = DONE
                    self._registry.log(f"run {run.id} is done", run)
                    self._registry.end_chunk(run)
                self.snapshots.freed(run)
            case messages.Failed(_, error, _, seconds, again):
                self._leave(worker, run, seconds)
                self._failed(run, worker, error, again)

    def _failed(self, run: Run, worker: str, error: str, again: str) -> None:
        if run.state != DELETED and self.retries.again(run, worker, again):
            self.go_back(run, keep=run.state == STOPPING)
            if again == "memory":
                for other in [other for other, holder in self.resident.items() if holder == worker]:
                    self.halt(self._registry.runs[other], self._halting.get(other, "move"))
        elif run.state == DELETED:
            run.before, run.error = FAILED, error
        else:
            run.state, run.error = FAILED, error
            if again == "memory":
                run.error += "; clone it with half the batch and twice the accumulation"
            self._registry.log(f"run {run.id} failed: {run.error}", run, "error")
        self.snapshots.freed(run)

    def _give_room(self) -> None:
        """Give a worker to the run for which it was cleared."""
        for worker, number in list(self.retries.making_room.items()):
            if worker not in self.resident.values() and self._registry.devices[worker].state == "ready":
                del self.retries.making_room[worker]
                if self._registry.runs[number].state == QUEUED:
                    self._start(self._registry.runs[number], worker)

    def lost(self, worker: str) -> None:
        """The worker died: its runs go back to their last committed checkpoints."""
        self.retries.making_room.pop(worker, None)
        in_turn = self._turns.pop(worker, (0, 0))[0]
        self._registry.devices[worker].run = None
        for number in [run for run, holder in self.resident.items() if holder == worker]:
            run = self._registry.runs[number]
            del self.resident[number]
            self.retries.over(run)
            self._halting.pop(number, None)
            self._deaths[number] += number == in_turn
            if run.state != DELETED:
                self.go_back(run, keep=run.state == STOPPING)
            if not run.active:
                self.snapshots.freed(run)
            elif self._deaths[number] > 1:
                self.fail(run, "its worker died twice while it trained, with no checkpoint between")
        self.snapshots.lost(worker)

    def go_back(self, run: Run, *, keep: bool = False) -> None:
        """The run, which no worker holds, goes on from its newest whole checkpoint, or is done if it was at its end.

        `keep`: it waits, stopped, until it is resumed.
        """
        run.state = STOPPED if keep else QUEUED
        reposition(self._registry, run)

    def fail(self, run: Run, error: str) -> None:
        """The run, which no worker holds, cannot go on."""
        self.snapshots.forget(run)
        run.state, run.error = FAILED, error
        self._registry.log(f"run {run.id} failed: {error}", run, "error")
        self._registry.touch(run)
        self.snapshots.freed(run)

    def park(self) -> None:
        """No run trains any more; those that are not at their end go on when the experiment is opened again."""
        for run in self._registry.runs.values():
            if run.active:
                run.device = None
                run.state = STOPPED if run.state == STOPPING else WAITING if run.step else QUEUED
                self._registry.touch(run)

    def free_unsaved(self) -> None:
        """Have the runs that wait for room on the disk freed without being saved."""
        for number in self.retries.unsaved_runs & self.resident.keys():
            self._server.task(self.resident[number], messages.Halt(number, save=False))

    def _start(self, run: Run, worker: str) -> None:
        resume = None if run.id in self.resident else newest_checkpoint(self._checkpoints(run))
        self.resident[run.id] = worker
        run.state, run.device = RUNNING, worker
        run.turns += 1
        self._turns[worker] = (run.id, self._registry.store.begin_turn(run, worker))
        # A copy: it is pickled later, by a thread of the link, and the run changes meanwhile.
        self._server.task(worker, messages.Turn(copy.copy(run), str(resume) if resume else None))
        self._registry.devices[worker].run = run.id
        self._registry.touch_device(worker)
        self._registry.touch(run)

    def _end_turn(self, worker: str, run: Run, seconds: float) -> None:
        number, turn = self._turns.get(worker, (0, 0))
        if number == run.id:
            del self._turns[worker]
            self._registry.store.end_turn(turn, run.step)
            self._registry.devices[worker].run = None
            self._registry.touch_device(worker)
        if seconds:
            run.active_seconds += seconds
            self._lengths[run.id] = seconds
            steps = run.step - self._began.get(run.id, run.step)  # a run may fail before its trainer stands
            if steps > 0:
                self._registry.pace[run.id] = seconds / steps
        self._began[run.id] = run.step
        self._registry.touch(run)

    def _leave(self, worker: str, run: Run, seconds: float) -> None:
        self._end_turn(worker, run, seconds)
        self.resident.pop(run.id, None)
        self.retries.over(run)
        self._halting.pop(run.id, None)
        run.device = None

    def _halted(self, worker: str, run: Run, step: int, path: str | None) -> None:
        self._leave(worker, run, 0.0)
        if path:
            run.checkpoint = path
        if run.state == STOPPING:
            run.state = STOPPED
            self._registry.log(f"run {run.id} stopped at step {step}", run)
        elif run.state != DELETED:
            run.state = WAITING if step else QUEUED
        self.snapshots.freed(run)
        self._registry.touch(run)

    def _checkpoints(self, run: Run) -> Path:
        return self._registry.experiment.run(run.id).checkpoints
