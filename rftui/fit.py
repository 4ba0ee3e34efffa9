"""One `run_fit`: what it was given, checked as far as it can be without TRL, and written into the experiment."""

from __future__ import annotations

import shutil
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

from rftui import paths
from rftui.automl import rules
from rftui.automl.sources import source
from rftui.chunks import chunks_per_epoch
from rftui.config.generation import GENERATION, generation_faults, rows_per_step
from rftui.config.nearest import nearest
from rftui.config.spec import RunConfig, Spec, plain
from rftui.config.values import native, number_of
from rftui.errors import UserError
from rftui.formatting import format_bytes
from rftui.given_rows import as_dataset, written_bytes
from rftui.naming import run_name
from rftui.runs import Run

_LITTLE = 2 * 2**30
_TOO_LITTLE = 2**27
"""Free bytes of the disk with which a fit is warned about, and refused."""


class Fit:
    """One `run_fit`, checked as far as it can be without TRL. Raises one UserError for everything that is wrong."""

    def __init__(
        self,
        group: Any,
        create_model_fn: Any,
        datasets: dict[str, Any],
        num_chunks: int | None,
        chunk_size: int | None,
        seed: int,
        given_rules: Any,
        unknown: dict[str, Any],
        *,
        setup_fn: Any = None,
        drop_bad_rows: bool = False,
    ) -> None:
        self.notices: list[str] = []
        faults = [f"run_fit has no argument {name!r}{nearest(name, _ARGUMENTS)}" for name in unknown]
        if create_model_fn is not None and not callable(create_model_fn):
            faults.append(
                f"create_model_fn is {type(create_model_fn).__name__}, not a function; the order is "
                "run_fit(config_group, create_model_fn, train_dataset, eval_dataset, num_chunks, seed)"
            )
        if setup_fn is not None and not callable(setup_fn):
            faults.append(f"setup_fn is {type(setup_fn).__name__}, not a function without arguments")
        num_chunks, chunk_size, seed = (
            self._whole(name, value)
            for name, value in (("num_chunks", num_chunks), ("chunk_size", chunk_size), ("seed", seed))
        )
        faults += [
            f"{name} must be a whole number, {least} or more, not {value!r}"
            for name, value, least in (("num_chunks", num_chunks, 1), ("chunk_size", chunk_size, 1), ("seed", seed, 0))
            if value is not None and (type(value) is not int or value < least)
        ]
        self.rules, troubles = rules.switches(given_rules)
        faults += troubles
        self.datasets = {name: _dataset(given, name, faults) for name, given in datasets.items()}
        run_configs: list[RunConfig] = []
        try:
            run_configs = source(group).propose([])
        except UserError as fault:
            faults += fault.lines
        self.spec = Spec(
            run_configs,
            create_model_fn,
            num_chunks,
            chunk_size,
            seed,
            has_eval=self.datasets["eval"] is not None,
            setup_fn=setup_fn,
        )
        if drop_bad_rows and not faults:
            self._drop_bad_rows(faults)
        if not faults:
            faults = self.spec.troubles()
        if faults:
            raise UserError(*faults)
        self._plan_chunks()

    def _drop_bad_rows(self, faults: list[str]) -> None:
        """Leave the rows out that any of the configs cannot train on as they are; the notices count them."""
        from rftui.training.row_faults import bad_rows
        from rftui.training.rows import Need, formatting

        for name, dataset in self.datasets.items():
            bad: set[int] = set()
            for index, run_config in enumerate(self.spec.run_configs if dataset is not None else ()):
                need = Need(run_config.algo, run_config.config)
                if formatting(self.spec, index, dataset.column_names) is None and need.met(dataset.column_names):
                    bad |= set(bad_rows(dataset, need))
            if bad:
                self.datasets[name] = dataset.select([row for row in range(len(dataset)) if row not in bad])
                shown = ", ".join(map(str, sorted(bad)[:5])) + ", ..." * (len(bad) > 5)
                self.notices.append(
                    f"{len(bad)} of the {len(dataset)} rows of {name}_dataset are left out, since a column is null "
                    f"or empty (rows {shown}, counted from 0)"
                )
                if len(bad) == len(dataset):
                    faults.append(f"{name}_dataset has no row that can be trained on: {self.notices[-1]}")

    def _whole(self, name: str, value: Any) -> Any:
        """A whole number as the user may hold it; what is none stays."""
        number = number_of(value, whole=True)
        if number is None:
            return native(value, name)
        self.notices.append(f"{name} is text, {value!r}: taken as the number {number}")
        return number

    def _plan_chunks(self) -> None:
        spec, rows = self.spec, len(self.datasets["train"])
        self.chunks = chunks_per_epoch(rows, spec.num_chunks, spec.chunk_size)
        if spec.num_chunks and spec.chunk_size and self.chunks != chunks_per_epoch(rows, None, spec.chunk_size):
            self.notices.append(f"num_chunks {spec.num_chunks} wins over chunk_size {spec.chunk_size}")
        if self.chunks < (spec.num_chunks or (1 if spec.chunk_size else 4)):
            self.notices.append(f"{rows} rows make {self.chunks} chunk{'s' * (self.chunks > 1)}, one row each")
        steps = min(int(rows // _batch(run_config)) for run_config in spec.run_configs)
        if self.chunks > 1 and steps < 10 * self.chunks:
            self.notices.append(
                f"a chunk is only about {max(1, steps // self.chunks)} optimizer steps of the largest batch; "
                f"with num_chunks={max(1, steps // 10)} chunks would be easier to compare"
            )

    def check_disk(self, home: Path) -> None:
        """Raises UserError where the disk of `home` has no room for the rows and some checkpoints."""
        there = next(path for path in (home, *home.parents) if path.exists())
        free = shutil.disk_usage(there).free
        rows = sum(written_bytes(dataset) for dataset in self.datasets.values() if dataset is not None)
        if free < rows + _TOO_LITTLE:
            raise UserError(
                f"only {format_bytes(free)} are free on the disk of {home}, and the rows and checkpoints need "
                f"{format_bytes(rows + _TOO_LITTLE)} or more: free some, or choose another home with --home DIR"
            )
        if free < rows + _LITTLE:
            self.notices.append(
                f"only {format_bytes(free)} are free on the disk of {home}: a run that finds it full is paused"
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
        for switch in self.rules.values():
            switch.after = {run.id: run.chunks for run in store.runs()}  # earlier fits were not given these rules
            if switch.on:
                store.log(f"Rule {switch.rule.name} is on: {switch.rule.about}", level="info")
        store.set_meta("rules", rules.written(self.rules))
        taken: set[str] = set()
        for index, run_config in enumerate(self.spec.run_configs):
            name = run_name(run_config.knobs, index + 1, taken)
            taken.add(name)
            run = Run(0, name, run_config.algo, number, index, created=time.time())
            run.config, run.knobs = plain(run_config), run_config.knobs
            store.add_run(run)
        for notice in self.notices:
            store.log(notice, level="notice")
        return number


_ARGUMENTS = (
    "config_group create_model_fn train_dataset eval_dataset num_chunks seed chunk_size "
    "param_config create_model_func num_shards rules setup_fn drop_bad_rows"
).split()


def _dataset(given: Any, name: str, faults: list[str]) -> Any:
    """The dataset as a `datasets.Dataset`, or None; what is wrong with it goes to `faults`."""
    if given is None:
        if name == "train":
            faults.append("run_fit needs a train_dataset: a datasets.Dataset, or a list of dicts")
        return None
    return as_dataset(given, f"{name}_dataset", faults)


def _batch(run_config: RunConfig) -> Fraction:
    """Rows that an optimizer step of the config takes; what makes no sense is told by the check of the configs."""
    args = run_config.config["training_args"]
    sizes = ("per_device_train_batch_size", "gradient_accumulation_steps", *GENERATION)
    sane = all(args.get(name) is None or (type(args[name]) is int and args[name] > 0) for name in sizes)
    if not sane or (run_config.algo == "GRPO" and generation_faults(args, evaluates=False)):
        return Fraction(1)
    return rows_per_step(run_config.algo, args)


def _materialise(dataset: Any, folder: Path) -> None:
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        dataset.save_to_disk(str(folder))
        for path in [*folder.rglob("*"), folder, folder.parent, folder.parent.parent]:
            paths.sync(path)
    except OSError as error:
        raise UserError(f"cannot write the rows to {folder}: {error.strerror or error}") from error
    finally:
        if shown:
            enable_progress_bars()
