"""The rows a run trains on: the materialised datasets, the user's formatting, and the order of an epoch."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import datasets.arrow_dataset
from datasets import Dataset, load_from_disk

from rftui.config import pickles
from rftui.errors import UserError
from rftui.paths import ExperimentDir
from rftui.training.rows import Formatting, Need, lacks_column


def load(experiment: ExperimentDir, fit: int) -> tuple[Dataset, Dataset | None]:
    """The training and the evaluation set of one `run_fit`, memory-mapped from the experiment directory."""
    folder = experiment.data(fit)
    evaluation = folder / "eval"
    return load_from_disk(str(folder / "train")), load_from_disk(str(evaluation)) if evaluation.is_dir() else None


@contextmanager
def preparing(experiment: ExperimentDir, fit: int) -> Iterator[None]:
    """Held while rows are formatted and tokenised, so that another worker finds the result instead of repeating it."""
    folder = experiment.data(fit)
    with open(folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        except BaseException:
            for half_made in folder.glob("*/tmp*"):
                half_made.unlink(missing_ok=True)
            raise


_watch = threading.local()


class _Progress(datasets.arrow_dataset.hf_tqdm):
    """What `Dataset.map` tells its progress to, up to twenty times a second, whoever calls it: TRL, too."""

    def update(self, n: float | None = 1) -> bool | None:
        if look := getattr(_watch, "look", None):
            look()
        shown: bool | None = super().update(n)
        return shown


datasets.arrow_dataset.hf_tqdm = _Progress


@contextmanager
def interruptible(look: Callable[[], None]) -> Iterator[None]:
    """Have `look` called again and again while rows are mapped by this thread; what it raises ends that."""
    _watch.look = look
    try:
        yield
    finally:
        _watch.look = None


def formatted(dataset: Dataset, function: Formatting | None, need: Need) -> tuple[Dataset, Formatting | None]:
    """`dataset` with a dict-returning `function` applied to its rows, and what is left for the trainer to apply.

    TRL wants a formatting function to return text; one that returns a dict gives the row's new columns instead (GRPO's
    rows keep the others, which its reward functions get). Rows that are mapped already, so that the function misses a
    column, stay as they are. Columns that the trainer would take for tokens are left out beside text.
    """
    replaced, left = applied(dataset, function, need)
    if replaced is None:
        made = dataset
    else:
        cached = False if keeps(function, dataset) else None
        made = dataset.map(function, remove_columns=replaced, load_from_cache_file=cached)
    foreign = need.foreign(made.column_names, left)
    return (made.remove_columns(foreign) if foreign else made), left


def applied(dataset: Dataset, function: Formatting | None, need: Need) -> tuple[list[str] | None, Formatting | None]:
    """What `formatted` does: the columns that mapping `function` removes, or None where it is not mapped; and what is
    left for the trainer to apply."""
    if function is None or not len(dataset):
        return None, function
    try:
        made = copied(function)(dataset[0])
    except Exception as error:
        if need.met(dataset.column_names) and lacks_column(error, dataset.column_names):
            return None, None
        raise
    if not isinstance(made, dict):
        return None, function
    return [] if need.algo == "GRPO" else [name for name in dataset.column_names if name not in made], None


def copied(function: Formatting) -> Formatting:
    """A copy to try it with, so that the function itself has kept nothing of that when the rows are mapped."""
    with pickles.by_value():
        function = pickles.Unpickler(pickles.dumps(function)).load()
    return function


def keeps(function: Formatting | None, dataset: Dataset) -> bool:
    """Whether the function keeps something from row to row, so that rows that it made for another run, out of
    `datasets`' cache, would leave it without."""
    if function is None or not len(dataset):
        return False
    tried = copied(function)
    with suppress(Exception):
        before = pickles.dumps(tried)
        tried(dataset[0])
        return pickles.dumps(tried) != before
    return False


@contextmanager
def uncached(needed: bool) -> Iterator[None]:
    """Where it is `needed`, what is mapped within it is neither taken from `datasets`' cache nor put there."""
    if needed:
        datasets.disable_caching()
    try:
        yield
    finally:
        if needed:
            datasets.enable_caching()


def epoch_order(algo: str, args: dict[str, Any]) -> dict[str, Any]:
    """How a run with these training arguments orders its rows, as arguments of `plain.remaining_rows`.

    Raises UserError where they ask for an order that cannot be told.
    """
    strategy = args.get("train_sampling_strategy", "random")
    if strategy not in ("random", "sequential"):
        raise UserError(f"a warm start cannot tell the rows that are left of train_sampling_strategy={strategy!r}")
    if algo == "GRPO":
        return {"seed": args["seed"], "shuffled": args.get("shuffle_dataset", True), "one_generator": True}
    return {"seed": args["data_seed"], "shuffled": strategy == "random"}
