"""The rows a run trains on: the materialised datasets, the user's formatting, and a warm clone's remaining rows."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from datasets import Dataset, load_from_disk

from rftui.faults import Fault
from rftui.paths import ExperimentDir
from rftui.training.rows import Formatting, Need


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


def formatted(dataset: Dataset, function: Formatting | None, need: Need) -> tuple[Dataset, Formatting | None]:
    """`dataset` with a dict-returning `function` applied to its rows, and what is left for the trainer to apply.

    TRL wants a formatting function to return text; one that returns a dict gives the row's new columns instead (GRPO's
    rows keep the others, which its reward functions get). Rows that are mapped already, on which the function fails,
    stay as they are.
    """
    if function is None or not len(dataset):
        return dataset, function
    try:
        made = function(dataset[0])
    except Exception:
        if need.met(dataset.column_names):
            return dataset, None
        raise
    if not isinstance(made, dict):
        return dataset, function
    replaced = [] if need.algo == "GRPO" else [name for name in dataset.column_names if name not in made]
    return dataset.map(function, remove_columns=replaced), None


def remaining_rows(algo: str, args: dict[str, Any], rows: int, used: int, start: int, stop: int) -> list[int]:
    """The rows `start` to `stop`, counted over all epochs of `used` rows, in the order in which a trainer takes them.

    An epoch takes the first `used` of a permutation of all the `rows`. For SFT and DPO accelerate seeds each epoch's
    with data_seed + epoch; for GRPO, TRL's RepeatSampler draws one after the other from one generator, seeded with
    seed. Raises Fault where `args`, the training arguments as set, ask for an order that
    cannot be told.
    """
    strategy = args.get("train_sampling_strategy", "random")
    if strategy not in ("random", "sequential"):
        raise Fault(f"a warm start cannot tell the rows that are left of train_sampling_strategy={strategy!r}")
    shuffled = args.get("shuffle_dataset", True) if algo == "GRPO" else strategy == "random"
    generator = torch.Generator()
    if algo == "GRPO":
        generator.manual_seed(args["seed"])
    order: list[int] = []
    for epoch in range(-(-stop // used)):
        if algo != "GRPO":
            generator.manual_seed(args["data_seed"] + epoch)
        permutation = torch.randperm(rows, generator=generator).tolist() if shuffled else list(range(rows))
        order += permutation[:used][max(0, start - epoch * used) : max(0, stop - epoch * used)]
    return order
