"""Builds a run's TRL trainer from its config, as a user of plain TRL would have written it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from transformers import Trainer

from rftui.automl.generation import Generation
from rftui.automl.spec import Spec, configured
from rftui.chunks import Grid, chunks_per_epoch
from rftui.faults import Fault
from rftui.paths import ExperimentDir, checkpoint_marker
from rftui.runs import Run
from rftui.training import data
from rftui.training.adapters import warm, warm_full
from rftui.training.arguments import arguments, config_class
from rftui.training.base_models import BaseModels
from rftui.training.evaluation import GeneratedText, Patience, spread
from rftui.training.rewards import checked
from rftui.training.rows import Formatting, Need, formatting
from rftui.training.run_callback import Built


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

    def build(self, run: Run) -> Built:
        """The run's trainer. Called by the thread that holds the floor. Raises Fault, and what TRL raises."""
        spec = self.spec(run.fit)
        config = configured(spec.leaves[run.leaf], run.changes)
        train, evaluation = data.load(self._experiment, run.fit)
        start = self._experiment.run(run.id).start if run.warm else None
        kwargs, lora, _, ours = arguments(
            run.algo,
            config,
            output_dir=str(self._experiment.run(run.id).checkpoints),
            device=str(self._device),
            seed=spec.seed,
            rows=len(train),
            eval_rows=len(evaluation or ()),
            per_epoch=chunks_per_epoch(len(train), spec.num_chunks, spec.chunk_size),
        )
        args = config_class(run.algo)(**(kwargs | _one_pass(run, kwargs) if start else kwargs))
        model, tokenizer = self._bases.get(config, spec.create_model_fn, args.seed)
        need, function = Need(run.algo, config), formatting(spec, run.leaf, train.column_names)
        with data.preparing(self._experiment, run.fit):
            train, left = data.formatted(train, function, need)
            if evaluation is not None:
                evaluation = data.formatted(spread(evaluation, ours["eval_rows"]), function, need)[0]
            trainer: Any = getattr(trl, f"{run.algo}Trainer")(
                model=model,
                args=args,
                train_dataset=train,
                eval_dataset=evaluation,
                processing_class=tokenizer,
                peft_config=LoraConfig(**lora) if lora else None,
                **_own_inputs(run.algo, config, left),
            )
        if start:
            (warm if lora else warm_full)(trainer.model, start)
        if config["compute_metrics"] and config["generation_config"] and evaluation is not None:
            GeneratedText(trainer, evaluation, config["compute_metrics"], config["generation_config"])
        evaluates = ours["eval_strategy"] == "chunk"
        patience = None
        if ours["early_stopping_patience"] and ours["eval_strategy"] != "no":
            patience = Patience(args, ours["early_stopping_patience"], ours["early_stopping_threshold"])
        dropped = len(train) - len(trainer.train_dataset)
        notices = []
        if dropped > 0 and not getattr(args, "packing", False):
            notices.append(f"{dropped} of {len(train)} rows have nothing to learn from within max_length: left out")
        grid = _grid(run, trainer, spec, start, kwargs)
        return Built(trainer, grid, evaluates, ours["every_chunk"], patience, notices)


def _own_inputs(algo: str, config: dict[str, Any], function: Formatting | None) -> dict[str, Any]:
    """What only this algo's trainer takes."""
    if algo == "GRPO":
        return {"reward_funcs": checked(config["reward_funcs"])}
    metrics = {} if config["generation_config"] else {"compute_metrics": config["compute_metrics"]}
    return {"formatting_func": function, **metrics} if algo == "SFT" else metrics


def _one_pass(run: Run, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What makes a warm clone one sequential pass over its rows; `max_steps` counts from its root's start."""
    steps = kwargs.get("max_steps", -1)
    in_order = {"shuffle_dataset": False} if run.algo == "GRPO" else {"train_sampling_strategy": "sequential"}
    return {"num_train_epochs": 1, "max_steps": steps - run.start_step if steps > 0 else -1, **in_order}


def _grid(run: Run, trainer: Trainer, spec: Spec, start: Path | None, kwargs: dict[str, Any]) -> Grid:
    """How the run is cut. A warm clone's trainer (from `start`) is left with the rows that it trains on.

    `kwargs` are the arguments as they would be for a cold run. Raises Fault where there is nothing to train on.
    """
    args, prepared = trainer.args, trainer.train_dataset
    assert isinstance(prepared, Dataset)
    rows = len(prepared)
    if not rows:
        raise Fault("no row is left to train on after tokenisation: every prompt is longer than max_length")
    per_epoch = chunks_per_epoch(rows, spec.num_chunks, spec.chunk_size)
    batch, span, least = args.per_device_train_batch_size * args.gradient_accumulation_steps, 1, 1
    if run.algo == "GRPO":
        generation = Generation.of(kwargs)
        batch, span, least = generation.span_prompts, generation.span, generation.prompts
    elif args.dataloader_drop_last:
        least = args.per_device_train_batch_size
    if rows < least:
        raise Fault(f"{rows} rows are fewer than the {least} that are taken at once: make the batch smaller")
    used = rows - rows % least
    if not start:
        return Grid(used, min(per_epoch, used), batch, 0, span=span)
    used = (checkpoint_marker(start) or {}).get("rows", used)  # the parent may have taken others at once
    epochs, steps = kwargs.get("num_train_epochs", 3), kwargs.get("max_steps", -1)
    stop = run.start_row + -(-(steps - run.start_step) * batch // span) if steps > 0 else int(epochs * used)
    stop -= (stop - run.start_row) % least
    if stop <= run.start_row:
        raise Fault(
            f"nothing is left to train after step {run.start_step}: set more num_train_epochs (or a larger max_steps)"
        )
    order = data.remaining_rows(run.algo, kwargs, rows, used, run.start_row, stop)
    trainer.train_dataset = prepared.select(order)
    return Grid(used, min(per_epoch, used), batch, 0, run.start_row, stop, span)
