"""Builds a run's TRL trainer from its config, as a user of plain TRL would have written it."""

from __future__ import annotations

import os
from typing import Any

import torch
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

from rftui.automl.spec import Spec, configured
from rftui.chunks import Grid, chunks_per_epoch
from rftui.faults import Fault
from rftui.paths import ExperimentDir
from rftui.runs import Run
from rftui.training import data
from rftui.training.adapters import warm, warm_full
from rftui.training.arguments import arguments
from rftui.training.base_models import BaseModels
from rftui.training.rows import formatting
from rftui.training.run_thread import Built


class TrainerBuilder:
    """Builds the trainers of one worker's runs."""

    def __init__(self, experiment: ExperimentDir, bases: BaseModels, device: torch.device) -> None:
        self._experiment = experiment
        self._bases = bases
        self._device = device
        self._specs: dict[int, Spec] = {}

    def spec(self, fit: int) -> Spec:
        """What one `run_fit` was given. Raises Fault."""
        if fit not in self._specs:
            self._specs[fit] = Spec.load(self._experiment.spec(fit))
            os.chdir(self._specs[fit].cwd)  # relative paths in configs and in the user's functions
        return self._specs[fit]

    def config(self, run: Run) -> dict[str, Any]:
        """The run's real config: its leaf of the spec with its changes, callables and all."""
        return configured(self.spec(run.fit).leaves[run.leaf], run.changes)

    def build(self, run: Run) -> Built:
        """The run's trainer. Called by the thread that holds the floor. Raises Fault, and what TRL raises."""
        spec, config = self.spec(run.fit), self.config(run)
        train, evaluation = data.load(self._experiment, run.fit)
        start = self._experiment.run(run.id).start if run.warm else None
        kwargs, lora, _, ours = arguments(
            config,
            output_dir=str(self._experiment.run(run.id).checkpoints),
            device=str(self._device),
            seed=spec.seed,
            has_eval=evaluation is not None,
            rows=len(train),
            per_epoch=chunks_per_epoch(len(train), spec.num_chunks, spec.chunk_size),
        )
        epochs = kwargs.get("num_train_epochs", 3)
        if start:
            kwargs |= _one_pass(run, kwargs)
        args = SFTConfig(**kwargs)
        base, tokenizer = self._bases.get(config, spec.create_model_fn, args.seed)
        model: Any = base
        if start:
            model = warm(base, LoraConfig(**lora), start, args.seed) if lora else warm_full(base, start)
        function = formatting(spec, run.leaf, train.column_names)
        with data.preparing(self._experiment, run.fit):
            train, left = data.formatted(train, function)
            evaluation = data.formatted(evaluation, function)[0] if evaluation is not None else None
            trainer = SFTTrainer(
                model=model,
                args=args,
                train_dataset=train,
                eval_dataset=evaluation,
                processing_class=tokenizer,
                peft_config=LoraConfig(**lora) if lora and not start else None,
                formatting_func=left,
            )
        prepared: Any = trainer.train_dataset
        rows = len(prepared)
        if not rows:
            raise Fault("no row is left to train on after tokenisation: every prompt is longer than max_length")
        per_epoch = chunks_per_epoch(rows, spec.num_chunks, spec.chunk_size)
        batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
        stop = None
        if start:
            stop = _last_row(run, kwargs["max_steps"], epochs, rows, batch)
            order = data.remaining_rows(rows, kwargs["data_seed"], run.start_row, stop)
            trainer.train_dataset = prepared.select(order)
        if args.dataloader_drop_last:
            rows -= rows % args.per_device_train_batch_size

        def grid(steps: int) -> Grid:
            return Grid(rows, per_epoch, batch, steps, run.start_row if start else 0, stop)

        return Built(trainer, grid, evaluates=ours["eval_strategy"] == "chunk", every_chunk=ours["every_chunk"])


def _one_pass(run: Run, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What makes a warm clone one sequential pass over its rows; `max_steps` counts from its root's start."""
    steps = kwargs.get("max_steps", -1)
    return {
        "num_train_epochs": 1,
        "max_steps": steps - run.start_step if steps > 0 else -1,
        "train_sampling_strategy": "sequential",
    }


def _last_row(run: Run, steps: int, epochs: float, rows: int, batch: int) -> int:
    """The row, counted over all epochs, at which a warm clone's pass ends. Raises Fault where none is left."""
    stop = run.start_row + steps * batch if steps > 0 else int(epochs * rows)
    if stop <= run.start_row:
        raise Fault(
            f"nothing is left to train after step {run.start_step}: set more num_train_epochs (or a larger max_steps)"
        )
    return stop
