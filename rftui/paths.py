"""The experiment directory: its files, modes and lock."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import shlex
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rftui.errors import FAILED, UserError

_taken: dict[str, str] = {}


def take_environment() -> None:
    """Take the RFTUI_* variables out of `os.environ`, for the script's children; `setting` still has them."""
    _taken.update({name: os.environ.pop(name) for name in list(os.environ) if name.startswith("RFTUI_")})


def setting(name: str) -> str | None:
    """The variable RFTUI_`name` that this process was started with, or has now."""
    return os.environ.get(f"RFTUI_{name}") or _taken.get(f"RFTUI_{name}")


def home_dir(home: str | os.PathLike[str] | None = None) -> Path:
    """Where experiments live: `home`, else $RFTUI_HOME, else ./rftui_experiments. Made absolute, not created."""
    return Path(home or setting("HOME") or "rftui_experiments").expanduser().absolute()


def shell_home() -> Path:
    """Where the user's own shell looks for experiments; a scheduler that was started by a viewer has that one's
    --home as its RFTUI_HOME."""
    return Path(setting("SHELL_HOME") or home_dir())


@dataclass(frozen=True)
class RunDir:
    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def start(self) -> Path:
        """The pinned checkpoint of a warm clone's parent."""
        return self.path / "start"

    @property
    def final(self) -> Path:
        return self.path / "final"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"


@dataclass(frozen=True)
class ExperimentDir:
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def home(self) -> Path:
        return self.path.parent

    @property
    def db(self) -> Path:
        return self.path / "experiment.db"

    @property
    def outbox(self) -> Path:
        """The database of the tracking process: what was sent, and what is still to be (SQLite, mode 0600)."""
        return self.path / "outbox.db"

    @property
    def link(self) -> Path:
        """Where the scheduler's socket is and its key (JSON, mode 0600)."""
        return self.path / "link.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def spec(self, fit: int) -> Path:
        return self.path / "fits" / str(fit) / "spec.pkl"

    def data(self, fit: int) -> Path:
        return self.path / "fits" / str(fit) / "data"

    def run(self, run: int) -> RunDir:
        return RunDir(self.path / "runs" / str(run))

    def lock(self) -> IO[str] | None:
        """The scheduler's exclusive lock, held while the returned file is open; None if another process holds it.

        Raises UserError where files cannot be locked there.
        """
        file = self._locked("lock", fcntl.LOCK_EX)
        while file is None:
            probe = self._locked("lock", fcntl.LOCK_SH)
            if probe is None:
                return None
            probe.close()  # nobody holds it alone: others only looked, as `alive` does
            time.sleep(random.uniform(0.0, 0.01))
            file = self._locked("lock", fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        return file

    def hold(self) -> IO[str]:
        """The same lock. Raises UserError where another process holds it."""
        lock = self.lock()
        if lock is None:
            raise UserError(f"{self.name} is already running; `{how_to_open(self)}` attaches to it", code=FAILED)
        return lock

    def lock_worker(self) -> IO[str]:
        """The lock that says that a worker lives, shared with other workers. A worker inherits the returned file."""
        file = self._locked("workers.lock", fcntl.LOCK_SH)
        assert file, "the scheduler starts no worker while it holds the lock itself"
        return file

    def workers_gone(self) -> bool:
        """Whether no worker of this experiment lives, of whatever scheduler."""
        file = self._locked("workers.lock", fcntl.LOCK_EX)
        if file:
            file.close()
        return file is not None

    def _locked(self, name: str, kind: int) -> IO[str] | None:
        try:
            file = open(os.open(self.path / name, os.O_RDWR | os.O_CREAT, 0o600), "r+")
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                return None
        except OSError as error:
            raise UserError(f"cannot lock {self.path / name}: {error.strerror}", code=FAILED) from error
        return file

    def alive(self) -> bool:
        """Whether a scheduler holds this experiment."""
        try:
            file = open(self.path / "lock")
        except OSError:
            return False
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False


def create(home: Path, name: str) -> ExperimentDir:
    """A new experiment directory (mode 0700); where `name` is taken, the first free of `name-2`, `name-3`, ...

    Raises UserError where the name cannot be a directory's or the home cannot be written.
    """
    if not re.fullmatch(r"[^/\0\n]{1,120}", name) or name in (".", ".."):
        raise UserError(f"experiment name {name!r} cannot be a directory's name: use letters, digits, - and _")
    try:
        str(home / name).encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"the directory {str(home / name)!a} has a name that is not UTF-8, and no database can lie there: choose "
            "another place with --home DIR or RFTUI_HOME"
        ) from error
    try:
        home.mkdir(parents=True, exist_ok=True)
        for candidate in _candidates(name):
            try:
                (home / candidate).mkdir(mode=0o700)
            except FileExistsError:
                continue
            experiment = ExperimentDir(home / candidate)
            for folder in (experiment.logs, experiment.path / "runs", experiment.path / "fits"):
                folder.mkdir()
            return experiment
    except OSError as error:
        raise UserError(
            f"cannot write to {home}: {error.strerror}; choose another place with --home DIR or RFTUI_HOME"
        ) from error
    raise AssertionError("unreachable")


def _candidates(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1


def find(home: Path, name: str) -> ExperimentDir:
    """The experiment called `name`. Raises UserError (exit code 1) that names the known ones."""
    experiment = ExperimentDir(home / name)
    if name and "/" not in name and experiment.db.is_file():
        return experiment
    known = ", ".join(sorted(found.name for found in all_in(home))) or "none yet"
    raise UserError(f"no experiment {name!r} in {home}; there are: {known}", code=FAILED)


def how_to_open(experiment: ExperimentDir) -> str:
    """The command that opens it, as it must be typed in the user's shell."""
    elsewhere = "" if experiment.home == shell_home() else f" --home {shlex.quote(str(experiment.home))}"
    return f"rftui open {shlex.quote(experiment.name)}{elsewhere}"


def all_in(home: Path) -> list[ExperimentDir]:
    """The experiments of a home, newest first."""
    try:
        folders = [ExperimentDir(path) for path in home.iterdir() if (path / "experiment.db").is_file()]
    except OSError:
        return []
    return sorted(folders, key=lambda found: found.path.stat().st_ctime, reverse=True)


def write_private(path: Path, content: dict[str, Any]) -> None:
    """JSON into a file of mode 0600, replaced in one step."""
    write_whole(path, json.dumps(content).encode())


def write_whole(path: Path, content: bytes) -> None:
    """Into a file of mode 0600, replaced in one step; once this returns it outlasts a loss of power."""
    temporary = path.with_suffix(".tmp")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, outlast a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def owned_by_us(path: Path) -> bool:
    """Whether `path` is ours and no one else may write it, so that unpickling it runs nobody else's code."""
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
