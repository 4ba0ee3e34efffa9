"""A scheduler that is started, or found running: what a viewer or a command waits for until it serves."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

from rftui.errors import FAILED, UserError
from rftui.link import LinkLost, Viewer, unreachable
from rftui.paths import ExperimentDir, shell_home

_PATIENCE = 5.0
"""Seconds that a script gets to end by itself before it is killed."""

_HIDDEN = 10.0
"""Seconds after which a scheduler that serves, but not in this shell's sight, is told to be out of reach: it makes a
socket that was removed anew in a second or so."""


class Launch:
    """A scheduler that is coming up, or that runs already: `poll` until it gives a viewer, or until it has ended."""

    def __init__(
        self,
        title: str,
        process: subprocess.Popen[bytes] | None = None,
        log: Path | None = None,
        rendezvous: Path | None = None,
        experiment: ExperimentDir | None = None,
    ) -> None:
        self.title = title
        self.log = log
        self._process = process
        self._rendezvous = rendezvous
        self._experiment = experiment
        self._viewer: Viewer | None = None
        self._began = time.monotonic()

    @property
    def experiment(self) -> ExperimentDir | None:
        """Which experiment it holds, once it has said so."""
        if self._experiment is None and self._rendezvous and self._rendezvous.exists():
            self._experiment = ExperimentDir(Path(json.loads(self._rendezvous.read_text())["experiment"]))
        return self._experiment

    @property
    def exit_status(self) -> int | None:
        """How the process that was started ended, or FAILED where that which was attached to did; None while it
        lives."""
        if self._process:
            return self._process.poll()
        return None if self._experiment and self._experiment.alive() else FAILED

    @property
    def served(self) -> bool:
        """Whether a viewer was shown anything."""
        return self._viewer is not None and self._viewer.answered

    def poll(self, *, brief: bool = False) -> Viewer | None:
        """A viewer, or one that only gives commands, once the scheduler serves. Does not wait."""
        if self.experiment is None:
            return None
        try:
            self._viewer = Viewer(self.experiment, brief=brief)
        except LinkLost:
            return None
        return self._viewer

    @property
    def trouble(self) -> str:
        """Why a scheduler that runs cannot be reached from here, and what to do; "" while it may still come."""
        if self._process or self._experiment is None or time.monotonic() - self._began < _HIDDEN:
            return ""
        return unreachable(self._experiment)

    @property
    def started(self) -> bool:
        """Whether the process was started for this viewer: it may be ended with it."""
        return self._process is not None

    def end(self) -> None:
        """End what was started, and whatever that started in its session; what serves already, as Ctrl-C does: at
        the next step, resumable."""
        assert self._process
        try:
            os.killpg(self._process.pid, signal.SIGTERM)
            if self.experiment is None:
                self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        except ProcessLookupError:
            pass  # it has ended by itself

    def tail(self, lines: int = 0) -> list[str]:
        """The last lines of what the started process wrote, or why the one that was found does not answer; 0: all."""
        if self.log is None or not self.log.exists():
            return [self.trouble] if self.trouble else []
        return self.log.read_text(errors="replace").splitlines()[-lines:]

    def wait(self, timeout: float = 60.0) -> Viewer:
        """Like `poll`, but waits. Raises UserError where the process ends, or nothing serves in time."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            ended = self.exit_status is not None
            viewer = self.poll()
            if viewer:
                return viewer
            if ended:
                raise UserError(f"{self.title}: " + ("".join(self.tail(1)) or "its scheduler has ended"), code=FAILED)
            if trouble := self.trouble:
                raise UserError(trouble, code=FAILED)
            time.sleep(0.05)
        what = f"see {self.log}" if self.log else "it may be starting or ending; try again later"
        raise UserError(f"{self.title}: its scheduler does not answer after {timeout:.0f} s; {what}", code=FAILED)


def prepare(home: Path, devices: str | None) -> tuple[BinaryIO, Path, Path, dict[str, str]]:
    """What a scheduler that is to be started needs: its log, open (mode 0600) and by name, the file in which it says
    which experiment it holds, and its environment. Raises UserError where `home` cannot be written."""
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    log, rendezvous = home / ".logs" / f"{stamp}.txt", home / ".logs" / f"{stamp}.json"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        output = open(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600), "wb")
    except OSError as error:
        raise UserError(f"cannot write to {home}: {error.strerror}; choose another place with --home DIR") from error
    environment = os.environ | {
        "RFTUI_HOME": str(home),
        "RFTUI_SHELL_HOME": str(shell_home()),
        "RFTUI_RENDEZVOUS": str(rendezvous),
    }
    environment.pop("RFTUI_FRONT", None)  # that of a script which calls rftui is none of ours
    return output, log, rendezvous, environment | ({"RFTUI_DEVICES": devices} if devices else {})


def attach(experiment: ExperimentDir) -> Launch:
    """To a scheduler that runs already."""
    return Launch(experiment.name, experiment=experiment)


def spawn(argv: list[str], home: Path, *, title: str, devices: str | None = None, viewer: bool = True) -> Launch:
    """Start a scheduler (a user's script, or `-m rftui.scheduler NAME`) with this Python, in a session of its own.

    A hang-up of this terminal does not reach it; its output goes to a file under `<home>/.logs`.
    """
    output, log, rendezvous, environment = prepare(home, devices)
    # An emoji that a script prints must not end it.
    environment = {"PYTHONIOENCODING": "utf-8:replace"} | environment
    environment |= {"RFTUI_VIEWER": "1"} if viewer else {}
    with output:
        process = subprocess.Popen(
            [sys.executable, *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    return Launch(title, process, log, rendezvous)


def reopening(experiment: ExperimentDir) -> list[str]:
    """The command that takes up an experiment that no scheduler holds."""
    return ["-m", "rftui.scheduler", experiment.name, "--home", str(experiment.home)]


def reopen(experiment: ExperimentDir, devices: str | None = None) -> Launch:
    """Start a scheduler for an experiment that has none, in a session of its own."""
    return spawn(reopening(experiment), experiment.home, title=experiment.name, devices=devices)
