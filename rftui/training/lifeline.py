"""How a worker ends: with its scheduler and not by a signal meant for that one; and its children end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from functools import partial

_GRACE = 10.0
"""Seconds after which a worker whose scheduler has died ends, even in the middle of a step."""

_GUARD = 'trap "" INT TERM HUP; read _; kill -s KILL -- -"$0"'
"""Kills the worker's process group when the worker, and with it the other end of the guard's stdin, is gone.

A child could ask the kernel for a signal at its parent's death (PR_SET_PDEATHSIG), but that comes already when the
*thread* that made the child ends: a pool that a reward function makes in one run would be killed when that run ends.
"""

_guards: list[subprocess.Popen[bytes]] = []


def begin() -> None:
    """To be called first of all in a worker, which leads a process group and inherits a lock (see `Workers.start`)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _MEANT_FOR_THE_SCHEDULER:
        signal.signal(number, lambda *_: None)
    lock = int(os.environ.pop("RFTUI_LOCK"))
    os.set_inheritable(lock, False)
    stdin, lifeline = os.pipe()
    _guards.append(subprocess.Popen(["sh", "-c", _GUARD, str(os.getpid())], stdin=stdin))
    os.close(stdin)
    os.register_at_fork(
        before=_hold_signals,
        after_in_parent=_let_signals_through,
        after_in_child=partial(_be_a_child, [lock, lifeline]),
    )


_MEANT_FOR_THE_SCHEDULER = (signal.SIGTERM, signal.SIGHUP)
"""Service managers and batch systems send them to every process; the scheduler then ends its workers in good order."""


def _be_a_child(inherited: list[int]) -> None:
    """A forked child lives no longer than its worker, does not count as one, and ends when it is asked to."""
    while inherited:  # a child's child has closed them already, and may have given their numbers to others
        os.close(inherited.pop())
    for number in _MEANT_FOR_THE_SCHEDULER:
        signal.signal(number, signal.SIG_DFL)
    _let_signals_through()


_masks = threading.local()


def _hold_signals() -> None:
    """One that comes for a child before it is a child would otherwise be lost on it, and whoever sent it waits."""
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _MEANT_FOR_THE_SCHEDULER)


def _let_signals_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def end_with_scheduler(lost: threading.Event) -> None:
    """End this process when its scheduler has died or the link to it is `lost`.

    It has ten seconds to end by itself, after the step it is in.
    """
    scheduler = int(os.environ["RFTUI_SCHEDULER"])

    def watch() -> None:
        while not lost.wait(1.0):
            if os.getppid() != scheduler:
                break
        threading.Event().wait(_GRACE)
        os._exit(1)

    threading.Thread(target=watch, name="scheduler", daemon=True).start()
