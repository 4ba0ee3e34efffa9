"""The ranges of the knobs that have one, and what is usual. Pure."""

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
    "training_args.num_train_epochs": (lambda value: 0 < value <= 1e6, "must be greater than 0 and at most a million"),
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

USUAL: dict[str, str] = {
    "training_args.learning_rate": "1e-5 to 1e-3",
    "training_args.num_train_epochs": "1 to 3",
    "training_args.per_device_train_batch_size": "a power of two, 1 to 64",
    "training_args.gradient_accumulation_steps": "1 to 16",
    "training_args.warmup_steps": "0.03 to 0.1 of all steps",
    "training_args.weight_decay": "0 to 0.1",
    "training_args.max_grad_norm": "0.3 to 1",
    "training_args.max_length": "512 to 4096",
    "training_args.label_smoothing_factor": "0 to 0.1",
    "training_args.neftune_noise_alpha": "5 to 15",
    "training_args.beta": "0.01 to 0.5",
    "training_args.num_generations": "4 to 16",
    "training_args.max_completion_length": "256 to 2048",
    "training_args.temperature": "0.7 to 1.2",
    "peft_config.r": "8 to 64",
    "peft_config.lora_alpha": "once or twice the rank",
    "peft_config.lora_dropout": "0 to 0.1",
    "peft_config.target_modules": "all-linear, or q_proj,v_proj",
}
"""Knob -> the values that people mostly take for adapters: a hint, and no rule."""

USUAL_OF: dict[str, dict[str, str]] = {
    "DPO": {"training_args.learning_rate": "1e-6 to 1e-4"},
    "GRPO": {"training_args.learning_rate": "1e-6 to 1e-4", "training_args.beta": "0 to 0.04"},
}
"""Algo -> what is usual there where that is something else."""


def range_fault(name: str, value: Any) -> str | None:
    """Why a number is out of the range of the knob called `name`, as the end of a sentence; None where it is not."""
    rule = RANGES.get(name)
    if rule is None or not isinstance(value, (int, float)) or rule[0](value):
        return None
    return f"{rule[1]} (it is {value!r})"
