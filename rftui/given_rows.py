"""The rows that a user gives, as a `datasets.Dataset` with every column of every row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def as_dataset(given: Any, name: str, faults: list[str]) -> Any:
    """The dataset called `name` as a `datasets.Dataset`, or None; what is wrong with it goes to `faults`."""
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict

    if isinstance(given, (list, tuple)) and all(isinstance(row, Mapping) for row in given):
        given = _of_rows(given, name, faults)
        if given is None:
            return None
    if isinstance(given, (DatasetDict, IterableDatasetDict, dict)):
        split = next(iter(given), "train")
        faults.append(
            f"{name} holds several splits ({', '.join(map(str, given))}): pick one, as in dataset[{split!r}]"
        )
    elif isinstance(given, IterableDataset):
        faults.append(
            f"{name} is an IterableDataset, whose rows cannot be shuffled alike for all runs: take as many as you "
            "need, with Dataset.from_list(list(dataset.take(10_000)))"
        )
    elif not isinstance(given, Dataset):
        faults.append(f"{name} is {type(given).__name__}; it must be a datasets.Dataset, or a list of dicts")
    elif not len(given):
        faults.append(f"{name} has no rows")
    elif fault := _format_fault(given, name):
        faults.append(fault)
    else:
        return given
    return None


def written_bytes(dataset: Any) -> int:
    """About how many bytes the rows of `dataset` are; of a selection, its share of the table that it selects from."""
    table = dataset.data
    return int(table.nbytes * len(dataset) / table.num_rows) if table.num_rows else 0


def _of_rows(rows: Sequence[Mapping[Any, Any]], name: str, faults: list[str]) -> Any:
    """A Dataset of mappings that need not have the same keys; what a row lacks is null there."""
    from datasets import Dataset

    columns = dict.fromkeys(key for row in rows for key in row)
    if odd := [column for column in columns if not isinstance(column, str)]:
        faults.append(f"{name} has a column called {odd[0]!r:.60}; names of columns are text")
        return None
    made = {column: [_plain(row.get(column)) for row in rows] for column in columns}
    try:
        return Dataset.from_dict(made)
    except Exception as whole:  # pyarrow's errors, and the one for text that is not UTF-8
        told = [
            f"{name} cannot be made a Dataset: row {_first_bad(values)} (counted from 0) does not fit the rows before "
            f"it in column {column!a}: {' '.join(str(error).split())}"
            for column, values in made.items()
            if (error := _refused(values))
        ]
        faults.extend(told or [f"{name} cannot be made a Dataset: {' '.join(str(whole).split())}"])
    return None


def _plain(value: Any) -> Any:
    """Other mappings than dicts, which Arrow does not know, as dicts."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [_plain(item) for item in value]
    return value


def _refused(values: list[Any]) -> Exception | None:
    from datasets import Dataset

    try:
        Dataset.from_dict({"column": values})
    except Exception as error:
        return error
    return None


def _first_bad(values: list[Any]) -> int:
    """The first row with which the values up to it make no column."""
    good, bad = 0, len(values)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if _refused(values[:middle]) else (middle, bad)
    return bad - 1


def _format_fault(dataset: Any, name: str) -> str | None:
    """Why the format that is set on the dataset cannot be kept with it; those of numpy, torch and the like can."""
    shown = dataset.format
    if shown["type"] == "custom":
        return (
            f"{name} has a transform set, which makes its rows anew whenever they are read: apply it once, "
            "with dataset.with_format(None).map(...), or leave it out with dataset.with_format(None)"
        )
    if set(shown["columns"]) != set(dataset.column_names) and not shown["output_all_columns"]:
        return (
            f"{name} has a format that shows only the columns {', '.join(shown['columns'])}: say which you mean, "
            f"with dataset.select_columns({shown['columns']!r}) or dataset.with_format(None)"
        )
    try:
        json.dumps(shown["format_kwargs"])
    except (TypeError, ValueError):
        return f"{name} has the format {shown['type']} with options that cannot be kept: use dataset.with_format(None)"
    return None
