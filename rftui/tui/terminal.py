"""The terminal that the viewer runs on: its size, and its end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import MutableMapping


def forget_stale_size(environment: MutableMapping[str, str]) -> None:
    """An exported COLUMNS or LINES would win over the size that the terminal has, also after it changed."""
    try:
        known = sys.__stdout__ is not None and all(os.get_terminal_size(sys.__stdout__.fileno()))
    except (OSError, ValueError):
        return
    for name in ("COLUMNS", "LINES") if known else ():
        environment.pop(name, None)


def end_with_the_terminal() -> None:
    """Have this process end when its terminal goes away."""
    if os.isatty(0):
        # At once, also where whoever started us ignores it: there is no terminal left to restore, and Textual's writer
        # would wait for it for ever.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    """A terminal that is not the controlling one (`setsid`, some containers) goes away without a SIGHUP."""
    while os.isatty(0):
        time.sleep(2.0)
    os.kill(os.getpid(), signal.SIGHUP)
