"""Committed checkpoints: the Trainer's own files plus what stock resume forgets, in place completely or not at all.

A checkpoint is a directory `checkpoints/step-N`. It is written under another name, fsynced and renamed; its marker
names its files and their sizes, so that a torn one is told from a whole one.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer
from trl import GRPOTrainer

from rftui.checkpoints import CHECKPOINT_MARKER, checkpoint_marker, checkpoints_in, clear
from rftui.training.own_functions import OwnFunctions
from rftui.training.process_state import Rng, rng, set_rng

_SIDECAR = "engine_state.pt"
_KEPT = 2
_NONE_LEFT = 2**20
"""Free bytes below which a disk counts as full."""


class Saver:
    """Saves one run's checkpoints under `directory` and knows when the next one is due."""

    def __init__(self, directory: Path, functions: OwnFunctions, *, every_chunk: bool = False) -> None:
        self._directory = directory
        self._functions = functions
        self._every_chunk = every_chunk
        self.cost = 0.2  # seconds; a guess until the first one is measured
        self._at = 0.0
        self.newest: tuple[int, Path] | None = None

    def due(self, active: float) -> bool:
        """Whether one should be written at a chunk end after `active` seconds of the run's own time: every 30 times
        its cost, at the latest every ten minutes."""
        return self._every_chunk or active - self._at >= min(30 * self.cost, 600)

    def save(self, trainer: Trainer, at_step_end: Rng, active: float, position: dict[str, Any]) -> Path:
        """Commit a checkpoint of the trainer's present step, unless there is one, and drop the oldest beyond two.

        `at_step_end` is the generators' state when the step ended; `position` goes into the marker (epoch, row, ...).
        """
        step = trainer.state.global_step
        if self.newest and self.newest[0] == step and not position.get("evaluate"):
            return self.newest[1]
        begun = time.perf_counter()
        self._directory.mkdir(parents=True, exist_ok=True)
        work = self._directory / f".step-{step}"
        clear(work)
        present = rng()
        set_rng(at_step_end)
        trainer._get_output_dir = lambda trial: str(work)  # type: ignore[method-assign]
        try:
            # Trainer's own, without TRL's model card, which may ask the hub about the base.
            Trainer._save_checkpoint(trainer, trainer.model, None)  # type: ignore[arg-type]
            written = work / f"checkpoint-{step}"
            torch.save(_forgotten(trainer), written / _SIDECAR)
            (written / "training_args.bin").unlink(missing_ok=True)
            if lost := self._functions.save(written):
                position = position | {"lost": lost}
            commit(written, self._directory / f"step-{step}", {"step": step, **position})
        finally:
            del trainer._get_output_dir
            set_rng(present)
            shutil.rmtree(work, ignore_errors=True)
        self.newest = (step, self._directory / f"step-{step}")
        for old in checkpoints_in(self._directory)[_KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
        self.cost, self._at = time.perf_counter() - begun, active
        return self.newest[1]


def disk_full(error: Exception, folder: Path) -> bool:
    """Whether `error` came of writing to a full disk. Some libraries tell it only by an error of their own."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left" in str(error) or shutil.disk_usage(folder).free < _NONE_LEFT


def no_space(folder: Path) -> str:
    """Why a run waits."""
    return f"no space is left on the disk of {folder}"


def size(checkpoint: Path | None) -> int:
    """The bytes of a checkpoint; 0 where there is none."""
    return sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file()) if checkpoint else 0


def commit(written: Path, target: Path, position: dict[str, Any]) -> None:
    """Mark the directory `written` as whole, make it durable, and give it its name in one step.

    The marker holds `position`, and the number of torch's threads, without which the same bytes cannot be made again.
    """
    files = {str(file.relative_to(written)): file.stat().st_size for file in written.rglob("*") if file.is_file()}
    marker = {**position, "threads": torch.get_num_threads(), "files": files}
    (written / CHECKPOINT_MARKER).write_text(json.dumps(marker))
    for file in [*written.rglob("*"), written]:
        _sync(file)
    clear(target)
    written.rename(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _forgotten(trainer: Trainer) -> dict[str, Any]:
    """The accumulators that `resume_from_checkpoint` starts anew: without them the logs of a resumed run differ."""
    keep: dict[str, Any] = {name: getattr(trainer, name) for name in _ACCUMULATORS if hasattr(trainer, name)}
    if hasattr(trainer, "_metrics"):
        keep["_metrics"] = dict(trainer._metrics["train"])
    return keep


_ACCUMULATORS = (
    "_tr_loss",
    "_total_loss_scalar",
    "_globalstep_last_logged",
    "_initial_global_step",
    "_total_train_tokens",
    "current_flos",
    "_step",
    "entropy_coef",
    "_last_world_entropy",
)


def remember(trainer: Trainer, checkpoint: Path) -> None:
    """Put back what `save` kept beside the Trainer's own state. Call when training has begun."""
    kept = torch.load(checkpoint / _SIDECAR, map_location=trainer.args.device, weights_only=True)
    if "_metrics" in kept:
        getattr(trainer, "_metrics")["train"].update(kept.pop("_metrics"))  # noqa: B009
    for name, value in kept.items():
        setattr(trainer, name, value)


def restore_sampler(trainer: Trainer, checkpoint: Path, steps_per_epoch: int) -> None:
    """Have GRPO's sampler draw what it would have drawn next: its generator is not checkpointed, and a resume begins
    each epoch with the first one's permutation. Call before training."""
    if not isinstance(trainer, GRPOTrainer):
        return
    marker = checkpoint_marker(checkpoint) or {}
    begun = trainer._get_train_sampler

    def advanced(dataset: Any = None) -> Any:
        sampler: Any = begun(dataset)
        for _ in range(marker["step"] // steps_per_epoch if sampler.shuffle else 0):
            torch.randperm(sampler.num_samples, generator=sampler.generator)
        return sampler

    trainer._get_train_sampler = advanced  # type: ignore[method-assign]
