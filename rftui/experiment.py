"""`Experiment`: what a user's script holds."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn, Self

from rftui import paths
from rftui.automl.generation import GENERATION, generation_faults, rows_per_step
from rftui.automl.grid import expand
from rftui.automl.nearest import nearest
from rftui.automl.spec import Leaf, Spec, plain, run_name
from rftui.chunks import chunks_per_epoch
from rftui.faults import INTERRUPTED, USAGE, Fault
from rftui.runs import Run

_environment: dict[str, str] = {}
"""The RFTUI_* variables that this process was started with; they are taken out of `os.environ` for its children."""


class Experiment:
    """A named set of runs, kept in a directory; `run_fit` trains them.

    `experiment_path` (or `experiments_path`) is the directory in which experiments lie, unless --home or RFTUI_HOME
    says otherwise. A name that is taken gets a number. In a plain script a Fault is printed and ends the script with
    its exit code; in an interactive session it is raised.
    """

    def __init__(
        self,
        experiment_name: str,
        experiment_path: str | os.PathLike[str] | None = None,
        experiments_path: str | os.PathLike[str] | None = None,
        mode: str | None = None,
    ) -> None:
        _refuse_children()
        _environment.update({name: os.environ.pop(name) for name in list(os.environ) if name.startswith("RFTUI_")})
        if mode not in (None, "fit"):
            _fail(Fault(f"mode {mode!r} is not here: rftui trains models, which is mode='fit'"))
        self._asked = experiment_name
        self._home = paths.home_dir(_environment.get("RFTUI_HOME") or experiment_path or experiments_path)
        self._directory: paths.ExperimentDir | None = None
        self._ended = False

    @property
    def name(self) -> str:
        """The experiment's name: the one asked for, with a number once that turns out to be taken."""
        return self._directory.name if self._directory else self._asked

    @property
    def path(self) -> Path | None:
        """Its directory, once a `run_fit` has made it."""
        return self._directory.path if self._directory else None

    def run_fit(
        self,
        config_group: Any = None,
        create_model_fn: Callable[..., Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        num_chunks: int | None = None,
        seed: int = 42,
        chunk_size: int | None = None,
        *,
        param_config: Any = None,
        create_model_func: Callable[..., Any] | None = None,
        num_shards: int | None = None,
        **unknown: Any,
    ) -> list[Run]:
        """Train every config of the group on the dataset, chunk by chunk, and return the runs as they ended.

        Datasets are `datasets.Dataset`s or lists of dicts. `create_model_fn(config)` returns (model, tokenizer);
        without it they are loaded from `model_name`. An epoch is cut into `num_chunks` (or `num_shards`; 4 unless
        told) chunks or into chunks of `chunk_size` rows. Faults that are known before anything starts come together.
        """
        try:
            fit = _Fit(
                config_group if config_group is not None else param_config,
                create_model_fn or create_model_func,
                {"train": train_dataset, "eval": eval_dataset},
                num_chunks if num_chunks is not None else num_shards,
                chunk_size,
                seed,
                unknown,
            )
            if self._ended:
                raise Fault(f"experiment {self.name!r} was ended; make a new Experiment for another run_fit")
            return self._train(fit)
        except Fault as fault:
            _fail(fault)

    def end(self) -> None:
        """Nothing more will be trained."""
        self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _train(self, fit: _Fit) -> list[Run]:
        from rftui.scheduler.store import Store

        created = self._directory is None
        try:
            number, code = self._schedule(fit)
        except Fault as fault:
            if fault.code == USAGE and created and self._directory:
                # Nothing was ever trained in it: the next try may have the name.
                shutil.rmtree(self._directory.path, ignore_errors=True)
                self._directory = None
            raise
        if code == INTERRUPTED:
            raise Fault(f"interrupted; `rftui open {self.name}` takes it up again", code=INTERRUPTED)
        assert self._directory
        return [run for run in Store.read(self._directory.db).runs() if run.fit == number]

    def _schedule(self, fit: _Fit) -> tuple[int, int]:
        """Write the fit down, making the experiment where it is the first one, and train it: its number, and the
        scheduler's exit code."""
        from rftui.scheduler import loop
        from rftui.scheduler.store import Store

        if self._directory is None:
            self._directory = paths.create(self._home, self._asked)
            if self._directory.name != self._asked:
                old = f"`rftui open {self._asked}` opens the old one"
                fit.notices.insert(0, f"there is an experiment {self._asked!r}; this one is {self.name!r} ({old})")
                print(fit.notices[0], flush=True)
            store = Store.create(self._directory.db)
        else:
            store = Store(self._directory.db)
        try:
            number = fit.write(self._directory, store)
        finally:
            store.close()
        rendezvous = _environment.get("RFTUI_RENDEZVOUS")
        code = loop.run(
            self._directory,
            fit=number,
            rendezvous=Path(rendezvous) if rendezvous else None,
            devices=_environment.get("RFTUI_DEVICES", "auto"),
            viewer=_environment.get("RFTUI_VIEWER") == "1",
        )
        return number, code


class _Fit:
    """One `run_fit`, checked as far as it can be without TRL. Raises one Fault for everything that is wrong."""

    def __init__(
        self,
        group: Any,
        create_model_fn: Any,
        datasets: dict[str, Any],
        num_chunks: int | None,
        chunk_size: int | None,
        seed: int,
        unknown: dict[str, Any],
    ) -> None:
        self.notices: list[str] = []
        faults = [f"run_fit has no argument {name!r}{nearest(name, _ARGUMENTS)}" for name in unknown]
        if create_model_fn is not None and not callable(create_model_fn):
            faults.append(
                f"create_model_fn is {type(create_model_fn).__name__}, not a function; the order is "
                "run_fit(config_group, create_model_fn, train_dataset, eval_dataset, num_chunks, seed)"
            )
        faults += [
            f"{name} must be a whole number, {least} or more, not {value!r}"
            for name, value, least in (("num_chunks", num_chunks, 1), ("chunk_size", chunk_size, 1), ("seed", seed, 0))
            if value is not None and (type(value) is not int or value < least)
        ]
        self.datasets = {name: _dataset(given, name, faults) for name, given in datasets.items()}
        leaves: list[Leaf] = []
        try:
            leaves = expand([] if group is None else group)
        except Fault as fault:
            faults += fault.lines
        self.spec = Spec(
            leaves, create_model_fn, num_chunks, chunk_size, seed, has_eval=self.datasets["eval"] is not None
        )
        if not faults:
            faults = self.spec.troubles()
        if faults:
            raise Fault(*faults)
        self._plan_chunks()

    def _plan_chunks(self) -> None:
        spec, rows = self.spec, len(self.datasets["train"])
        self.chunks = chunks_per_epoch(rows, spec.num_chunks, spec.chunk_size)
        if spec.num_chunks and spec.chunk_size and self.chunks != chunks_per_epoch(rows, None, spec.chunk_size):
            self.notices.append(f"num_chunks {spec.num_chunks} wins over chunk_size {spec.chunk_size}")
        if self.chunks < (spec.num_chunks or (1 if spec.chunk_size else 4)):
            self.notices.append(f"{rows} rows make {self.chunks} chunk{'s' * (self.chunks > 1)}, one row each")
        steps = min(int(rows // _batch(leaf)) for leaf in spec.leaves)
        if self.chunks > 1 and steps < 10 * self.chunks:
            self.notices.append(
                f"a chunk is only about {max(1, steps // self.chunks)} optimizer steps of the largest batch; "
                f"with num_chunks={max(1, steps // 10)} chunks would be easier to compare"
            )

    def write(self, directory: paths.ExperimentDir, store: Any) -> int:
        """Datasets, spec, and a run for each config, into the experiment. Returns the number of the fit."""
        rows = {name: len(dataset) if dataset is not None else 0 for name, dataset in self.datasets.items()}
        number: int = store.add_fit(
            num_chunks=self.spec.num_chunks,
            chunk_size=self.spec.chunk_size,
            seed=self.spec.seed,
            rows=rows["train"],
            eval_rows=rows["eval"],
        )
        for name, dataset in self.datasets.items():
            if dataset is not None:
                _materialise(dataset, directory.data(number) / name)
        self.spec.save(directory.spec(number))
        taken: set[str] = set()
        for leaf_number, leaf in enumerate(self.spec.leaves):
            name = run_name(leaf.knobs, leaf_number + 1, taken)
            taken.add(name)
            run = Run(0, name, leaf.algo, number, leaf_number, created=time.time())
            run.config, run.knobs = plain(leaf), leaf.knobs
            store.add_run(run)
        for notice in self.notices:
            store.log(notice, level="notice")
        return number


_ARGUMENTS = (
    "config_group create_model_fn train_dataset eval_dataset num_chunks seed chunk_size "
    "param_config create_model_func num_shards"
).split()


def _dataset(given: Any, name: str, faults: list[str]) -> Any:
    """The dataset as a `datasets.Dataset`, or None; what is wrong with it goes to `faults`."""
    if given is None:
        if name == "train":
            faults.append("run_fit needs a train_dataset: a datasets.Dataset, or a list of dicts")
        return None
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict

    name = f"{name}_dataset"
    if isinstance(given, list) and all(isinstance(row, dict) for row in given):
        try:
            given = Dataset.from_list(given)
        except Exception as error:  # pyarrow's errors, for columns that hold values of several types
            faults.append(f"{name} cannot be made a Dataset: {' '.join(str(error).split())}")
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
    else:
        return given
    return None


def _batch(leaf: Leaf) -> Fraction:
    """Rows that an optimizer step of the config takes; what makes no sense is told by the check of the configs."""
    args = leaf.config["training_args"]
    sizes = ("per_device_train_batch_size", "gradient_accumulation_steps", *GENERATION)
    sane = all(args.get(name) is None or (type(args[name]) is int and args[name] > 0) for name in sizes)
    if not sane or (leaf.algo == "GRPO" and generation_faults(args, evaluates=False)):
        return Fraction(1)
    return rows_per_step(leaf.algo, args)


def _materialise(dataset: Any, folder: Path) -> None:
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        dataset.save_to_disk(str(folder))
        for path in [*folder.rglob("*"), folder, folder.parent, folder.parent.parent]:
            paths.sync(path)
    except OSError as error:
        raise Fault(f"cannot write the rows to {folder}: {error.strerror or error}") from error
    finally:
        if shown:
            enable_progress_bars()


def _refuse_children() -> None:
    """A child process that imports the user's script must not start the experiment again."""
    if "RFTUI_WORKER" in os.environ or multiprocessing.parent_process() is not None:
        raise Fault(
            "an Experiment was made while a child process imported the script; put what makes it under "
            'if __name__ == "__main__":'
        )


def _fail(fault: Fault) -> NoReturn:
    """End a plain script with the fault's lines and exit code; where somebody is there to see it, raise it."""
    if _interactive() or threading.current_thread() is not threading.main_thread():
        raise fault
    for line in fault.lines:
        print(f"rftui: {line}", file=sys.stderr, flush=True)
    sys.exit(fault.code)


def _interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or "get_ipython" in vars(sys.modules["builtins"])
