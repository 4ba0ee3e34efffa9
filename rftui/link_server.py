"""The scheduler's end of the link: it serves a queue to each of its workers and viewers."""

from __future__ import annotations

import json
import os
import queue
import re
import secrets
import shutil
import socket
import tempfile
import threading
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

from rftui.errors import FAILED, UserError
from rftui.link import LinkLost, numbered
from rftui.messages import VERSION, Update
from rftui.paths import ExperimentDir, owned_by_us, write_private

_BACKLOG = 5000
"""Messages a viewer may lag behind before its queue is dropped and it gets a fresh snapshot instead."""

_LOOK = 1.0
"""Seconds between two looks whether the socket is still where it was made."""

_LAST_WORDS = 2.0
"""Seconds that a server that closes gives its viewers to take what was still sent to them."""


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
            if self._limit and len(self._messages) > self._limit and numbered(message):
                self._overflowed = True
                self._messages = [each for each in self._messages if not numbered(each)]
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


class Server:
    """The scheduler's end. Whatever workers and viewers send arrives in `inbox`."""

    def __init__(self, experiment: ExperimentDir, rendezvous: Path | None = None) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()  # a signal handler may put, too
        self.experiment = experiment
        self._viewers: dict[str, _Mailbox] = {}
        self._brief: set[str] = set()
        self._workers: dict[str, tuple[int, _Mailbox]] = {}
        _sweep(experiment)
        self._folder = _socket_folder()
        self._key = secrets.token_bytes(32)
        manager: Any = type("_Manager", (BaseManager,), {})
        manager.register("inbox", callable=lambda: self.inbox, exposed=("put",))
        manager.register("mailbox", callable=self._mailbox, exposed=("take",))
        self._server = manager(address=self.address, authkey=self._key).get_server()
        self._server.listener.close()  # it cannot be made anew, nor waited for together with an end
        # `serve_forever` would also put sys.stdout back to the process's own and raise SystemExit when it ends.
        self._server.stop_event = threading.Event()
        self._listen()
        self._wake, self._woken = socket.socketpair()  # closing a socket does not wake who waits to accept from it
        self._accepting = threading.Thread(target=self._accept, name="link", daemon=True)
        self._accepting.start()
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
            "RFTUI_EXPERIMENT": str(self.experiment.path),
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

    def attach(self, viewer: str, brief: bool) -> None:
        """From now on the viewer gets whole updates, or brief ones."""
        (self._brief.add if brief else self._brief.discard)(viewer)

    def broadcast(self, update: Update) -> None:
        brief = update.brief()
        for viewer, mailbox in list(self._viewers.items()):
            mailbox.put(brief if viewer in self._brief else update)

    def drop_viewer(self, viewer: str) -> None:
        self._brief.discard(viewer)
        mailbox = self._viewers.pop(viewer, None)
        if mailbox:
            mailbox.put(None)

    def forget_dead_viewers(self) -> None:
        """Drop the queues of viewers whose process is gone (a viewer's name begins with its pid)."""
        for viewer in list(self._viewers):
            try:
                os.kill(int(viewer.split("-")[0]), 0)
            except PermissionError:
                pass  # it lives, and is another user's
            except ProcessLookupError:
                self._viewers.pop(viewer).close()
                self._brief.discard(viewer)

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
        self._wake.close()
        self._accepting.join()
        self._socket.close()
        self._woken.close()
        self.experiment.link.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def address(self) -> str:
        return str(self._folder / "s")

    def _accept(self) -> None:
        """Serve each client in a thread, and have the socket stand where clients look for it. The manager's own loop
        would spin for ever on a listener that is closed."""
        while not self._server.stop_event.is_set():
            try:
                if not self._stands():
                    self._listen_again()
                if self._socket in wait([self._socket, self._woken], _LOOK):
                    client = Connection(self._socket.accept()[0].detach())
                    threading.Thread(target=self._server.handle_request, args=(client,), daemon=True).start()
            except (OSError, UserError):  # no file, or no place, for it just now
                self._server.stop_event.wait(_LOOK)

    def _listen(self) -> None:
        """Make the socket in its folder, and say where it is to whoever may read the experiment."""
        made = socket.socket(socket.AF_UNIX)
        try:
            Path(self.address + ".new").unlink(missing_ok=True)
            made.bind(self.address + ".new")
            made.listen(128)
            os.replace(self.address + ".new", self.address)  # so that whoever finds it there is served
            inode = os.stat(self.address).st_ino
            where = {"protocol": VERSION, "address": self.address, "key": self._key.hex(), "pid": os.getpid()}
            write_private(self.experiment.link, where | {"host": socket.gethostname()})
        except OSError:
            made.close()
            raise
        self._socket, self._inode = made, inode

    def _stands(self) -> bool:
        """Whether the socket is still at its place: a cleaner of /tmp, or the end of a login, may have removed it."""
        try:
            return os.stat(self.address).st_ino == self._inode
        except OSError:
            return False

    def _listen_again(self) -> None:
        """Make the socket anew: at its old place, which clients know already, else at another. Who is connected stays
        so."""
        old = self._socket
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if not owned_by_us(self._folder):
                raise PermissionError
            self._listen()
        except OSError:
            self._folder = _socket_folder()
            self._listen()
        old.close()

    def _mailbox(self, kind: str, name: str, incarnation: int) -> _Mailbox:
        if kind == "viewer":
            if not re.fullmatch(r"[1-9]\d{0,8}-\w+", name):
                raise LinkLost(f"{name!r} is no viewer: its name begins with its process number")
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
    except (OSError, ValueError, KeyError, TypeError):
        return
    with socket.socket(socket.AF_UNIX) as knock:
        try:
            knock.connect(address)  # of a directory that was copied the original's scheduler may live
        except ConnectionRefusedError:
            folder = Path(address).parent
            if folder.name.startswith(_FOLDER):
                shutil.rmtree(folder, ignore_errors=True)
        except (OSError, ValueError):
            pass


def _socket_folder() -> Path:
    """A new private folder for a socket. Raises UserError."""
    place = socket_place()
    try:
        return Path(tempfile.mkdtemp(prefix=_FOLDER, dir=place))
    except OSError as error:
        raise UserError(
            f"cannot make a socket in {place}: {error.strerror}; set TMPDIR to a short path of a local disk",
            code=FAILED,
        ) from error


def socket_place() -> str:
    """A short local directory: a Unix socket's path ends at 107 bytes, and network file systems refuse sockets."""
    places = [os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp", os.environ.get("TMPDIR", "")]
    fit = [place for place in places if place.startswith("/") and short_enough(place) and os.access(place, os.W_OK)]
    return fit[0] if fit else "/tmp"


def short_enough(folder: str) -> bool:
    """Whether sockets can be made in `folder`, or in one that torch or multiprocessing make in it."""
    return len(os.fsencode(folder)) < 60
