"""`Experiment`: what a user's script holds."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn, Self

from rftui import paths
from rftui.errors import INTERRUPTED, USAGE, UserError
from rftui.fit import Fit
from rftui.runs import Run


class Experiment:
    """A named set of runs, kept in a directory; `run_fit` trains them.

    `experiment_path` (or `experiments_path`) is the directory in which experiments lie, unless --home or RFTUI_HOME
    says otherwise. A name that is taken gets a number. In a plain script a UserError is printed and ends the script
    with its exit code; in an interactive session it is raised.
    """

    def __init__(
        self,
        experiment_name: str,
        experiment_path: str | os.PathLike[str] | None = None,
        experiments_path: str | os.PathLike[str] | None = None,
        mode: str | None = None,
    ) -> None:
        _refuse_children()
        paths.take_environment()
        if mode not in (None, "fit"):
            _fail(UserError(f"mode {mode!r} is not supported: rftui trains models (mode='fit')"))
        self._asked = experiment_name
        self._home = paths.home_dir(paths.setting("HOME") or experiment_path or experiments_path)
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
        rules: Any = None,
        setup_fn: Callable[[], Any] | None = None,
        drop_bad_rows: bool = False,
        **unknown: Any,
    ) -> list[Run]:
        """Train every config of the group on the dataset, chunk by chunk, and return the runs as they ended.

        Datasets are `datasets.Dataset`s or lists of dicts. `create_model_fn(config)` returns (model, tokenizer);
        without it they are loaded from `model_name`. An epoch is cut into `num_chunks` (or `num_shards`; 4 if not
        given) chunks or into chunks of `chunk_size` rows. `rules` (one, or a list) stop runs on the way. `seed` sets
        the rows' order. Workers do not run the script: what it registers or patches in libraries goes into
        `setup_fn()`, which each of them calls once before it makes anything. `drop_bad_rows` leaves out, with a
        notice, rows in which what a config trains on is null or empty (else they are faults); rows on which a
        formatting function fails are always faults. Faults that are known before anything
        starts come together.
        """
        try:
            fit = Fit(
                config_group if config_group is not None else param_config,
                create_model_fn or create_model_func,
                {"train": train_dataset, "eval": eval_dataset},
                num_chunks if num_chunks is not None else num_shards,
                chunk_size,
                seed,
                rules,
                unknown,
                setup_fn=setup_fn,
                drop_bad_rows=drop_bad_rows,
            )
            if self._ended:
                raise UserError(f"experiment {self.name!r} has ended; create a new Experiment for another run_fit")
            return self._train(fit)
        except UserError as fault:
            _fail(fault)

    def end(self) -> None:
        """Nothing more will be trained."""
        self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _train(self, fit: Fit) -> list[Run]:
        from rftui.store import Store

        created = self._directory is None
        try:
            number, code = self._schedule(fit)
        except UserError as fault:
            if fault.code == USAGE and created and self._directory and _never_trained(self._directory):
                # The next try may have the name.
                shutil.rmtree(self._directory.path, ignore_errors=True)
                self._directory = None
            raise
        if code == INTERRUPTED:
            assert self._directory
            raise UserError(f"interrupted; reopen it with `{paths.how_to_open(self._directory)}`", code=INTERRUPTED)
        assert self._directory
        return [run for run in Store.read(self._directory.db).runs() if run.fit == number]

    def _schedule(self, fit: Fit) -> tuple[int, int]:
        """Write the fit down, making the experiment where it is the first one, and train it: its number, and the
        scheduler's exit code."""
        from rftui.scheduler import loop
        from rftui.store import Store

        fit.check_disk(self._home)
        first = self._directory is None
        if self._directory is None:
            self._directory = paths.create(self._home, self._asked)
            if self._directory.name != self._asked:
                old = f"open the old one with `{paths.how_to_open(paths.ExperimentDir(self._home / self._asked))}`"
                fit.notices.insert(0, f"experiment {self._asked!r} exists; this one is named {self.name!r} ({old})")
        with self._directory.hold():  # so that it is seen to be loading
            with closing(Store.create(self._directory.db) if first else Store(self._directory.db)) as store:
                number = fit.write(self._directory, store)
        rendezvous = paths.setting("RENDEZVOUS")
        code = loop.run(
            self._directory,
            fit=number,
            rendezvous=Path(rendezvous) if rendezvous else None,
            devices=paths.setting("DEVICES") or "auto",
            viewer=paths.setting("VIEWER") == "1",
        )
        return number, code


def _never_trained(directory: paths.ExperimentDir) -> bool:
    """Whether no run in it was ever given a turn."""
    from rftui.store import Store

    if any((directory.path / "runs").iterdir()):
        return False
    if not directory.db.exists():
        return True
    try:
        with closing(Store.read(directory.db)) as store:
            return all(run.turns == 0 for run in store.runs())
    except UserError:
        return False


def _refuse_children() -> None:
    """A child process that imports the user's script must not start the experiment again."""
    if "RFTUI_WORKER" in os.environ or multiprocessing.parent_process() is not None:
        raise UserError(
            "an Experiment was made while a child process imported the script; put what makes it under "
            'if __name__ == "__main__":'
        )


def _fail(fault: UserError) -> NoReturn:
    """End a plain script with the fault's lines and exit code; where somebody is there to see it, raise it."""
    if _interactive() or threading.current_thread() is not threading.main_thread():
        raise fault
    for line in fault.lines:
        print(f"rftui: {line}", file=sys.stderr, flush=True)
    sys.exit(fault.code)


def _interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or "get_ipython" in vars(sys.modules["builtins"])
