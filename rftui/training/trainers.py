"""Builds a run's TRL trainer from its config, as a user of plain TRL would have written it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from transformers import Trainer

from rftui.checkpoints import checkpoint_marker
from rftui.chunks import Grid, chunks_per_epoch
from rftui.config.generation import rows_at_once, rows_per_step, steps_apart
from rftui.config.spec import Spec, change, configured, shared_names
from rftui.config.warm import last_row
from rftui.errors import UserError
from rftui.formatting import format_number
from rftui.paths import ExperimentDir
from rftui.runs import Run
from rftui.training import data
from rftui.training.adapters import warm
from rftui.training.arguments import arguments, config_class
from rftui.training.base_models import BaseModels
from rftui.training.evaluation import GeneratedText, Patience
from rftui.training.models import adapter_faults, model_parts
from rftui.training.own_functions import OwnFunctions
from rftui.training.plain_trl import continue_schedule, remaining_rows, spread, take_over_weights
from rftui.training.promotion import promoted
from rftui.training.rows import Formatting, Need, formatting
from rftui.training.run_callback import Built
from rftui.training.setup import Setup


class TrainerBuilder:
    """Builds the trainers of one worker's runs."""

    def __init__(self, experiment: ExperimentDir, bases: BaseModels, device: torch.device) -> None:
        self._experiment = experiment
        self._bases = bases
        self._device = device
        self._setup = Setup()

    def spec(self, fit: int) -> Spec:
        """What one `run_fit` was given, made anew: nothing of it was seen or changed by another run. The first time,
        its `setup_fn` is run. The process works in the script's directory from then on. Raises UserError."""
        return self._setup.load(self._experiment.spec(fit))

    def build(self, run: Run) -> Built:
        """The run's trainer. Called by the thread that holds the lock. Raises UserError, and what TRL raises."""
        spec = self.spec(run.fit)
        train, evaluation = data.load(self._experiment, run.fit)
        directory = self._experiment.run(run.id)
        start = directory.start if run.warm else None
        adapted, said = self._promote(run, spec)
        plan = planned(spec, run, train, evaluation, str(directory.checkpoints), str(self._device))
        config, ours = plan.config, plan.ours
        functions = OwnFunctions(config)
        # Copies, since TRL extends the lists that it is given.
        args = config_class(run.algo)(**copy.deepcopy(plan.args))
        model, tokenizer = self._bases.get(config, spec.create_model_fn, args.seed, run.fit)
        said += _names_checked(spec, run, plan, model)
        with data.preparing(self._experiment, run.fit):
            train, left = data.formatted(train, plan.formatting, plan.need)
            if evaluation is not None:
                evaluation = data.formatted(spread(evaluation, ours["eval_rows"]), plan.formatting, plan.need)[0]
            with data.uncached(data.keeps(left, train)):
                trainer: Any = getattr(trl, f"{run.algo}Trainer")(
                    model=model,
                    args=args,
                    train_dataset=train,
                    eval_dataset=evaluation,
                    processing_class=tokenizer,
                    peft_config=LoraConfig(**copy.deepcopy(plan.lora)) if plan.lora else None,
                    **_own_inputs(run.algo, config, left, functions),
                )
        if start:
            (warm if plan.lora else take_over_weights)(trainer.model, start)
            if run.continue_schedule:
                _continue_schedule(trainer, start)
        if functions.metrics and config["generation_config"] and evaluation is not None:
            GeneratedText(trainer, evaluation, functions.metrics, config["generation_config"])
        evaluates = ours["eval_strategy"] == "chunk"
        patience = None
        if ours["early_stopping_patience"] and ours["eval_strategy"] != "no":
            patience = Patience(args, ours["early_stopping_patience"], ours["early_stopping_threshold"])
        dropped = len(train) - len(trainer.train_dataset)
        notices = said + functions.notices()
        if dropped > 0 and not getattr(args, "packing", False):
            notices.append(f"{dropped} of {len(train)} rows have nothing to learn from within max_length: left out")
        grid = _grid(run, trainer, spec, start, plan.as_cold)
        return Built(trainer, grid, evaluates, ours["every_chunk"], functions, patience, notices, adapted)

    def _promote(self, run: Run, spec: Spec) -> tuple[dict[str, Any], list[str]]:
        """Fit a run that begins on another base model than its config was written for; what was changed, and why."""
        before = spec.run_configs[run.config_index].config["model_name"]
        if run.warm or run.step or run.changes.get("model_name", before) == before:
            return {}, []
        config = configured(spec.run_configs[run.config_index], run.changes)
        try:
            changes, said = promoted(config, before, run.algo, self._device)
        except UserError as fault:
            if spec.create_model_fn is None:
                raise
            return {}, [f"it is not fitted to its new model: {fault}"]  # only the user's function may know that name
        change(run, changes)
        return changes, said


def _names_checked(spec: Spec, run: Run, plan: Plan, model: Any) -> list[str]:
    """Notices. Raises UserError for a name in the adapter's config that is none in the model.

    No earlier check has seen that of a clone, or of a model that the user's function made.
    """
    if not plan.lora or getattr(model, "peft_config", None):
        return []
    name = str(plan.config["model_name"] or "the model")
    faults, notices = adapter_faults(
        plan.lora, name, model.config.model_type, model_parts(model), shared_names(spec, run)
    )
    if faults:
        raise UserError("; ".join(faults))
    return notices if spec.create_model_fn else []


@dataclass
class Plan:
    """What a run's trainer is made from.

    `args` and `lora` (None trains all weights) are arguments of TRL's config and of LoraConfig; `as_cold` are the
    `args` of a cold run with the same config, which differ for a warm clone; `ours` is what `arguments` says is
    rftui's. `formatting` makes the rows such as `need` wants them.
    """

    config: dict[str, Any]
    args: dict[str, Any]
    as_cold: dict[str, Any]
    lora: dict[str, Any] | None
    ours: dict[str, Any]
    need: Need
    formatting: Formatting | None


def planned(spec: Spec, run: Run, train: Dataset, evaluation: Dataset | None, output_dir: str, device: str) -> Plan:
    """What a run's trainer is made from, on the datasets of its fit. `device` is "cpu" or "cuda:N". Raises
    UserError."""
    config = configured(spec.run_configs[run.config_index], run.changes)
    as_cold, lora, _, ours = arguments(
        run.algo,
        config,
        output_dir=output_dir,
        device=device,
        seed=spec.seed,
        rows=len(train),
        eval_rows=len(evaluation or ()),
        per_epoch=chunks_per_epoch(len(train), spec.num_chunks, spec.chunk_size),
    )
    args = as_cold | _one_pass(run, as_cold) if run.warm else as_cold
    function = formatting(spec, run.config_index, train.column_names)
    return Plan(config, args, as_cold, lora, ours, Need(run.algo, config), function)


def _own_inputs(
    algo: str, config: dict[str, Any], function: Formatting | None, functions: OwnFunctions
) -> dict[str, Any]:
    """What only this algo's trainer takes."""
    if algo == "GRPO":
        return {"reward_funcs": functions.rewards}
    metrics = {} if config["generation_config"] else {"compute_metrics": functions.metrics}
    return {"formatting_func": function, **metrics} if algo == "SFT" else metrics


def _continue_schedule(trainer: Trainer, start: Path) -> None:
    try:
        continue_schedule(trainer, start)
    except ValueError as error:
        raise UserError(f"{error}; clone it with a fresh schedule") from error


def _one_pass(run: Run, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What makes a warm clone one sequential pass over its rows; `max_steps` counts from its root's start."""
    steps = kwargs.get("max_steps", -1)
    in_order = {"shuffle_dataset": False} if run.algo == "GRPO" else {"train_sampling_strategy": "sequential"}
    return {"num_train_epochs": 1, "max_steps": steps - run.start_step if steps > 0 else -1, **in_order}


def _grid(run: Run, trainer: Trainer, spec: Spec, start: Path | None, kwargs: dict[str, Any]) -> Grid:
    """How the run is cut. A warm clone's trainer (from `start`) is left with the rows that it trains on.

    `kwargs` are the arguments as they would be for a cold run. Raises UserError where there is nothing to train on.
    """
    prepared = trainer.train_dataset
    assert isinstance(prepared, Dataset)
    rows, least = len(prepared), rows_at_once(run.algo, kwargs)
    if not rows:
        raise UserError("no row is left to train on after tokenisation: every prompt is longer than max_length")
    if rows < least:
        raise UserError(f"{rows} rows are fewer than the {least} that are taken at once: make the batch smaller")
    per_epoch, used = chunks_per_epoch(rows, spec.num_chunks, spec.chunk_size), rows - rows % least
    span = steps_apart(run.algo, kwargs)
    batch = int(rows_per_step(run.algo, kwargs) * span)
    if not start:
        return Grid(used, min(per_epoch, used), batch, 0, span=span)
    used = (checkpoint_marker(start) or {}).get("rows", used)  # the parent may have taken others at once
    stop = last_row(run, kwargs, used)
    if stop <= run.start_row:
        raise UserError(
            f"nothing is left to train: {format_number(run.start_epoch)} epochs ({run.start_step} steps) are done, "
            "counted from its first ancestor's start; set more num_train_epochs, or a larger max_steps"
        )
    order = remaining_rows(rows, used, run.start_row, stop, **data.epoch_order(run.algo, kwargs))
    trainer.train_dataset = prepared.select(order)
    return Grid(used, min(per_epoch, used), batch, 0, run.start_row, stop, span)
