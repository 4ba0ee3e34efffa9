"""Short names: of knobs as columns show them, and of runs by their knobs. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rftui.formatting import format_number, format_value
from rftui.redaction import HIDDEN, redact


def short(name: str) -> str:
    """A knob's name as a column shows it: "training_args.learning_rate" -> "lr"."""
    last = name.rsplit(".", 1)[-1]
    return _SHORT.get(last, last)


_SHORT = {
    "learning_rate": "lr",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "target_modules": "targets",
    "per_device_train_batch_size": "batch",
    "gradient_accumulation_steps": "accum",
    "num_train_epochs": "epochs",
    "lr_scheduler_type": "sched",
    "warmup_steps": "warmup",
    "model_name": "model",
}


NAME_WIDTH = 28
"""Columns of a generated run name."""


def run_name(knobs: dict[str, Any], number: int, taken: Collection[str] = ()) -> str:
    """A short name from a run's knobs that is not in `taken`: "lr5e-4-r16-qv"; "run 3" where there are no knobs."""
    parts = [part for name, value in knobs.items() if (part := _part(name, value))]
    name = "-".join(parts)
    while len(name) > NAME_WIDTH and len(parts) > 1:
        parts.pop()
        name = "-".join(parts)
    name = name[:NAME_WIDTH] or f"run {number}"
    stem, count = name, 1
    while name in taken:
        count += 1
        name = f"{stem[: NAME_WIDTH - len(str(count)) - 1]}-{count}"
    return name


def _part(name: str, value: Any) -> str:
    label = short(name)
    if redact(value, name) == HIDDEN or value is None:
        return ""
    if isinstance(value, bool):
        return label if value else f"no-{label}"
    if isinstance(value, (int, float)):
        return f"{label}{format_number(value)}"
    if isinstance(value, list):
        return "".join(str(item).removesuffix("_proj")[:2] for item in value)
    return "".join(letter for letter in str(value).rsplit("/", 1)[-1] if letter.isalnum() or letter in "._-<>")[:16]


def format_changes(changes: dict[str, object]) -> str:
    """What a clone changes, secrets hidden: "lr=5e-4, r=8"."""
    shown = redact(changes).items()
    return ", ".join(f"{short(name)}={format_value(value)}" for name, value in shown) or "no changes"
