"""A config as the arguments of TRL's and PEFT's classes: what the user set, and what rftui takes over."""

from __future__ import annotations

from enum import Enum
from math import ceil
from typing import Any

import torch
import trl
from transformers import TrainingArguments

from rftui.config.generation import eval_batch_size, generation_faults, rows_per_step
from rftui.config.managed import MANAGED, OWN, REFUSED
from rftui.errors import UserError
from rftui.training.evaluation import cheap_rows

_SILENT = {"output_dir", "run_name", "disable_tqdm", "do_train", "do_eval", "do_predict", "local_rank"}
"""Taken-over arguments that most scripts set and nobody misses."""


def config_class(algo: str) -> type[TrainingArguments]:
    """TRL's class of an algo's training arguments."""
    found: type[TrainingArguments] = getattr(trl, f"{algo}Config")
    return found


def arguments(
    algo: str,
    config: dict[str, Any],
    *,
    output_dir: str,
    device: str,
    seed: int,
    rows: int,
    eval_rows: int,
    per_epoch: int,
) -> tuple[dict[str, Any], dict[str, Any] | None, list[str], dict[str, Any]]:
    """The keyword arguments of TRL's config and of LoraConfig (None trains all weights), notices, and what is rftui's.

    `device` is "cpu" or "cuda:N"; `rows` are cut into `per_epoch` chunks an epoch; `eval_rows` is 0 without an eval
    set. What is rftui's: `eval_strategy` ("chunk", or what TRL does by itself), `eval_rows` (those that are
    evaluated), `every_chunk` (a checkpoint at each chunk end), `early_stopping_patience` (evaluations, or None),
    `early_stopping_threshold`. Raises one UserError for
    all the arguments that cannot train here.
    """
    args = {name: _bare(value) for name, value in config["training_args"].items()}
    refused = [name for name, value in args.items() if name in REFUSED and value]
    if refused:
        raise UserError(*(f"training_args.{name} cannot be used: {REFUSED[name]}" for name in refused))
    notices = [
        f"training_args.{name} is left out: {MANAGED[name]}"
        for name, value in args.items()
        if name in MANAGED and name not in _SILENT and _matters(name, value, device)
    ]
    shuffles = "seed" if algo == "GRPO" else "data_seed"
    ours: dict[str, Any] = {
        "early_stopping_patience": args.get("early_stopping_patience"),
        "early_stopping_threshold": args.get("early_stopping_threshold", 0.0),
        "every_chunk": args.get("save_strategy") in ("chunk", "shard"),
    }
    args = {name: value for name, value in args.items() if name not in MANAGED.keys() | REFUSED.keys() | OWN}
    by_default = args.get("eval_strategy") is None
    ours["eval_strategy"] = _evaluation(args, eval_rows > 0, notices)
    ours["eval_rows"] = eval_rows
    if by_default and ours["eval_strategy"] == "chunk":
        ours["eval_rows"] = cheap_rows(algo, rows, per_epoch, eval_rows)
        if ours["eval_rows"] < eval_rows:
            notices.append(
                f"each chunk end evaluates {ours['eval_rows']} of the {eval_rows} eval rows, always the same, so that "
                'it costs a few percent of the time; training_args.eval_strategy="chunk" evaluates them all'
            )
    if ours["early_stopping_patience"] and ours["eval_strategy"] == "no":
        notices.append("training_args.early_stopping_patience has no effect: nothing is evaluated")
    _precision(args, device, notices)
    if args.get(shuffles) is None:
        args[shuffles] = seed
        if args.get("seed") not in (None, seed):
            notices.append(
                f"seed {args['seed']} sets this run's first weights and dropout; its rows come in the order of "
                f"run_fit's seed, {seed}, as the other runs' do: set data_seed too for an order of its own"
            )
    elif args[shuffles] != seed:
        notices.append(f"own order: {shuffles} {args[shuffles]} shuffles this run's rows unlike the other runs'")
    if algo == "GRPO":
        if faults := generation_faults(args, eval_rows > 0):
            raise UserError(*(f"training_args.{name} {why}" for name, why in faults.items()))
        if eval_rows:
            args.setdefault("per_device_eval_batch_size", eval_batch_size(args))
    if "logging_steps" not in args and "logging_strategy" not in args:
        # TRL's 10, or less where a chunk is short, so that each chunk shows a curve of a few points.
        args["logging_steps"] = max(1, min(10, ceil(rows / rows_per_step(algo, args)) // (4 * per_epoch)))
    args |= {
        "output_dir": output_dir,
        "report_to": "none",
        "push_to_hub": False,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": device == "cpu",
    }
    return args, _adapter(config), notices, ours


def _bare(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _matters(name: str, value: Any, device: str) -> bool:
    """Whether leaving the argument out changes what the user would have seen."""
    if name == "use_cpu":
        return bool(value) != (device == "cpu")
    return value not in (None, False, "none", "no", [], ["none"])


def _evaluation(args: dict[str, Any], has_eval: bool, notices: list[str]) -> str:
    """Who evaluates and when; `args` is left with what TRL is told."""
    asked = args.pop("eval_strategy", None)
    if asked is None and args.get("eval_steps") is not None and has_eval:
        asked = "steps"
        notices.append('training_args.eval_steps without eval_strategy: taken as eval_strategy="steps"')
    if not has_eval:
        if asked not in (None, "no"):
            notices.append(f"training_args.eval_strategy={asked!r} has no effect: run_fit was given no eval_dataset")
        args.pop("eval_on_start", None)
        asked = "no"
    if asked in (None, "chunk", "shard"):
        args["eval_strategy"] = "no"
        return "chunk"
    args["eval_strategy"] = asked
    return asked


def _precision(args: dict[str, Any], device: str, notices: list[str]) -> None:
    """Mixed precision that the device has; on a CPU only a bf16 that the user asked for."""
    cuda = device != "cpu"
    half = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    for name in ("fp16", "fp16_full_eval"):
        if args.get(name) and not cuda:
            args[name] = False
            notices.append(f"training_args.{name} needs a GPU: the run goes on in fp32")
    for name in ("bf16", "bf16_full_eval"):
        if args.get(name) and cuda and not half:
            args[name] = False
            notices.append(f"training_args.{name} is not supported by this GPU: the run goes on in fp32")
    if args.get("bf16") is None:
        args["bf16"] = half and not args.get("fp16")
    if args.get("tf32") and not half:
        del args["tf32"]
        notices.append("training_args.tf32 needs an Ampere or newer GPU: the run goes on without it")


def _adapter(config: dict[str, Any]) -> dict[str, Any] | None:
    if config["peft_config"] is None:
        return None
    return {"task_type": "CAUSAL_LM"} | {name: _bare(value) for name, value in config["peft_config"].items()}
