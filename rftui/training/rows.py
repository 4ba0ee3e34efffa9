"""Whether a run can train on the rows as they are, or as a formatting function makes them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from datasets import Dataset

from rftui.config.spec import Spec, plain_value
from rftui.errors import UserError

Formatting = Callable[[dict[str, Any]], Any]

_WANTED = {
    "SFT": "text, messages, or prompt and completion",
    "DPO": "chosen and rejected, and prompt unless both begin with it",
    "GRPO": "prompt",
}


class Need:
    """What a run with this algo and config needs of a row. `takes_text`: a formatting function may return text."""

    def __init__(self, algo: str, config: dict[str, Any]) -> None:
        self.algo = algo
        self.takes_text = algo == "SFT"
        self._text_field = config["training_args"].get("dataset_text_field", "text")

    @property
    def wanted(self) -> str:
        return f"{self.algo} needs {_WANTED[self.algo]}"

    def met(self, columns: Collection[str]) -> bool:
        """Whether rows with these columns can be trained on."""
        found = set(columns)
        if self.algo == "GRPO":
            return "prompt" in found
        if self.algo == "DPO":
            return {"chosen", "rejected"} <= found
        if "input_ids" in found or {"prompt", "completion"} <= found:
            return True
        # TRL takes a lone prompt for the first half of a prompt and completion, whatever else the row holds.
        return "prompt" not in found and bool(found & {self._text_field, "messages", "conversations"})


def formatting(spec: Spec, config_index: int, columns: Collection[str]) -> Formatting | None:
    """The formatting function for a run's rows: its own, or a sibling's where it has none and its rows do not fit."""
    algo, config = spec.run_configs[config_index].algo, spec.run_configs[config_index].config
    own: Formatting | None = config["formatting_func"]
    if own is not None or Need(algo, config).met(columns):
        return own
    siblings = (other.config["formatting_func"] for other in spec.run_configs if other.algo == algo)
    return next((function for function in siblings if function is not None), None)


def sample(dataset: Dataset, function: Formatting | None, need: Need, what: str) -> dict[str, Any]:
    """The first row of `dataset`, called `what`, as the trainer gets it. Raises UserError where that cannot use it."""
    row: dict[str, Any] = dataset[0]
    columns = ", ".join(dataset.column_names)
    if function is None:
        if not need.met(row):
            raise UserError(
                f"{what} has the columns {columns}; {need.wanted}: rename them, as in "
                f'dataset.rename_column("{next(iter(row))}", "{_example(need, row)}"), or give a formatting_func that '
                "returns them"
            )
        return row
    name = plain_value(function)
    try:
        made = function(row)
    except Exception as error:
        if need.met(row):
            return row
        reason = " ".join(str(error).split())
        raise UserError(
            f"formatting_func {name} raised {type(error).__name__}: {reason} on the first row of {what}, "
            f"which has the columns {columns}"
        ) from error
    if isinstance(made, dict):
        if not need.met(made):
            raise UserError(f"formatting_func {name} returns the columns {', '.join(made)}; {need.wanted}")
        return made
    if not isinstance(made, str) or not need.takes_text:
        or_text = ", or text" if need.takes_text else f", since {need.wanted}"
        raise UserError(
            f"formatting_func {name} returns {type(made).__name__}; it must return a dict of columns{or_text}"
        )
    if {"prompt", "completion"} <= set(row):
        raise UserError(
            f"formatting_func {name} returns text, but {what} has prompt and completion already: leave the function "
            'out, or have it return {"text": ...}'
        )
    return {"text": made}


def _example(need: Need, row: dict[str, Any]) -> str:
    """A column that the rows lack."""
    columns = {"SFT": ("prompt", "completion"), "DPO": ("chosen", "rejected"), "GRPO": ("prompt",)}[need.algo]
    return next((column for column in columns if column not in row), columns[0])


def conversational(row: dict[str, Any]) -> bool:
    """Whether the row is a conversation, which the tokenizer's chat template must render."""
    value = row.get("messages") or row.get("conversations") or row.get("prompt") or row.get("chosen")
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)
