"""Whether SFT can train on the rows as they are, or as a formatting function makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from datasets import Dataset

from rftui.automl.spec import Spec, plain_value
from rftui.faults import Fault

Formatting = Callable[[dict[str, Any]], Any]

WANTED = "text, messages, or prompt and completion"


def fits(columns: list[str], text_field: str = "text") -> bool:
    """Whether SFT can train on rows with these columns."""
    found = set(columns)
    if "input_ids" in found or {"prompt", "completion"} <= found:
        return True
    # TRL takes a lone prompt for the first half of a prompt and completion, whatever else the row holds.
    return "prompt" not in found and bool(found & {text_field, "messages", "conversations"})


def formatting(spec: Spec, leaf: int, columns: list[str]) -> Formatting | None:
    """The formatting function for a leaf's rows: its own, or a sibling's where it has none and its rows do not fit."""
    config = spec.leaves[leaf].config
    own: Formatting | None = config["formatting_func"]
    if own is not None or fits(columns, config["training_args"].get("dataset_text_field", "text")):
        return own
    return next((func for other in spec.leaves if (func := other.config["formatting_func"]) is not None), None)


def sample(dataset: Dataset, function: Formatting | None, text_field: str, what: str) -> dict[str, Any]:
    """The first row of `dataset`, called `what`, as SFT gets it. Raises Fault, one line, where it cannot use it."""
    row: dict[str, Any] = dataset[0]
    columns = ", ".join(dataset.column_names)
    if function is None:
        if not fits(list(row), text_field):
            raise Fault(
                f"{what} has the columns {columns}; SFT needs {WANTED}: rename them, or give a formatting_func that "
                "returns them"
            )
        return row
    name = plain_value(function)
    try:
        made = function(row)
    except Exception as error:
        if fits(list(row), text_field):
            return row
        reason = " ".join(str(error).split())
        raise Fault(
            f"formatting_func {name} raised {type(error).__name__}: {reason} on the first row of {what}, "
            f"which has the columns {columns}"
        ) from error
    if isinstance(made, dict):
        if not fits(list(made), text_field):
            raise Fault(f"formatting_func {name} returns the columns {', '.join(made)}; SFT needs {WANTED}")
        return made
    if not isinstance(made, str):
        raise Fault(f"formatting_func {name} returns {type(made).__name__}; it must return a dict of columns, or text")
    if {"prompt", "completion"} <= set(row):
        raise Fault(
            f"formatting_func {name} returns text, but {what} has prompt and completion already: leave the function "
            'out, or have it return {"text": ...}'
        )
    return {"text": made}


def conversational(row: dict[str, Any]) -> bool:
    """Whether the row is a conversation, which the tokenizer's chat template must render."""
    value = row.get("messages") or row.get("conversations") or row.get("prompt")
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)
