"""The ranges of the knobs that have one. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_Rule = tuple[Callable[[Any], bool], str]

_POSITIVE: _Rule = (lambda value: value > 0, "must be greater than 0")
_NOT_NEGATIVE: _Rule = (lambda value: value >= 0, "must not be negative")
_AT_LEAST_ONE: _Rule = (lambda value: value >= 1, "must be 1 or more")
_BELOW_ONE: _Rule = (lambda value: 0 <= value < 1, "must be at least 0 and below 1")
_STEPS: _Rule = (lambda value: value == -1 or value >= 1, "must be 1 or more, or -1 for no limit")

RANGES: dict[str, _Rule] = {
    "training_args.learning_rate": _POSITIVE,
    "training_args.num_train_epochs": _POSITIVE,
    "training_args.max_steps": _STEPS,
    "training_args.per_device_train_batch_size": _AT_LEAST_ONE,
    "training_args.per_device_eval_batch_size": _AT_LEAST_ONE,
    "training_args.gradient_accumulation_steps": _AT_LEAST_ONE,
    "training_args.eval_accumulation_steps": _AT_LEAST_ONE,
    "training_args.max_length": _AT_LEAST_ONE,
    "training_args.warmup_steps": _NOT_NEGATIVE,
    "training_args.weight_decay": _NOT_NEGATIVE,
    "training_args.max_grad_norm": _NOT_NEGATIVE,
    "training_args.adam_beta1": _BELOW_ONE,
    "training_args.adam_beta2": _BELOW_ONE,
    "training_args.adam_epsilon": _POSITIVE,
    "training_args.label_smoothing_factor": _BELOW_ONE,
    "training_args.logging_steps": _POSITIVE,
    "training_args.eval_steps": _POSITIVE,
    "training_args.seed": _NOT_NEGATIVE,
    "training_args.data_seed": _NOT_NEGATIVE,
    "training_args.neftune_noise_alpha": _NOT_NEGATIVE,
    "training_args.dataloader_num_workers": _NOT_NEGATIVE,
    "training_args.early_stopping_patience": _AT_LEAST_ONE,
    "peft_config.r": _AT_LEAST_ONE,
    "peft_config.lora_alpha": _POSITIVE,
    "peft_config.lora_dropout": _BELOW_ONE,
    "generation_config.max_new_tokens": _AT_LEAST_ONE,
    "generation_config.temperature": _POSITIVE,
    "generation_config.top_p": (lambda value: 0 < value <= 1, "must be greater than 0 and at most 1"),
    "generation_config.top_k": _NOT_NEGATIVE,
}


def range_fault(name: str, value: Any) -> str | None:
    """Why a number is out of the range of the knob called `name`, as the end of a sentence; None where it is not."""
    rule = RANGES.get(name)
    if rule is None or not isinstance(value, (int, float)) or rule[0](value):
        return None
    return f"{rule[1]} (it is {value!r})"
