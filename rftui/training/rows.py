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
        self.text_field = config["training_args"].get("dataset_text_field", "text")

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
        return "prompt" not in found and bool(found & {self.text_field, "messages", "conversations"})

    def read(self, columns: Collection[str]) -> list[str]:
        """Which of these columns, where they meet the need, the trainer makes its tokens of."""
        found = set(columns)
        if self.algo == "GRPO":
            return ["prompt"]
        if self.algo == "DPO":
            return [name for name in ("prompt", "chosen", "rejected") if name in found]
        if {"prompt", "completion"} <= found:
            return ["prompt", "completion"]
        return [name for name in ("messages", "conversations", self.text_field, "input_ids") if name in found][:1]

    def foreign(self, columns: Collection[str], function: Formatting | None) -> list[str]:
        """Which of these columns SFT would train on as tokens and masks although the rows hold text for it, or get it
        from a `function` that the trainer applies."""
        if self.algo != "SFT" or not (function or self.met(set(columns) - {"input_ids"})):
            return []
        return [name for name in columns if name in _PREPARED]


_PREPARED = {
    *("input_ids", "labels", "attention_mask", "completion_mask", "assistant_masks", "seq_lengths", "position_ids"),
    *("token_type_ids", "mm_token_type_ids"),
}
"""Columns that SFT's trainer and its collator take for rows that are tokenised already."""


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
        if need.met(row) and lacks_column(error, row):
            return row
        raise _raised(name, error, 0, what, columns) from error
    if isinstance(made, dict):
        if not need.met(made):
            raise UserError(f"formatting_func {name} returns the columns {', '.join(made)}; {need.wanted}")
        return made
    if not isinstance(made, str) or not need.takes_text:
        or_text = ", or text" if need.takes_text else f", since {need.wanted}"
        raise UserError(
            f"formatting_func {name} returns {type(made).__name__}; it must return a dict of columns{or_text}"
        )
    if taken := [column for column in ("messages", "conversations", "prompt", "completion") if column in row]:
        raise UserError(
            f"formatting_func {name} returns text, but {what} has {' and '.join(taken)} already, which would train "
            'instead of it: leave the function out, or have it return {"text": ...}'
        )
    if need.text_field != "text":
        raise UserError(
            f"formatting_func {name} returns text, which TRL calls text, but dataset_text_field is "
            f"{need.text_field!r}: leave that out, or have the function return a dict"
        )
    return {"text": made}


def try_all(dataset: Dataset, function: Formatting, need: Need, what: str) -> str | None:
    """Call `function` on every row of `dataset`, called `what`. A notice where the rows were formatted beforehand.

    Raises UserError with the first row on which it does otherwise than on row 0: raises, or returns another kind of
    thing or other columns.
    """
    name, columns = plain_value(function), ", ".join(dataset.column_names)
    first: Any = None
    for number, row in enumerate(dataset):
        try:
            made = function(row)
        except Exception as error:
            if not (need.met(row) and lacks_column(error, row)) or (number and first is not None):
                raise _raised(name, error, number, what, columns) from error
            continue
        shape = set(made) if isinstance(made, dict) else type(made).__name__
        if number and first is None:
            raise UserError(
                f"formatting_func {name} fails on row 0 of {what}, not on row {number}: it must work on all or none"
            )
        first = shape if first is None else first
        if shape != first:
            shown = [", ".join(sorted(each)) if isinstance(each, set) else each for each in (first, shape)]
            raise UserError(
                f"formatting_func {name} returns {shown[0]} for row 0 of {what}, but {shown[1]} for row {number} "
                "(counted from 0): it must return the same columns for every row"
            )
    if first is None:
        return (
            f"formatting_func {name} wants a column that {what} lacks: the rows, {columns}, are taken as formatted "
            "already and train as they are"
        )
    return None


def lacks_column(error: Exception, columns: Collection[str]) -> bool:
    """Whether a formatting function fails since a column is gone, as on rows that it was mapped over before."""
    return isinstance(error, KeyError) and bool(error.args) and error.args[0] not in columns


def _raised(name: str, error: Exception, number: int, what: str, columns: str) -> UserError:
    reason = " ".join(str(error).split())
    return UserError(
        f"formatting_func {name} raised {type(error).__name__}: {reason} on row {number} (counted from 0) of {what}, "
        f"which has the columns {columns}"
    )


def _example(need: Need, row: dict[str, Any]) -> str:
    """A column that the rows lack."""
    columns = {"SFT": ("prompt", "completion"), "DPO": ("chosen", "rejected"), "GRPO": ("prompt",)}[need.algo]
    return next((column for column in columns if column not in row), columns[0])


def conversational(row: dict[str, Any]) -> bool:
    """Whether the row is a conversation, which the tokenizer's chat template must render."""
    value = row.get("messages") or row.get("conversations") or row.get("prompt") or row.get("chosen")
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)
