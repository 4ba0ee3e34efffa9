"""The tie of the screen, the shell and Python to an experiment's scheduler, and to the next one where that ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rftui.errors import FAILED, UserError
from rftui.launching import Launch, attach
from rftui.link import LinkLost, Viewer
from rftui.messages import Command, Field, Reply, Snapshot, Update
from rftui.paths import ExperimentDir

Reopen = Callable[[ExperimentDir], Launch]
"""Starts a scheduler for an experiment that has none."""

_LOOK = 0.05
"""Seconds between two looks for a scheduler that is coming up."""

_TRIES = 2
"""Schedulers that are asked the same: one that is just ending, and the next."""


class NotServed(UserError):
    """What was started or attached to ended before it served; `status` is its exit code."""

    def __init__(self, launch: Launch, status: int) -> None:
        super().__init__(f"{launch.title}: {''.join(launch.tail(1)) or 'its scheduler has ended'}", code=FAILED)
        self.status = status


@dataclass
class _Pending:
    command: Command
    algo: str
    prepare: Callable[[list[Field]], None] | None
    tries: int = 0
    sent: bool = False


class Session:
    """One thread calls `poll` again and again, which waits; all else returns at once, and any thread may call it.

    A command is pending until it is answered. When `poll` raises LinkLost the scheduler has ended: `go_on` has `poll`
    find or start the next one, which is asked what this one did not answer, once. A `brief` one is told that something
    changed, but not what.
    """

    def __init__(self, launch: Launch | None = None, reopen: Reopen | None = None, *, brief: bool = False) -> None:
        self.launch = launch
        self.reopens = reopen is not None
        self.ended = False  # and no other scheduler is looked for
        self._reopen = reopen
        self._brief = brief
        self._next: ExperimentDir | None = None  # to be attached to, or opened
        self._experiment: ExperimentDir | None = None
        self._found = False  # whether a scheduler held it when the next one was looked for
        self._viewer: Viewer | None = None
        self._heard = False
        self._schema: dict[str, list[Field]] = {}
        self._pending: dict[str, _Pending] = {}
        self._lock = threading.RLock()
        self._left = threading.Event()

    # ------------------------------------------------------------ asking

    @property
    def up(self) -> bool:
        """Whether a scheduler serves."""
        return self._viewer is not None

    @property
    def pending(self) -> dict[str, Command]:
        """What is not answered yet, by id, in the order in which it was asked."""
        with self._lock:
            return {number: entry.command for number, entry in self._pending.items()}

    def submit(self, command: Command, algo: str = "", prepare: Callable[[list[Field]], None] | None = None) -> None:
        """Ask this of the scheduler as soon as one serves and, with `algo`, has described the fields of that.

        `prepare` gets them right before; what it raises comes out of `submit` or `poll`, and nothing is asked.
        """
        with self._lock:
            self._pending[command.id] = _Pending(command, algo, prepare)
            self._send()

    def drop(self, command: str) -> None:
        """Ask it of no other scheduler."""
        with self._lock:
            self._pending.pop(command, None)

    def refresh(self) -> None:
        """Have the scheduler send a fresh snapshot."""
        if viewer := self._viewer:
            try:
                viewer.refresh()
            except LinkLost:
                pass  # `poll` finds out, too

    def go_on(self, experiment: ExperimentDir) -> None:
        """Look for the scheduler of this experiment from now on, or start one where there is none."""
        self._next, self.ended = experiment, False

    def leave(self) -> None:
        """The scheduler forgets this viewer."""
        self._left.set()
        if self._viewer:
            self._viewer.close()

    @property
    def left(self) -> bool:
        return self._left.is_set()

    def waits_for(self, command: str) -> str:
        """What the scheduler has yet to do for a pending command, as the end of a sentence about it."""
        entry = self._pending[command]
        if not self.up:
            return "is still ending" if self._found else "has not started"
        return "has not answered" if entry.sent else "has not described its settings"

    # ------------------------------------------------------------ listening

    def poll(self, timeout: float) -> list[Any]:
        """Snapshots, updates and replies, after waiting up to `timeout` seconds for a first one.

        Raises LinkLost once the scheduler has ended, NotServed where it did before it served, and UserError where
        none can be started.
        """
        if self._viewer is None:
            self._connect(timeout)
            return []
        try:
            messages = self._viewer.poll(timeout)
        except LinkLost:
            if self._lose():
                raise
            return []  # it was just ending; how is for the launch to say
        with self._lock:
            for message in messages:
                self._heard = True
                if isinstance(message, Reply):
                    entry = self._pending.get(message.command)
                    if entry and not (message.ending and entry.tries < _TRIES):
                        del self._pending[message.command]
                elif isinstance(message, (Snapshot, Update)):
                    self._schema |= message.schema
            self._send()
        return messages

    def _connect(self, timeout: float) -> None:
        if self._next:
            self._experiment, self._next = self._next, None
            self.launch = self._launched(self._experiment)
        assert self.launch
        status = self.launch.exit_status
        viewer = self.launch.poll(brief=self._brief)
        if viewer:
            with self._lock:
                self._viewer, self._heard, self._schema = viewer, False, {}
                self._send()
        elif status is None:
            self._left.wait(min(timeout, _LOOK))
        elif self._experiment and self._experiment.alive() != self._found:
            self._next = self._experiment  # the one before has ended, or someone else has just started one
        else:
            self.ended = True
            raise NotServed(self.launch, status)

    def _launched(self, experiment: ExperimentDir) -> Launch:
        """The scheduler that holds it, or that is started for it."""
        self._found = experiment.alive()
        if self._found:
            return attach(experiment)
        try:
            if self._reopen is None:
                raise UserError(f"{experiment.name}: its scheduler has ended", code=FAILED)
            return self._reopen(experiment)
        except UserError:
            self.ended = True
            raise

    def _lose(self) -> bool:
        """The link is lost; whether that is the end of a scheduler that had said anything, or of all tries."""
        with self._lock:
            self._viewer = None
            self.ended = self._heard
            for number, entry in list(self._pending.items()):
                entry.sent = False
                if entry.tries >= _TRIES:
                    self.ended = True
                    del self._pending[number]
        return self.ended

    def _send(self) -> None:
        """What is pending, can be asked, and was not yet."""
        for number, entry in list(self._pending.items()):
            if not self._viewer or entry.sent or entry.algo and entry.algo not in self._schema:
                continue
            if entry.prepare:
                try:
                    entry.prepare(self._schema[entry.algo])
                except UserError:
                    del self._pending[number]
                    raise
            entry.sent, entry.tries = True, entry.tries + 1
            try:
                self._viewer.send(entry.command)
            except LinkLost:
                return  # `poll` finds out, too
