"""The rows a run trains on: the materialised datasets, the user's formatting, and a warm clone's remaining rows."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from datasets import Dataset, load_from_disk

from rftui.paths import ExperimentDir
from rftui.training.rows import Formatting, fits


def load(experiment: ExperimentDir, fit: int) -> tuple[Dataset, Dataset | None]:
    """The training and the evaluation set of one `run_fit`, memory-mapped from the experiment directory."""
    folder = experiment.data(fit)
    evaluation = folder / "eval"
    return load_from_disk(str(folder / "train")), load_from_disk(str(evaluation)) if evaluation.is_dir() else None


@contextmanager
def preparing(experiment: ExperimentDir, fit: int) -> Iterator[None]:
    """Held while rows are formatted and tokenised, so that another worker finds the result instead of repeating it."""
    with open(experiment.data(fit) / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def formatted(dataset: Dataset, function: Formatting | None) -> tuple[Dataset, Formatting | None]:
    """`dataset` with a dict-returning `function` applied to its rows, and what is left for the trainer to apply.

    TRL wants a formatting function to return text; one that returns a dict gives the row's new columns instead. Rows
    that are mapped already, on which the function fails, stay as they are.
    """
    if function is None or not len(dataset):
        return dataset, function
    try:
        made = function(dataset[0])
    except Exception:
        if fits(dataset.column_names):
            return dataset, None
        raise
    if not isinstance(made, dict):
        return dataset, function
    return dataset.map(function, remove_columns=[c for c in dataset.column_names if c not in made]), None


def remaining_rows(rows: int, seed: int, start: int, stop: int) -> list[int]:
    """The rows `start` to `stop`, counted over all epochs, in the order in which a trainer with this `data_seed` takes
    them: accelerate seeds each epoch's permutation with seed + epoch."""
    order: list[int] = []
    for epoch in range(start // rows, -(-stop // rows)):
        permutation = torch.randperm(rows, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        order += permutation[max(0, start - epoch * rows) : stop - epoch * rows]
    return order
