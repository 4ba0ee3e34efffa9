"""What a warm start allows: a clone that takes its parent's weights and goes on over its remaining rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import ceil
from typing import Any

from rftui.chunks import Grid
from rftui.config.generation import GENERATION, rows_at_once, rows_per_step
from rftui.formatting import format_number
from rftui.runs import DONE, FAILED, STOPPED, Run

DEFAULTS: dict[str, Any] = {
    "training_args.num_train_epochs": 3.0,
    "training_args.max_steps": -1,
    "training_args.per_device_train_batch_size": 8,
    "training_args.gradient_accumulation_steps": 1,
    "training_args.warmup_steps": 0,
    "peft_config.r": 8,
    "peft_config.target_modules": None,
}
"""TRL's and PEFT's values of the knobs that the rules below reckon with."""

_ROWS = {
    "max_length",
    "packing",
    "packing_strategy",
    "padding_free",
    "truncation_mode",
    "dataset_text_field",
    "dataset_kwargs",
    "shuffle_dataset",
    "train_sampling_strategy",
    "data_seed",
    "completion_only_loss",
    "assistant_only_loss",
    "chat_template_path",
    "eos_token",
    "dataloader_drop_last",
}
"""Training arguments that change which rows there are or their order, in which the clone goes on."""

_PROMPT_ORDER = {"seed"}
"""What changes the order of the rows besides, for GRPO."""

_SOUND = {"r", "lora_alpha", "lora_dropout", "target_modules", "use_rslora"}
"""Adapter fields of which another value can take over the parent's adapter."""

_KEPT = ("training_args", "peft_config", "generation_config")

_FIXED = (
    (
        {
            *("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps"),
            *GENERATION,
        },
        "since it would change the schedule's steps",
    ),
    ({"lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"}, "which it is part of"),
    (
        {"optim", "optim_args", "optim_target_modules", "r", "target_modules", "use_rslora"},
        "since the optimizer's state would not fit",
    ),
)
"""What cannot change where the parent's optimizer and schedule go on, and why."""


def warm_faults(parent: Run, changed: dict[str, Any], before: dict[str, Any]) -> dict[str, str]:
    """Why `parent` cannot be cloned warm with the knobs in `changed`; `before` are all its values, flat."""
    if parent.step == 0 and parent.state != FAILED:
        return {"": "it has not trained a step yet, so there are no weights to start from; clone it cold"}
    if parent.state == FAILED and not parent.checkpoint:
        return {"": "it failed before its first checkpoint, so there are no weights to start from; clone it cold"}
    faults = {}
    for name, value in changed.items():
        section, _, last = name.partition(".")
        if section not in _KEPT:
            faults[name] = "cannot change in a warm start, which keeps the parent's model; clone it cold"
        elif section == "training_args" and last in (_ROWS | _PROMPT_ORDER if parent.algo == "GRPO" else _ROWS):
            faults[name] = "cannot change in a warm start, since it changes the rows or their order; clone it cold"
        elif section == "peft_config":
            reason = _peft_fault(last, value, before)
            if reason:
                faults[name] = reason
    return faults


def continue_faults(parent: Run, changed: Iterable[str]) -> dict[str, str]:
    """Why a warm clone with other values of the knobs in `changed` cannot go on with its parent's optimizer and
    schedule: they must fit its weights, and its steps must be those that the schedule reckons with."""
    if parent.state == DONE:
        return {"": "its schedule has ended, so there is none to continue; use a fresh one"}
    return {
        name: f"cannot change while the parent's schedule is continued, {reason}; use a fresh one"
        for name in changed
        for knobs, reason in _FIXED
        if name.rpartition(".")[2] in knobs
    }


def at_checkpoint(run: Run, step: int) -> Run:
    """The run as it was at its checkpoint of that step, from which it has the rest before it."""
    return replace(run, step=step, state=STOPPED if run.state == DONE and step < run.step else run.state)


def _peft_fault(last: str, value: Any, before: dict[str, Any]) -> str | None:
    if "peft_config" in before and before["peft_config"] is None:
        return "cannot be set in a warm start of a run that trains all its weights; clone it cold"
    if last not in _SOUND:
        return "cannot change in a warm start, since the parent's adapter would not fit; clone it cold"
    if last == "r" and value < before["peft_config.r"]:
        return f"may grow but not shrink in a warm start (the parent's is {before['peft_config.r']}); clone it cold"
    if last == "target_modules" and not _covers(value, before["peft_config.target_modules"]):
        shown = before["peft_config.target_modules"]
        shown = ",".join(shown) if isinstance(shown, list) else shown or "the model's default"
        return f"must keep the parent's modules in a warm start ({shown}) and may add others; clone it cold"
    return None


def _covers(new: Any, old: Any) -> bool:
    if new == "all-linear":
        return True
    return isinstance(new, list) and isinstance(old, list) and set(old) <= set(new)


def last_row(run: Run, args: dict[str, Any], used: int) -> int:
    """Where a warm clone ends, in rows counted over all its first ancestor's epochs of `used` rows.

    `args` are its training arguments as they would be for a cold run; `max_steps` counts from the first ancestor's
    start. At or before `run.start_row` nothing is left to train on.
    """
    stop, at_once = _asked_row(run, args, used), rows_at_once(run.algo, args)
    whole = max(0, stop - run.start_row) // at_once
    if args.get("max_steps", -1) > 0:  # the last step may need but a part of what is taken at once
        whole = max(0, -(-(stop - run.start_row) // at_once))
    return run.start_row + whole * at_once


def _asked_row(run: Run, args: dict[str, Any], used: int) -> int:
    steps = args.get("max_steps", -1)
    if steps > 0:
        return run.start_row + ceil((steps - run.start_step) * rows_per_step(run.algo, args))
    return int(args.get("num_train_epochs", 3) * used)


def length_faults(parent: Run, after: dict[str, Any]) -> dict[str, str]:
    """Why a warm clone with the knobs `after` would have nothing to train; silent where `parent` does not know yet
    (or never noted) how it is cut. Steps and epochs are counted from the first ancestor's start."""
    if not parent.grid:
        return {}
    clone, used, args = _from_here(parent), parent.grid["rows"], _training_args(after)
    if last_row(clone, args, used) > clone.start_row:
        return {}
    if args["max_steps"] > 0:
        return {"training_args.max_steps": f"must be more than the {clone.start_step} steps already done"}
    left = _asked_row(clone, args, used) - clone.start_row
    if left > 0:
        return {
            "training_args.num_train_epochs": f"leaves {left} rows, fewer than the {rows_at_once(clone.algo, args)} "
            "that are taken at once: train more epochs, or make the batch smaller"
        }
    done = format_number(clone.start_epoch)
    return {"training_args.num_train_epochs": f"must be more than the {done} epochs already done"}


def _from_here(parent: Run) -> Run:
    """A warm clone of the parent as it stands."""
    row = Grid(**parent.grid).row(parent.step)
    start = {"start_step": parent.start_step + parent.step, "start_row": row, "start_epoch": row / parent.grid["rows"]}
    return replace(parent, step=0, **start)


def warmup_faults(parent: Run, changed: dict[str, Any], after: dict[str, Any], warm: bool) -> dict[str, str]:
    """A warm-up that is longer than all the steps that the clone has; silent where they are not known yet."""
    name = "training_args.warmup_steps"
    steps = _steps(parent, after, warm)
    if not changed or steps is None or after[name] < 1 or after[name] < steps:
        return {}
    given = format_number(after[name])
    return {name: f"of {given} would last for all {steps} steps of the clone; lower it, or give a fraction below 1"}


def _steps(parent: Run, after: dict[str, Any], warm: bool) -> int | None:
    """About how many optimizer steps a clone has; None where its parent does not know yet how many rows it has."""
    args = _training_args(after)
    if not warm and args["max_steps"] > 0:
        return int(args["max_steps"])
    if not parent.grid:
        return None
    used, clone = parent.grid["rows"], _from_here(parent)
    rows = last_row(clone, args, used) - clone.start_row if warm else args["num_train_epochs"] * used
    return max(1, ceil(rows / rows_per_step(parent.algo, args)))


def _training_args(values: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("training_args."): value for name, value in values.items()}
