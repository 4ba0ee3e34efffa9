"""The signals that end a scheduler in good order."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def caught(inbox: queue.SimpleQueue[Any]) -> Iterator[None]:
    """Within it Ctrl-C, SIGTERM and a hang-up of the terminal are put into `inbox`. Only on the main thread.

    A process that was started by nohup goes on when the terminal hangs up.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] == signal.SIG_IGN:
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, lambda number, _: inbox.put(signal.Signals(number)))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
