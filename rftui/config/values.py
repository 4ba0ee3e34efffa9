"""Values as users hold them (numpy and torch scalars, paths, numbers written as text) as Python's own. Pure."""

from __future__ import annotations

import math
import os
from typing import Any

from rftui.errors import UserError

FLOATS = (
    "adam_beta1 adam_beta2 adam_epsilon beta delta discopop_tau entropy_coef entropy_coef_delta entropy_coef_max "
    "entropy_coef_min entropy_target epsilon epsilon_high eval_delay eval_steps f_alpha_divergence_coef "
    "label_smoothing label_smoothing_factor ld_alpha learning_rate logging_steps lora_dropout max_grad_norm min_p "
    "neftune_noise_alpha num_train_epochs off_policy_mask_threshold repetition_penalty router_aux_loss_coef "
    "sapo_temperature_neg sapo_temperature_pos temperature top_entropy_quantile top_p vespo_k_neg vespo_k_pos "
    "vespo_lambda_neg vespo_lambda_pos warmup_steps weight_decay early_stopping_threshold"
).split()
WHOLE = (
    "data_seed dataloader_num_workers dataloader_prefetch_factor dataset_num_proc early_stopping_patience "
    "eval_accumulation_steps generation_batch_size gradient_accumulation_steps lora_alpha max_completion_length "
    "max_length max_new_tokens max_steps num_generations num_generations_eval num_iterations "
    "per_device_eval_batch_size per_device_train_batch_size precompute_ref_batch_size qalora_group_size r seed "
    "steps_per_generation top_k torch_empty_cache_steps"
).split()
"""Arguments of TRL's and PEFT's classes and of generation that are numbers, and those that are whole ones."""


def native(value: Any, name: str) -> Any:
    """`value`, called `name`, as Python's own: a scalar of numpy or torch as its number, a path as text.

    What is neither stays as it is. Raises UserError for text and paths that cannot be written as UTF-8.
    """
    if isinstance(value, os.PathLike):
        value = os.fsdecode(value)
    elif type(value).__module__.partition(".")[0] in ("numpy", "torch") and getattr(value, "shape", None) == ():
        value = value.item()
    if isinstance(value, str) and not is_utf8(value):
        raise UserError(f"{name} is {value!a}, which is not valid UTF-8: rename it, or write it in UTF-8")
    return value


def is_utf8(text: str) -> bool:
    """Whether `text` can be written as UTF-8, which names of files that are not UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def numbers(section: str, values: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """`values` with the numbers that are written as text, as YAML reads 1e-4, read; and a notice for each.

    Text that is no number for its knob stays, and is a fault of the check.
    """
    read, notices = {}, []
    for name, value in values.items():
        number = number_of(value, whole=name in WHOLE) if name in FLOATS or name in WHOLE else None
        read[name] = value if number is None else number
        if number is not None:
            notices.append(f"{section}.{name} is text, {value!r}: taken as the number {number!r}")
    return read, notices


def number_of(value: Any, *, whole: bool) -> int | float | None:
    """The number that the text `value` stands for; None where it is no text or no (`whole`) number."""
    if not isinstance(value, str):
        return None
    try:
        return int(value)
    except ValueError:
        pass
    try:
        number = float(value)
    except ValueError:
        return None
    if whole:
        return int(number) if number.is_integer() else None
    return number if math.isfinite(number) else None
