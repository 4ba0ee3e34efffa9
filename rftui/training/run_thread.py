"""A run's thread: an unmodified TRL trainer's `train()` under the turnstile."""

from __future__ import annotations

import gc
import shutil
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback

from rftui import messages
from rftui.checkpoints import checkpoint_marker, link_checkpoint, newest_checkpoint
from rftui.paths import RunDir
from rftui.runs import Run
from rftui.training import failures, saving
from rftui.training.adapters import write_final
from rftui.training.data import interruptible
from rftui.training.run_callback import UNKNOWN_SIZE, Built, Diverged, Leave, RunCallback
from rftui.training.turnstile import Closed, Slot, Turnstile


class RunThread(threading.Thread):
    """Trains one run whenever it has the lock, and tells `report` what happens.

    `build` makes its trainer, with the lock held; `resume` is a committed checkpoint to go on from. When it fails,
    `probe` says why the device can do nothing any more, if that is so, and `broken` ends the worker.
    """

    def __init__(
        self,
        run: Run,
        turnstile: Turnstile,
        report: Callable[[Any], None],
        build: Callable[[], Built],
        directory: RunDir,
        resume: Path | None,
        device: torch.device,
        probe: Callable[[torch.device], str] = failures.device_fault,
        broken: Callable[[str], None] = lambda why: None,
    ) -> None:
        super().__init__(name=f"run-{run.id}", daemon=True)
        self.run_id = run.id
        self.slot = Slot(turnstile)
        self._run = run
        self._report = report
        self._build = build
        self.directory = directory
        self.resume = resume
        self._device = device
        self._probe = probe
        self._broken = broken
        self._turn_began = 0.0
        self._log = open(directory.log, "a", encoding="utf-8", errors="backslashreplace", buffering=1)

    def run(self) -> None:
        outcome: Any = None
        dead = ""
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            self.slot.enter()
            outcome = self._train()
        except Closed:
            pass
        except Leave as halt:
            outcome = halt.args[0]
            failures.forget(halt)
        except BaseException as error:
            outcome, dead = self._failed(error)
            failures.forget(error)
        finally:
            for clean_up in (gc.collect, torch.cuda.empty_cache):
                try:
                    clean_up()
                except BaseException:  # whatever a destructor of the user's, or a dead device, raises
                    self.note(traceback.format_exc())
            if dead:
                self._report(outcome)
                self._broken(dead)  # with the lock held, so that no other run fails of it
                outcome = None
            left_over = self.slot.leave()
            if outcome is not None:
                self._report(outcome)
            for order in left_over:
                if isinstance(order, messages.SnapshotWeights):
                    self.snapshot_last(order)
            with suppress(OSError):
                self._log.close()

    def _failed(self, error: BaseException) -> tuple[messages.Failed, str]:
        """What is told of a failure, and why the device can do nothing any more, if that is so."""
        told, cause = traceback.format_exc(), failures.cause(error)
        cause = "diverged" if isinstance(error, Diverged) else cause
        self.note(told)
        said, dead = failures.line(error, self.directory.log), self._probe(self._device)
        return messages.Failed(self.run_id, said, told, self.turn_seconds(), "device" if dead else cause), dead

    def _train(self) -> messages.Finished:
        built = self._built()
        trainer = built.trainer
        if built.adapted:
            self._report(messages.Adapted(self.run_id, built.adapted))
        for notice in built.notices:
            self._report(messages.Note(f"run {self.run_id}: {notice}", self.run_id))
        trainer.remove_callback(PrinterCallback)
        turns = RunCallback(self, built)
        trainer.add_callback(turns)
        if self.resume:
            saving.restore_sampler(trainer, self.resume, built.grid.steps_per_epoch)
        trainer.train(resume_from_checkpoint=str(self.resume) if self.resume else None)
        final = turns.patiently(lambda: write_final(trainer, self._run, self.directory.final))
        newest = turns.saver.newest
        return messages.Finished(
            self.run_id, trainer.state.global_step, str(final), str(newest[1]) if newest else None, self.turn_seconds()
        )

    def _built(self) -> Built:
        """The trainer; while the disk is full, as rows are written, the run steps back and tries again when told."""
        folder = self.directory.path
        while True:
            try:
                with interruptible(self._look_up):
                    return self._build()
            except Exception as error:
                if not saving.disk_full(error, folder):
                    raise
                self.note(traceback.format_exc())
            self.slot.end_turn()
            unsaved = messages.Unsaved(self.run_id, saving.no_space(folder), UNKNOWN_SIZE, self.turn_seconds())
            self._report(unsaved)
            order = self.slot.boundary()  # there is nothing that would have to be saved first
            if isinstance(order, messages.Halt):
                raise Leave(self._halted())
            if isinstance(order, messages.SnapshotWeights):
                self.snapshot_last(order)

    def _halted(self) -> messages.Halted:
        """What is told where the run leaves before it has trained on."""
        marker = (checkpoint_marker(self.resume) if self.resume else None) or {"step": 0}
        return messages.Halted(self.run_id, int(marker["step"]), str(self.resume) if self.resume else None)

    def _look_up(self) -> None:
        """Leave where a stop or a deletion has come while the rows are prepared."""
        if self.slot.ordered(messages.Halt):
            raise Leave(self._halted())

    def snapshot_last(self, order: messages.SnapshotWeights) -> None:
        """Carry out a pin that came as the run ended, from its last checkpoint."""
        newest = newest_checkpoint(self.directory.checkpoints)
        if newest:
            self.link_weights(order, newest)

    def link_weights(self, order: messages.SnapshotWeights, checkpoint: Path) -> None:
        for clone in order.clones:
            try:
                link_checkpoint(checkpoint, RunDir(self.directory.path.parent / str(clone)).start)
            except (OSError, shutil.Error):  # the clone, whose start/ is missing then, fails; this run goes on
                self.note(traceback.format_exc())
        self._report(messages.WeightsReady(self.run_id, order.clones))

    def turn_seconds(self) -> float:
        """The time the lock was held since the turn began; a new turn begins."""
        seconds, self._turn_began = self.slot.held - self._turn_began, self.slot.held
        return seconds

    def note(self, text: str) -> None:
        """A line in the run's log; a full disk costs the line and not the run."""
        with suppress(OSError):
            self._log.write(text + "\n")

    def tell(self, message: Any) -> None:
        self._report(message)
