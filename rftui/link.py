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
import shutil
import socket
import tempfile
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.managers import BaseManager, RemoteError
from pathlib import Path
from typing import Any

from rftui.messages import Attach, Command, Report, Snapshot, Update
from rftui.paths import ExperimentDir, write_private

_BACKLOG = 5000
"""Messages a viewer may lag behind before its queue is dropped and it gets a fresh snapshot instead."""

_LAST_WORDS = 2.0
"""Seconds that a server that closes gives its viewers to take what was still sent to them."""

_LOST = (EOFError, ConnectionError, FileNotFoundError, AuthenticationError)


class LinkLost(Exception):
    """The process at the other end is gone."""


class _Mailbox:
    """A queue that is taken from in batches.

    One with a limit drops its snapshots and updates when it overflows, and is marked: a fresh snapshot stands for
    them. Whatever else is in it (the answers to commands) stays.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.ended = threading.Event()  # whoever takes from here has got the closing None
        self._limit = limit
        self._messages: list[Any] = []
        self._arrived = threading.Condition()
        self._overflowed = False
        self._closed = False

    def put(self, message: Any) -> None:
        with self._arrived:
            self._messages.append(message)
            if self._limit and len(self._messages) > self._limit and _numbered(message):
                self._overflowed = True
                self._messages = [each for each in self._messages if not _numbered(each)]
            self._arrived.notify()

    def close(self) -> None:
        """Wake whoever waits, for the last time. What was not taken goes: the manager keeps the mailbox of a client
        that was killed for as long as it serves."""
        with self._arrived:
            self._messages = [None]
            self._arrived.notify()

    def take(self, timeout: float | None) -> tuple[list[Any], bool]:
        """What has come, after waiting up to `timeout` seconds for a first message, and whether some were dropped."""
        with self._arrived:
            if self._closed:
                self.ended.set()
                return [], False
            self._arrived.wait_for(lambda: self._messages or self._overflowed, timeout)
            messages, self._messages = self._messages, []
            lost, self._overflowed = self._overflowed, False
            self._closed = None in messages
            return messages, lost


def _numbered(message: Any) -> bool:
    """Whether it is part of the numbered sequence of a snapshot and its updates."""
    return isinstance(message, (Snapshot, Update))


class _Client(BaseManager):
    """What a worker or a viewer connects with."""


_Client.register("inbox")
_Client.register("mailbox")


class Server:
    """The scheduler's end. Whatever workers and viewers send arrives in `inbox`."""

    def __init__(self, experiment: ExperimentDir, rendezvous: Path | None = None) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()  # a signal handler may put, too
        self._experiment = experiment
        self._viewers: dict[str, _Mailbox] = {}
        self._workers: dict[str, tuple[int, _Mailbox]] = {}
        _sweep(experiment)
        self._folder = Path(tempfile.mkdtemp(prefix=_FOLDER, dir=_runtime_dir()))
        key = secrets.token_bytes(32)
        manager: Any = type("_Manager", (BaseManager,), {})
        manager.register("inbox", callable=lambda: self.inbox, exposed=("put",))
        manager.register("mailbox", callable=self._mailbox, exposed=("take",))
        self._server = manager(address=str(self._folder / "s"), authkey=key).get_server()
        # `serve_forever` would also put sys.stdout back to the process's own and raise SystemExit when it ends.
        self._server.stop_event = threading.Event()
        self._accepting = threading.Thread(target=self._accept, name="link", daemon=True)
        self._accepting.start()
        write_private(experiment.link, {"address": self._server.address, "key": key.hex(), "pid": os.getpid()})
        if rendezvous:
            write_private(rendezvous, {"experiment": str(experiment.path)})

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def open_worker(self, name: str, incarnation: int) -> dict[str, str]:
        """A queue for a new incarnation of worker `name`; what its environment needs to find it."""
        self.drop_worker(name)
        self._workers[name] = (incarnation, _Mailbox())
        return {
            "RFTUI_EXPERIMENT": str(self._experiment.path),
            "RFTUI_WORKER": name,
            "RFTUI_INCARNATION": str(incarnation),
            # Else glibc gives each run's thread an arena that keeps the peak of its steps: 8 runs of a 65 M base then
            # grow memory to 1.9 times that of one run instead of 1.35.
            "MALLOC_ARENA_MAX": "2",
        }

    def drop_worker(self, name: str) -> None:
        """Forget the queue of the worker's present incarnation; its number stays used."""
        if name in self._workers:
            incarnation, mailbox = self._workers[name]
            mailbox.close()  # wakes a server thread that still waits for a client that died
            self._workers[name] = (incarnation, _Mailbox())

    def task(self, name: str, message: Any) -> None:
        """Give the worker's present incarnation something to do."""
        self._workers[name][1].put(message)

    def send(self, viewer: str, message: Any) -> None:
        """To one viewer; nothing if it has left."""
        if viewer in self._viewers:
            self._viewers[viewer].put(message)

    def broadcast(self, message: Any) -> None:
        for mailbox in list(self._viewers.values()):
            mailbox.put(message)

    def drop_viewer(self, viewer: str) -> None:
        mailbox = self._viewers.pop(viewer, None)
        if mailbox:
            mailbox.put(None)

    def forget_dead_viewers(self) -> None:
        """Drop the queues of viewers whose process is gone (a viewer's name begins with its pid)."""
        for viewer in list(self._viewers):
            try:
                os.kill(int(viewer.split("-")[0]), 0)
            except ProcessLookupError:
                self._viewers.pop(viewer).close()

    def close(self) -> None:
        """Stop serving, once every viewer has got its last messages: every client's next call finds the link lost."""
        self.forget_dead_viewers()
        viewers, self._viewers = list(self._viewers.values()), {}
        for mailbox in [*viewers, *(mailbox for _, mailbox in self._workers.values())]:
            mailbox.put(None)
        until = time.monotonic() + _LAST_WORDS
        for mailbox in viewers:
            mailbox.ended.wait(max(0.0, until - time.monotonic()))
        self._server.stop_event.set()
        try:
            with socket.socket(socket.AF_UNIX) as knock:  # closing a socket does not wake who waits to accept from it
                knock.connect(self._server.address)
        except OSError:
            pass  # closed already
        self._accepting.join()
        self._server.listener.close()
        self._experiment.link.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        """Serve each client in a thread. The manager's own loop would spin for ever on a listener that is closed."""
        while not self._server.stop_event.is_set():
            try:
                client = self._server.listener.accept()
            except OSError:
                continue
            if not self._server.stop_event.is_set():
                threading.Thread(target=self._server.handle_request, args=(client,), daemon=True).start()

    def _mailbox(self, kind: str, name: str, incarnation: int) -> _Mailbox:
        if kind == "viewer":
            return self._viewers.setdefault(name, _Mailbox(_BACKLOG))
        present, mailbox = self._workers.get(name, (0, None))
        if present != incarnation or mailbox is None:
            raise LinkLost(f"worker {name} #{incarnation} was replaced")
        return mailbox


_FOLDER = "rftui-"
"""The beginning of the name of a socket's folder."""


def _sweep(experiment: ExperimentDir) -> None:
    """Remove the socket's folder of a scheduler of this experiment that was killed."""
    try:
        address = str(json.loads(experiment.link.read_text())["address"])
    except (OSError, ValueError, KeyError):
        return
    with socket.socket(socket.AF_UNIX) as knock:
        try:
            knock.connect(address)  # of a directory that was copied the original's scheduler may live
        except ConnectionRefusedError:
            folder = Path(address).parent
            if folder.name.startswith(_FOLDER):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass


def _runtime_dir() -> str:
    """A short local directory: a Unix socket's path ends at 107 bytes, and network file systems refuse sockets."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return runtime if runtime and len(runtime) < 60 and os.access(runtime, os.W_OK) else "/tmp"


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
    """A viewer's end."""

    def __init__(self, experiment: ExperimentDir) -> None:
        client: Any = _connect(experiment)
        self.name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._events = client.mailbox("viewer", self.name, 0)
        self._inbox = client.inbox()
        self.answered = False  # whether a first snapshot has come
        self._fresh = False
        self._ended = False
        self._put(Attach(self.name))

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
            self._put(Attach(self.name))
        kept = []
        for message in messages:
            self._fresh = self._fresh or isinstance(message, Snapshot)
            self.answered |= self._fresh
            if self._fresh or not _numbered(message):
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

    def close(self) -> None:
        """Leave; the scheduler forgets this viewer."""
        try:
            self._put(Command(id="", op="leave", viewer=self.name))
        except LinkLost:
            pass

    def _put(self, message: Any) -> None:
        try:
            self._inbox.put(message)
        except _LOST as error:
            raise LinkLost("the scheduler has ended") from error
