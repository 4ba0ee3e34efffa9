"""The queues between the processes: the scheduler serves them to its workers and viewers.

`multiprocessing.managers` serves in-process queues from threads on a Unix socket in a private directory, with a random
key; no TCP port is opened. Each incarnation of a worker and of a viewer has a queue of its own, because a client that
is killed while it waits leaves a server thread behind that swallows the next item.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import threading
from multiprocessing import AuthenticationError
from multiprocessing.managers import BaseManager, RemoteError
from typing import Any

from rftui.messages import Attach, Command, Leave, Report, Snapshot, Update
from rftui.paths import ExperimentDir

_LOST = (EOFError, ConnectionError, FileNotFoundError, AuthenticationError)


class LinkLost(Exception):
    """The process at the other end is gone."""


def numbered(message: Any) -> bool:
    """Whether it is part of the numbered sequence of a snapshot and its updates."""
    return isinstance(message, (Snapshot, Update))


class _Client(BaseManager):
    """What a worker or a viewer connects with."""


_Client.register("inbox")
_Client.register("mailbox")


def _connect(experiment: ExperimentDir) -> _Client:
    try:
        found = json.loads(experiment.link.read_text())
        client = _Client(address=found["address"], authkey=bytes.fromhex(found["key"]))
        client.connect()
        return client
    except (*_LOST, ValueError, KeyError) as error:
        raise LinkLost(f"no scheduler serves {experiment.name}") from error


def _taken(mailbox: Any, timeout: float | None) -> tuple[list[Any], bool]:
    """Like `take`; a server that is closing answers whoever waits with None."""
    taken = mailbox.take(timeout)
    if taken is None:
        raise EOFError
    return taken


class WorkerLink:
    """A worker's end: tasks come by `tasks`, reports leave by a thread of their own, so that no trainer waits."""

    def __init__(self, experiment: ExperimentDir, worker: str, incarnation: int) -> None:
        client: Any = _connect(experiment)
        self.lost = threading.Event()
        try:
            self._tasks = client.mailbox("worker", worker, incarnation)
        except RemoteError as error:
            raise LinkLost(f"worker {worker} #{incarnation} was replaced") from error
        self._inbox = client.inbox()
        self._sender_name = (worker, incarnation)
        self._reports: queue.Queue[Any] = queue.Queue()
        self._sender = threading.Thread(target=self._send, name="reports", daemon=True)
        self._sender.start()

    def tasks(self) -> list[Any]:
        """What the scheduler asks, in order; blocks until there is something. Raises LinkLost."""
        try:
            messages, _ = _taken(self._tasks, None)
        except _LOST as error:
            self.lost.set()
            raise LinkLost("the scheduler is gone") from error
        if None in messages:
            self.lost.set()
            raise LinkLost("this worker was replaced")
        return messages

    def report(self, message: Any) -> None:
        """Tell the scheduler; never blocks, never raises."""
        self._reports.put(message)

    def close(self, timeout: float = 5.0) -> None:
        """Send what was reported and end the sender."""
        self._reports.put(None)
        self._sender.join(timeout)

    def _send(self) -> None:
        ended = False
        while not ended:
            messages = [self._reports.get()]
            while not self._reports.empty():
                messages.append(self._reports.get())
            if None in messages:
                ended = True
                messages.remove(None)
            try:
                self._inbox.put(Report(*self._sender_name, messages))
            except _LOST:
                self.lost.set()
                return


class Viewer:
    """A viewer's end. A `brief` one only gives commands: it is told that something changed, but not what."""

    def __init__(self, experiment: ExperimentDir, *, brief: bool = False) -> None:
        client: Any = _connect(experiment)
        self.name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._events = client.mailbox("viewer", self.name, 0)
        self._inbox = client.inbox()
        self.answered = False  # whether a first snapshot has come
        self._fresh = False
        self._ended = False
        self._attach = Attach(self.name, brief)
        self._put(self._attach)

    def poll(self, timeout: float) -> list[Any]:
        """Snapshots, updates and replies, in order, after waiting up to `timeout` seconds. Raises LinkLost, once
        everything that was sent has been given.

        The first is a snapshot. After an overflow everything up to the next snapshot is left out.
        """
        if self._ended:
            raise LinkLost("the scheduler has ended")
        try:
            messages, dropped = _taken(self._events, timeout)
        except _LOST as error:
            raise LinkLost("the scheduler has ended") from error
        if dropped:
            self._fresh = False
        if None in messages:
            messages.remove(None)
            self._end()
        elif dropped:
            self._put(self._attach)
        kept = []
        for message in messages:
            self._fresh = self._fresh or isinstance(message, Snapshot)
            self.answered |= self._fresh
            if self._fresh or not numbered(message):
                kept.append(message)
        return kept

    def _end(self) -> None:
        """Confirm that the last message has come: the server waits for it."""
        self._ended = True
        try:
            _taken(self._events, 0)
        except _LOST:
            pass

    def send(self, command: Command) -> None:
        """Raises LinkLost."""
        command.viewer = self.name
        self._put(command)

    def refresh(self) -> None:
        """Ask for a fresh snapshot. Raises LinkLost."""
        self._put(self._attach)

    def close(self) -> None:
        """Leave; the scheduler forgets this viewer."""
        try:
            self._put(Leave(viewer=self.name))
        except LinkLost:
            pass

    def _put(self, message: Any) -> None:
        try:
            self._inbox.put(message)
        except _LOST as error:
            raise LinkLost("the scheduler has ended") from error
