"""A run's thread: an unmodified TRL trainer's `train()` under the turnstile."""

from __future__ import annotations

import gc
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rftui import messages
from rftui.chunks import Grid
from rftui.faults import Fault
from rftui.paths import RunDir, checkpoint_marker, link_checkpoint, newest_checkpoint
from rftui.runs import Run, curve_values
from rftui.training import checkpoints
from rftui.training.adapters import write_final
from rftui.training.process_state import Rng, rng, set_rng
from rftui.training.turnstile import Closed, Seat, Turnstile


class _Halt(BaseException):
    """Leaves the trainer's loop; a BaseException so that no user's callback swallows it."""


@dataclass
class Built:
    """A trainer, and how its run is cut: `grid(max_steps)` once its length is known.

    `evaluates`: each chunk end is evaluated; `every_chunk`: each chunk end is saved.
    """

    trainer: Trainer
    grid: Callable[[int], Grid]
    evaluates: bool
    every_chunk: bool


class RunThread(threading.Thread):
    """Trains one run whenever it has the floor, and tells `report` what happens.

    `build` makes its trainer, with the floor held; `resume` is a committed checkpoint to go on from.
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
    ) -> None:
        super().__init__(name=f"run-{run.id}", daemon=True)
        self.run_id = run.id
        self.seat = Seat(turnstile)
        self._run = run
        self._report = report
        self._build = build
        self._directory = directory
        self._resume = resume
        self._device = device
        self._turn_began = 0.0
        self._log = open(directory.log, "a", encoding="utf-8", buffering=1)

    def run(self) -> None:
        outcome: Any = None
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            self.seat.enter()
            outcome = self._train()
        except Closed:
            pass
        except _Halt as halt:
            outcome = halt.args[0]
            _forget(halt)
        except BaseException as error:
            self._log.write(traceback.format_exc())
            outcome = messages.Failed(self.run_id, _one_line(error), traceback.format_exc(), self.turn_seconds())
            _forget(error)
        finally:
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            left_over = self.seat.leave()
            if outcome is not None:
                self._report(outcome)
            for order in left_over:
                if isinstance(order, messages.Pin):
                    self.pin_last(order)
            self._log.close()

    def _train(self) -> messages.Finished:
        built = self._build()
        trainer = built.trainer
        trainer.remove_callback(PrinterCallback)
        turns = _Turns(self, built)
        trainer.add_callback(turns)
        trainer.train(resume_from_checkpoint=str(self._resume) if self._resume else None)
        final = self._directory.final
        write_final(trainer, self._run, final)
        newest = turns.saver.newest
        return messages.Finished(
            self.run_id, trainer.state.global_step, str(final), str(newest[1]) if newest else None, self.turn_seconds()
        )

    def pin_last(self, order: messages.Pin) -> None:
        """Carry out a pin that came as the run ended, from its last checkpoint."""
        newest = newest_checkpoint(self._directory.checkpoints)
        if newest:
            self.pin(order, newest)

    def pin(self, order: messages.Pin, checkpoint: Path) -> None:
        for clone in order.clones:
            link_checkpoint(checkpoint, RunDir(self._directory.path.parent / str(clone)).start)
        self._report(messages.Pinned(self.run_id, order.clones))

    def turn_seconds(self) -> float:
        """The time the floor was held since the turn began; a new turn begins."""
        seconds, self._turn_began = self.seat.held - self._turn_began, self.seat.held
        return seconds

    def note(self, text: str) -> None:
        """A line in the run's log."""
        self._log.write(text + "\n")

    def tell(self, message: Any) -> None:
        self._report(message)

    @property
    def directory(self) -> RunDir:
        return self._directory

    @property
    def resume(self) -> Path | None:
        return self._resume


class _Turns(TrainerCallback):
    """Hands the device over at chunk ends, carries out orders at step ends, and reports."""

    def __init__(self, thread: RunThread, built: Built) -> None:
        self._thread = thread
        self._built = built
        self._trainer: Trainer = built.trainer
        self.saver = checkpoints.Saver(thread.directory.checkpoints, every_chunk=built.every_chunk)
        self._grid: Grid | None = None
        self._turn_end = 0
        self._chunk_over = False
        self._evaluating = False
        self._at_step_end: Rng | None = None
        if built.evaluates:
            self._evaluate = self._trainer.evaluate
            self._trainer.evaluate = self._evaluate_apart  # type: ignore[method-assign]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._grid = self._built.grid(state.max_steps)
        resume = self._thread.resume
        pending = False
        if resume:
            checkpoints.remember(self._trainer, resume)
            self.saver.newest = (state.global_step, resume)
            pending = (checkpoint_marker(resume) or {}).get("evaluate", False)
        self._at_step_end = rng()
        self._turn_end = self._grid.turn_end(state.global_step)
        self._tell_begun(state)
        if pending:
            self._trainer.evaluate()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._chunk_over:
            self._end_turn(state)
        while (order := self._thread.seat.boundary()) is not None:
            self._carry_out(order, state)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        assert self._grid
        self._at_step_end = rng()
        self._chunk_over = state.global_step >= self._turn_end
        if self._chunk_over and self._built.evaluates:
            control.should_evaluate = True
        self._thread.tell(
            messages.Stepped(
                self._thread.run_id, state.global_step, self._grid.chunk(state.global_step), state.epoch or 0.0
            )
        )

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        values = curve_values(logs or {})
        self._thread.note(f"step {state.global_step}  " + "  ".join(f"{n} {v:.6g}" for n, v in values.items()))
        self._thread.tell(messages.Logged(self._thread.run_id, state.global_step, values))

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._evaluating and self._thread.seat.ordered(messages.Halt):
            order = self._thread.seat.boundary()
            if order is not None:
                control.should_evaluate = False  # it is saved too, and would evaluate once more after the next step
                self._carry_out(order, state, evaluate=True)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step >= state.max_steps:
            self._save(state)

    def _tell_begun(self, state: TrainerState) -> None:
        assert self._grid
        step, total, epoch = state.global_step, state.max_steps, state.epoch or 0.0
        self._thread.tell(
            messages.Begun(self._thread.run_id, step, total, self._grid.chunk(step), self._grid.total, epoch)
        )

    def _end_turn(self, state: TrainerState) -> None:
        assert self._grid
        seat = self._thread.seat
        if self.saver.due(seat.held):
            self._save(state)
        self._chunk_over = False
        self._turn_end = self._grid.turn_end(state.global_step)
        seat.end_turn()
        chunk, seconds = self._grid.chunk(state.global_step), self._thread.turn_seconds()
        self._thread.tell(
            messages.TurnEnded(self._thread.run_id, state.global_step, chunk, state.epoch or 0.0, seconds)
        )

    def _carry_out(self, order: Any, state: TrainerState, *, evaluate: bool = False) -> None:
        if isinstance(order, messages.Pin):
            self._thread.pin(order, self._save(state, evaluate=evaluate))
        elif isinstance(order, messages.Halt):
            path = str(self._save(state, evaluate=evaluate)) if order.save and state.global_step else None
            raise _Halt(messages.Halted(self._thread.run_id, state.global_step, path))

    def _save(self, state: TrainerState, *, evaluate: bool = False) -> Path:
        assert self._at_step_end and self._grid
        where = {"epoch": state.epoch or 0.0, "row": self._grid.row(state.global_step), "evaluate": evaluate}
        path = self.saver.save(self._trainer, self._at_step_end, self._thread.seat.held, where)
        self._thread.tell(messages.Saved(self._thread.run_id, state.global_step, str(path)))
        return path

    def _evaluate_apart(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as if it had not been: the training that follows draws what it would have drawn."""
        before = rng()
        self._evaluating = True
        try:
            return self._evaluate(*args, **kwargs)
        finally:
            self._evaluating = False
            set_rng(before)


def _one_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    if isinstance(error, Fault):
        return text[0]
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _forget(error: BaseException) -> None:
    """Let go of the trainer that the frames of a traceback hold, so that its memory is freed."""
    while error:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__context__  # type: ignore[assignment]
