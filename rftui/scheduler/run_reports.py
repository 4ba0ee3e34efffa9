"""What workers report of their runs, taken into the registry."""

from __future__ import annotations

import time
from typing import Any

from rftui import messages
from rftui.checkpoints import committed
from rftui.config.spec import change
from rftui.formatting import format_bytes
from rftui.runs import DELETED, DONE, FAILED, QUEUED, RUNNING, STOPPED, STOPPING, WAITING, Run
from rftui.scheduler.placement import MOVE
from rftui.scheduler.registry import Registry
from rftui.scheduler.turns import Turns

_LONGEST = 500
"""Characters of an error that travel to viewers."""


class RunReports:
    """`take` is given every report on a run, in order."""

    def __init__(self, registry: Registry, turns: Turns) -> None:
        self._registry = registry
        self._turns = turns

    def take(self, worker: str, report: Any) -> None:
        """What a worker says about one of its runs."""
        run = self._registry.runs[report.run]
        match report:
            case messages.Stepped(_, step, chunk, epoch):
                run.step, run.chunk, run.epoch = step, chunk, epoch
                self._registry.steps.append(time.monotonic())
                self._registry.touch(run, urgent=False)
                self._turns.snapshots.stepped(run, worker)
            case messages.Logged(_, step, values):
                self._registry.points(run, step, values)
            case messages.Begun(_, step, total, chunk, chunks, epoch, grid):
                run.step, run.total_steps, run.chunk, run.chunks, run.epoch = step, total, chunk, chunks, epoch
                run.grid = grid
                self._turns.placements[run.id].turn_step = step
                self._turns.retries.over(run)  # it waited for room to be built
                self._registry.end_chunk(run)  # a clone joins there, or a crash came between the end and its note
                self._registry.touch(run)
            case messages.Saved():
                self._saved(run, report)
            case messages.Adapted(_, changes):
                change(run, changes)
                self._registry.touch(run)
            case messages.Unsaved():
                self._turns.retries.unsaved(run, report)
                self._turns.end_turn(run, report.seconds)
            case messages.WeightsReady(_, clones):
                for clone in clones:
                    self._turns.snapshots.ready(self._registry.runs[clone])
            case messages.TurnEnded(_, step, chunk, epoch, seconds):
                self._registry.log(f"Run {run.id}: chunk {chunk}/{run.chunks} done", run, "progress")
                self._registry.end_chunk(run)
                self._turns.end_turn(run, seconds)
                if self._turns.placements[run.id].leaving is None:
                    self._turns.placements[run.id].faults = 0
                if run.state == RUNNING:
                    run.state = WAITING
            case messages.Halted(_, step, path):
                self._halted(run, step, path)
            case messages.Finished():
                self._finished(run, report)
            case messages.Failed(_, error, _, seconds, cause):
                self._turns.leave(run, seconds)
                self._failed(run, worker, error, cause)

    def _saved(self, run: Run, report: messages.Saved) -> None:
        if not run.checkpoint:
            cost = f"{report.seconds:.1f} s, {format_bytes(report.size)}"
            self._registry.log(f"Run {run.id}: first checkpoint, step {report.step} ({cost})", run)
        run.checkpoint = report.path
        run.checkpoints = list(committed(self._registry.experiment.run(run.id).checkpoints))
        self._turns.placements[run.id].deaths = 0
        self._turns.retries.saved(run)
        self._registry.touch(run, urgent=False)

    def _halted(self, run: Run, step: int, path: str | None) -> None:
        self._turns.leave(run, 0.0)
        if path:
            run.checkpoint = path
        # What was done past the checkpoint of a run that was freed unsaved is void; its deletion may have been undone.
        if self._turns.placements[run.id].faults or (step and not path):
            self._turns.put_back(run)
        elif run.state == STOPPING:
            run.state = STOPPED
            self._registry.log(f"Run {run.id} stopped at step {step}", run)
        elif run.state != DELETED:
            run.state = WAITING if step else QUEUED
        self._turns.snapshots.freed(run)
        self._registry.touch(run)

    def _finished(self, run: Run, report: messages.Finished) -> None:
        self._turns.leave(run, report.seconds)
        run.final, run.step, run.checkpoint = report.final, report.step, report.path
        run.chunk = run.chunks if report.step >= run.total_steps else run.chunk
        if run.state == DELETED:
            run.before = DONE
        elif self._turns.placements[run.id].faults:
            self._turns.put_back(run)  # done, by its files
        else:
            run.state = DONE
            self._registry.log(f"Run {run.id} done", run)
            self._registry.end_chunk(run)
        self._turns.snapshots.freed(run)

    def _failed(self, run: Run, worker: str, error: str, cause: str) -> None:
        if cause == "device":
            self._turns.ends(worker)
        if len(error) > _LONGEST:
            error = f"{error[:_LONGEST]}... (the whole of it is in {self._registry.experiment.run(run.id).log})"
        if run.state != DELETED and self._turns.retries.again(run, worker, cause):
            self._turns.go_back(run, keep=run.state == STOPPING)
            if cause == "memory":
                for other in self._turns.placements.held_by(worker):
                    self._turns.halt(self._registry.runs[other], self._turns.placements[other].leaving or MOVE)
        elif run.state == DELETED:
            run.before, run.error, run.failure = FAILED, error, cause
        elif cause == "directory":  # nothing is wrong with the run: it can go on when that is there again
            self._turns.go_back(run, keep=True)
            run.error = error
            self._registry.log(f"Run {run.id} stopped: {error}", run, "error")
        else:
            run.state, run.error, run.failure = FAILED, error, cause
            if cause == "memory":
                run.error += "; clone it with half the batch and twice the accumulation"
            self._registry.log(f"Run {run.id} failed: {run.error}", run, "error")
        self._turns.snapshots.freed(run)
