"""What a run's trainer calls back: turns end at chunk ends, orders are carried out at step ends, all is reported."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rftui import messages
from rftui.checkpoints import checkpoint_marker
from rftui.chunks import Grid
from rftui.errors import UserError
from rftui.formatting import format_number
from rftui.paths import RunDir
from rftui.runs import curve_values
from rftui.training import saving
from rftui.training.evaluation import Apart, Patience
from rftui.training.own_functions import OwnFunctions
from rftui.training.process_state import Rng, rng
from rftui.training.turnstile import Slot


class Leave(BaseException):
    """Leaves the trainer's loop; a BaseException so that no user's callback swallows it."""


class Diverged(UserError):
    """The loss or the gradient of a run is not finite any longer."""


UNKNOWN_SIZE = 2**26
"""Bytes that should be free for the first checkpoint of a run that could not be saved."""


def _without_saving(order: Any) -> bool:
    """Whether an order can be carried out where the run cannot be saved: a deletion, or to try again."""
    return isinstance(order, messages.Retry) or (isinstance(order, messages.Halt) and not order.save)


@dataclass
class Built:
    """A trainer, the user's functions that it calls, and how its run is cut: `grid`, whose `steps` are known once
    training begins.

    `evaluates`: each chunk end is evaluated; `every_chunk`: each chunk end is saved; `patience` ends it early;
    `notices` are lines for the event log, `adapted` the knobs that were fitted to the model or device.
    """

    trainer: Trainer
    grid: Grid
    evaluates: bool
    every_chunk: bool
    functions: OwnFunctions
    patience: Patience | None = None
    notices: list[str] = field(default_factory=list)
    adapted: dict[str, Any] = field(default_factory=dict)


class Host(Protocol):
    """What the callback needs of its run's thread."""

    run_id: int
    slot: Slot
    directory: RunDir
    resume: Path | None

    def note(self, text: str) -> None: ...
    def tell(self, message: Any) -> None: ...
    def link_weights(self, order: messages.SnapshotWeights, checkpoint: Path) -> None: ...
    def turn_seconds(self) -> float: ...


class RunCallback(TrainerCallback):
    """Hands the device over at chunk ends, carries out orders at step ends, and reports."""

    def __init__(self, thread: Host, built: Built) -> None:
        self._thread = thread
        self._built = built
        self._trainer = built.trainer
        self.saver = saving.Saver(thread.directory.checkpoints, built.functions, every_chunk=built.every_chunk)
        self._grid = built.grid
        self._turn_end = 0
        self._chunk_over = False
        self._at_step_end: Rng | None = None
        self._apart = Apart(built.trainer, built.functions, self._note) if built.evaluates else None
        self._watch_for_divergence()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._grid = replace(self._built.grid, steps=state.max_steps)
        resume = self._thread.resume
        marker: dict[str, Any] = {}
        if resume:
            saving.remember(self._trainer, resume)
            self.saver.newest = (state.global_step, resume)
            marker = checkpoint_marker(resume) or {}
            self._built.functions.load(resume)
            if lost := marker.get("lost"):
                self._note(f"{lost}: it begins anew at step {state.global_step}")
        if self._built.patience and "patience" in marker:
            self._built.patience.state = tuple(marker["patience"])
        self._at_step_end = rng()
        self._turn_end = self._grid.turn_end(state.global_step)
        self._tell_begun(state)
        if marker.get("evaluate"):
            self._trainer.evaluate()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._chunk_over:
            self._end_turn(state)
        while (order := self._thread.slot.boundary(self._allowed(state))) is not None:
            self._carry_out(order, state)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._at_step_end = rng()
        self._chunk_over = state.global_step >= self._turn_end
        if self._chunk_over and self._built.evaluates:
            control.should_evaluate = True
        self._thread.tell(
            messages.Stepped(
                self._thread.run_id,
                state.global_step,
                self._grid.chunk(state.global_step),
                self._grid.epoch(state.epoch or 0.0),
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
        # With patience an evaluation may end the run, so that none is left for later.
        interruptible = self._apart and self._apart.running and not self._built.patience
        if interruptible and self._thread.slot.ordered(messages.Halt):
            order = self._thread.slot.boundary(self._allowed(state))
            if order is not None:
                control.should_evaluate = False  # it is saved too, and would evaluate once more after the next step
                self._carry_out(order, state, evaluate=True)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if not self._apart:
            self._at_step_end = rng()  # TRL's own evaluation has drawn from it, and a resume does not repeat it
        patience = self._built.patience
        if patience and patience.over(metrics or {}):
            control.should_training_stop = True
            text = (
                f"run {self._thread.run_id} ends early at step {state.global_step}: {patience.metric} has not become"
            )
            text = (
                f"{text} better in {patience.evaluations} evaluations (its best is {format_number(patience.state[0])})"
            )
            self._thread.tell(messages.Note(text, self._thread.run_id))

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step >= state.max_steps or control.should_training_stop:
            self._save(state)

    def _note(self, text: str) -> None:
        """A line for the event log."""
        self._thread.tell(messages.Note(f"run {self._thread.run_id}: {text}", self._thread.run_id))

    def _tell_begun(self, state: TrainerState) -> None:
        step, total, grid = state.global_step, state.max_steps, self._grid
        chunk, epoch = grid.chunk(step), grid.epoch(state.epoch or 0.0)
        self._thread.tell(messages.Begun(self._thread.run_id, step, total, chunk, grid.total, epoch, asdict(grid)))

    def _end_turn(self, state: TrainerState) -> None:
        slot = self._thread.slot
        if self.saver.due(slot.held):
            self._save(state)
        self._chunk_over = False
        self._turn_end = self._grid.turn_end(state.global_step)
        slot.end_turn()
        chunk, seconds = self._grid.chunk(state.global_step), self._thread.turn_seconds()
        self._thread.tell(
            messages.TurnEnded(
                self._thread.run_id, state.global_step, chunk, self._grid.epoch(state.epoch or 0.0), seconds
            )
        )

    def _allowed(self, state: TrainerState) -> Callable[[Any], bool]:
        """Which orders can be carried out now: within a span nothing that needs a checkpoint."""
        if self._grid.between_spans(state.global_step):
            return lambda order: True
        return _without_saving

    def _carry_out(self, order: Any, state: TrainerState, *, evaluate: bool = False) -> None:
        if isinstance(order, messages.SnapshotWeights):
            self._thread.link_weights(order, self._save(state, evaluate=evaluate))
        elif isinstance(order, messages.Halt):
            path = str(self._save(state, evaluate=evaluate)) if order.save and state.global_step else None
            raise Leave(messages.Halted(self._thread.run_id, state.global_step, path))

    def _save(self, state: TrainerState, *, evaluate: bool = False) -> Path:
        assert self._at_step_end
        where: dict[str, Any] = {
            "epoch": self._grid.epoch(state.epoch or 0.0),
            "row": self._grid.row(state.global_step),
            "rows": self._grid.rows,
            "evaluate": evaluate,
        }
        if self._built.patience:
            where["patience"] = self._built.patience.state
        at_step_end = self._at_step_end
        path = self.patiently(lambda: self.saver.save(self._trainer, at_step_end, self._thread.slot.held, where))
        self._thread.tell(
            messages.Saved(self._thread.run_id, state.global_step, str(path), self.saver.cost, saving.size(path))
        )
        return path

    def patiently(self, write: Callable[[], Path]) -> Path:
        """What `write` returns; while the disk is full the run steps back, and tries again when it is told to."""
        thread, folder = self._thread, self._thread.directory.path
        while True:
            try:
                return write()
            except Exception as error:
                if not saving.disk_full(error, folder):
                    raise
                reason = saving.no_space(folder)
            thread.slot.end_turn()
            needed = 2 * saving.size(self.saver.newest[1] if self.saver.newest else None) or UNKNOWN_SIZE
            thread.tell(messages.Unsaved(thread.run_id, reason, needed, thread.turn_seconds()))
            order = thread.slot.boundary(_without_saving)
            if isinstance(order, messages.Halt):
                raise Leave(messages.Halted(thread.run_id, self._trainer.state.global_step, None))

    def _watch_for_divergence(self) -> None:
        """Raise Diverged at the first loss or gradient that is not finite, before it reaches the weights."""
        trainer: Any = self._trainer
        train, norm = trainer.training_step, trainer._get_grad_norm

        def training_step(*args: Any, **kwargs: Any) -> torch.Tensor:
            loss = train(*args, **kwargs)
            self._must_be_finite("loss", loss)
            return loss

        def get_grad_norm(*args: Any, **kwargs: Any) -> Any:
            value = norm(*args, **kwargs)
            if value is not None and not trainer.args.fp16:  # whose scaler skips the steps that overflow
                self._must_be_finite("grad_norm", value)
            return value

        trainer.training_step, trainer._get_grad_norm = training_step, get_grad_norm

    def _must_be_finite(self, name: str, value: Any) -> None:
        number = float(value)
        if math.isfinite(number):
            return
        step = self._trainer.state.global_step + 1
        self._thread.tell(messages.Logged(self._thread.run_id, step, {name: number}))
        raise Diverged(f"diverged at step {step}: its {name} is {number}; clone it with a lower learning rate")
