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
import socket
import sys
import threading
import time
import traceback
from multiprocessing import AuthenticationError
from multiprocessing.managers import BaseManager, RemoteError
from typing import Any

from rftui.messages import VERSION, Attach, Command, Leave, Report, Snapshot, Update
from rftui.paths import ExperimentDir

_LOST = (EOFError, OSError, AuthenticationError)
"""How a server that is gone, or that is another one by now, shows itself."""

_SOCKET_BACK = 10.0
"""Seconds that a worker tries to reach its scheduler: a socket that was removed is made again."""


class LinkLost(Exception):
    """The process at the other end is gone."""


def numbered(message: Any) -> bool:
    """Whether it is part of the numbered sequence of a snapshot and its updates."""
    return isinstance(message, (Snapshot, Update))


class _Client(BaseManager):
    """What a worker or a viewer connects with."""


_Client.register("inbox")
_Client.register("mailbox")


def _connect(experiment: ExperimentDir, key: str = "") -> _Client:
    """Raises LinkLost where no scheduler serves, or not the one that has `key`."""
    try:
        found = json.loads(experiment.link.read_text())
        if int(found["pid"]) and found.get("protocol") != VERSION:
            raise LinkLost(_other_version(experiment, found))
        client = _Client(address=str(found["address"]), authkey=bytes.fromhex(key or found["key"]))
        client.connect()
        return client
    except (*_LOST, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LinkLost(f"no scheduler serves {experiment.name}") from error


def _other_version(experiment: ExperimentDir, found: dict[str, Any]) -> str:
    return (
        f"{experiment.name} is trained by another version of rftui, in process {found.get('pid')} (version "
        f"{found.get('protocol', 0)} of the messages, {VERSION} here): use that version, or end it with "
        f"kill {found.get('pid')} and open {experiment.name} with this one"
    )


def unreachable(experiment: ExperimentDir) -> str:
    """Why the scheduler that holds an experiment cannot be reached from here, and what to do; "" where it can be, or
    where none says that it serves: it is still starting, or is ending."""
    try:
        found = json.loads(experiment.link.read_text())
        address, pid, host = str(found["address"]), int(found["pid"]), str(found.get("host", ""))
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"cannot read {experiment.link}: {error.strerror}; use the account that started {experiment.name}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{experiment.link} is not what a scheduler wrote; end the scheduler, and open {experiment.name} again"
    if found.get("protocol") != VERSION:
        return _other_version(experiment, found)
    if host and host != socket.gethostname():
        return f"{experiment.name} is trained on {host}, in process {pid}: run this command there"
    with socket.socket(socket.AF_UNIX) as knock:
        try:
            knock.connect(address)
            return ""
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
    return (
        f"process {pid} trains {experiment.name}, but its socket {address} cannot be reached from this shell ({why}): "
        f"run this command in the session or container that started it, or end it with kill {pid}"
    )


def _taken(mailbox: Any, timeout: float | None) -> tuple[list[Any], bool]:
    """Like `take`; a server that is closing answers whoever waits with None."""
    taken = mailbox.take(timeout)
    if taken is None:
        raise EOFError
    return taken


class WorkerLink:
    """A worker's end: tasks come by `tasks`, reports leave by a thread of their own, so that no trainer waits.

    Each direction has a thread and one connection for its whole life: a connection outlasts the removal of the socket
    through which it was made.
    """

    def __init__(self, experiment: ExperimentDir, worker: str, incarnation: int) -> None:
        self.lost = threading.Event()
        client: Any = _patiently(experiment)
        try:
            mailbox, self._inbox = client.mailbox("worker", worker, incarnation), client.inbox()
        except RemoteError as error:
            raise LinkLost(f"worker {worker} #{incarnation} was replaced") from error
        except _LOST as error:
            raise LinkLost("the scheduler is gone") from error
        self._sender_name = (worker, incarnation)
        self._reports: queue.Queue[Any] = queue.Queue()
        self._asked: queue.Queue[Any] = queue.Queue()
        self._sender = threading.Thread(target=self._send, name="reports", daemon=True)
        self._sender.start()
        threading.Thread(target=self._receive, args=(mailbox,), name="tasks", daemon=True).start()

    def tasks(self) -> list[Any]:
        """What the scheduler asks, in order; blocks until there is something. Raises LinkLost."""
        messages = self._asked.get()
        if isinstance(messages, str):
            self._asked.put(messages)  # for whoever else asks
            raise LinkLost(messages)
        return list(messages)

    def report(self, message: Any) -> None:
        """Tell the scheduler; never blocks, never raises."""
        self._reports.put(message)

    def close(self, timeout: float = 5.0) -> None:
        """Send what was reported and end the sender."""
        self._reports.put(None)
        self._sender.join(timeout)

    def _receive(self, mailbox: Any) -> None:
        """Hand on what is asked, and at last, as a text, why nothing more is."""
        end = ""
        while not end:
            try:
                messages, _ = _taken(mailbox, None)
                if None in messages:
                    messages, end = [], "this worker was replaced"
            except _LOST:
                messages, end = [], "the scheduler is gone"
            except Exception:
                traceback.print_exc()
                messages, end = [], "a task could not be read"
            if messages:
                self._asked.put(messages)
        self.lost.set()
        self._asked.put(end)

    def _send(self) -> None:
        """Until the end. Where a report cannot be sent the link is lost, and the worker ends: a scheduler that is not
        told of the end of a turn would wait for it for ever."""
        messages: list[Any] = []  # sent as well: it makes the connection while the socket is there
        ended = False
        while True:
            try:
                self._inbox.put(Report(*self._sender_name, messages))
            except _LOST:
                self.lost.set()
                return
            except Exception:
                traceback.print_exc()  # into the worker's log, whose last line the scheduler tells
                sys.stderr.flush()
                self.lost.set()
                return
            if ended:
                return
            messages = [self._reports.get()]
            while not self._reports.empty():
                messages.append(self._reports.get())
            if None in messages:
                ended = True
                messages.remove(None)


def _patiently(experiment: ExperimentDir) -> _Client:
    """Connect, once the socket is there. Raises LinkLost."""
    until = time.monotonic() + _SOCKET_BACK
    while True:
        try:
            return _connect(experiment)
        except LinkLost:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


class Viewer:
    """A viewer's end. A `brief` one only gives commands: it is told that something changed, but not what."""

    def __init__(self, experiment: ExperimentDir, *, brief: bool = False) -> None:
        client: Any = _connect(experiment)
        self._experiment, self._key = experiment, bytes(client._authkey).hex()
        self.name = f"{os.getpid()}-{secrets.token_hex(4)}"
        try:
            self._events = client.mailbox("viewer", self.name, 0)
            self._inbox = client.inbox()
        except (*_LOST, RemoteError) as error:  # it was just ending
            raise LinkLost(f"no scheduler serves {experiment.name}") from error
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
        except (*_LOST, RemoteError) as error:
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
        except _LOST:
            try:  # each thread connects anew, and the socket may have moved
                self._inbox = _connect(self._experiment, self._key).inbox()  # type: ignore[attr-defined]
                self._inbox.put(message)
            except _LOST as error:
                raise LinkLost("the scheduler has ended") from error
