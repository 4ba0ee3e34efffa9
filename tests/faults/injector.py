"""Raises exceptions in the program from outside: functions of its modules, and what they do with files, databases,
processes and sockets, are wrapped, and the n-th call of a place raises.

A place is a function ("rftui.scheduler.crew.Crew.hear") or an operation and who does it ("os.replace in
rftui.paths.write_whole"). `Injector.counts` says how often each came, which is what faults are drawn from.
"""

import builtins
import errno
import fcntl
import functools
import importlib
import inspect
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import zlib
from collections import Counter
from dataclasses import dataclass
from multiprocessing.managers import BaseProxy
from pathlib import Path
from typing import Self


def _io_error(text: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR  # as SQLite's own have one
    return error


ERRORS = {
    "RuntimeError": RuntimeError,
    "ValueError": ValueError,
    "KeyError": KeyError,
    "EIO": functools.partial(OSError, errno.EIO),
    "ENOSPC": functools.partial(OSError, errno.ENOSPC),
    "EACCES": functools.partial(PermissionError, errno.EACCES),
    "OperationalError": _io_error,
    "EOFError": EOFError,
    "MemoryError": MemoryError,
    "UnicodeDecodeError": functools.partial(UnicodeDecodeError, "utf-8", b"\xff", 0, 1),
}
"""Each is made with a text, which names the fault."""

_FILE = ("EIO", "ENOSPC", "EACCES", "MemoryError")
OPERATIONS = {
    "open": (*_FILE, "UnicodeDecodeError"),
    **{
        f"os.{name}": _FILE
        for name in "open replace rename mkdir unlink rmdir link fsync scandir listdir stat chmod".split()
    },
    "shutil.rmtree": _FILE,
    "shutil.copytree": _FILE,
    "shutil.copy2": _FILE,
    "shutil.disk_usage": _FILE,
    "tempfile.mkdtemp": _FILE,
    "fcntl.flock": ("EIO", "EACCES"),
    "json.loads": ("ValueError", "KeyError", "MemoryError"),
    "json.dumps": ("ValueError", "MemoryError"),
    "subprocess.Popen": ("EIO", "EACCES", "MemoryError"),
    "Thread.start": ("RuntimeError", "MemoryError"),
    "sqlite3.connect": ("OperationalError",),
    "sqlite3.execute": ("OperationalError", "RuntimeError", "MemoryError"),
    "sqlite3.executemany": ("OperationalError", "MemoryError"),
    "sqlite3.commit": ("OperationalError", "MemoryError"),
    "proxy.call": ("EOFError", "EIO", "RuntimeError"),
}
"""Operation -> the errors that it can meet."""

_PASSED_THROUGH = ("pathlib", "shutil", "os", "json", "tempfile", "contextlib", "subprocess", "codecs", "fnmatch")
"""Modules whose frames lie between the program and an operation."""


@dataclass(frozen=True)
class Fault:
    """In a process of this kind, the `nth` call of `place` raises `error`; `after`: once it is done; `lasting`: and so
    does every later one."""

    process: str
    place: str
    nth: int
    error: str
    after: bool = False
    lasting: bool = False

    @property
    def token(self) -> str:
        """What the text of the exception says."""
        return f"injected-{zlib.crc32(repr((self.place, self.nth, self.error)).encode()):08x}"

    def __str__(self) -> str:
        parts = [self.process, self.place.replace(" ", "_"), str(self.nth), self.error]
        return ":".join([*parts, *["after"] * self.after, *["lasting"] * self.lasting])

    @classmethod
    def parse(cls, text: str) -> Self:
        """What `str` made of one."""
        process, place, nth, error, *more = text.split(":")
        place = place.replace("_in_rftui", " in rftui", 1)
        return cls(process, place, int(nth), error, "after" in more, "lasting" in more)

    def exception(self) -> BaseException:
        return ERRORS[self.error](self.token)


class Injector:
    """`fired` is written, a place a line, to the file `log` as it happens."""

    def __init__(self, faults: list[Fault], log: Path) -> None:
        self.counts: Counter[str] = Counter()
        self._faults = {fault.place: fault for fault in faults}
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.Lock()

    def due(self, place: str) -> Fault | None:
        """Counts the call; the fault that is to be raised now."""
        with self._lock:
            self.counts[place] += 1
            fault = self._faults.get(place)
            if fault is None or not (
                fault.nth == self.counts[place] or fault.lasting and self.counts[place] > fault.nth
            ):
                return None
        os.write(self._log, f"{place}\n".encode())
        return fault

    def _around(self, place_of, function):
        @functools.wraps(function, assigned=("__name__", "__qualname__", "__doc__", "__module__"), updated=())
        def wrapped(*arguments, **named):
            place = place_of()
            fault = self.due(place) if place else None
            if fault and not fault.after:
                raise fault.exception()
            answer = function(*arguments, **named)
            if fault:
                if hasattr(answer, "close"):
                    answer.close()
                raise fault.exception()
            return answer

        wrapped.injected = function
        return wrapped

    # ------------------------------------------------------------ what is wrapped

    def operations(self) -> None:
        """Wrap what the program does with files, databases, processes and sockets."""

        def put(owner, attribute, name):
            setattr(owner, attribute, self._around(lambda: _place(name), getattr(owner, attribute)))

        for name in OPERATIONS:
            module, _, function = name.partition(".")
            owner = {"os": os, "shutil": shutil, "tempfile": tempfile, "fcntl": fcntl, "json": json}.get(module)
            if owner:
                put(owner, function, name)
        put(builtins, "open", "open")
        io.open = builtins.open
        put(threading.Thread, "start", "Thread.start")
        put(subprocess.Popen, "__init__", "subprocess.Popen")
        put(BaseProxy, "_callmethod", "proxy.call")

        class Database(sqlite3.Connection):
            pass

        for method in ("execute", "executemany", "commit"):
            put(Database, method, f"sqlite3.{method}")
        connect = self._around(lambda: _place("sqlite3.connect"), sqlite3.connect)
        sqlite3.connect = functools.partial(connect, factory=Database)

    def functions(self, modules: list[str], but: tuple[str, ...] = ()) -> None:
        """Wrap every function and method of these modules."""
        for name in modules:
            module = importlib.import_module(name)
            for owner in [module, *_classes(module)]:
                for attribute, function in list(vars(owner).items()):
                    if inspect.isfunction(function) and function.__module__ == name and not attribute.startswith("__"):
                        self._put_function(owner, attribute, function, f"{name}.{function.__qualname__}", but)

    def _put_function(self, owner, attribute, function, place, but) -> None:
        if "<lambda>" in place or any(place.endswith(end) for end in but):
            return
        wrapped = self._around(lambda: place, function)
        setattr(owner, attribute, wrapped)
        if inspect.ismodule(owner):  # other modules hold it by its name
            for module in [each for name, each in sys.modules.items() if name.startswith("rftui")]:
                for known, value in list(vars(module).items()):
                    if value is function:
                        setattr(module, known, wrapped)


def _classes(module):
    return [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__]


def _place(operation: str) -> str | None:
    """The operation and the function of the program that does it; None where that is no function of the program."""
    frame = sys._getframe(2)
    while frame:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("rftui."):
            return f"{operation} in {module}.{frame.f_code.co_qualname.partition('.<locals>')[0]}"
        if module.partition(".")[0] not in (*_PASSED_THROUGH, "sqlite3", "functools", "") and module != __name__:
            return None
        frame = frame.f_back
    return None
