"""Faults of rftui itself that the scheduler meets: each is logged with its traceback, told in one line, and
counted."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from rftui.errors import UserError
from rftui.paths import ExperimentDir
from rftui.scheduler.registry import Registry
from rftui.store import Unwritten

_LIMIT = 3
"""So often in a row one thing may fail before the scheduler ends; what passes by itself should cost nothing."""

LOG = "scheduler.txt"
"""The file in the experiment's `logs/` that holds the tracebacks."""


class Incidents:
    """What may fail without ending the training is done through `guarded`, or noted by whoever caught its error."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._in_a_row: Counter[str] = Counter()
        self._told: set[str] = set()

    def guarded(self, what: str, do: Callable[[], object]) -> None:
        """Do it; where that fails, note so. Raises what it raised once it has failed too often in a row, and
        UserError at once."""
        try:
            do()
        except UserError:
            raise
        except Exception as error:
            self._in_a_row[what] += 1
            self.note(what, error)
            if self._in_a_row[what] >= _LIMIT:
                raise
        else:
            self._in_a_row.pop(what, None)

    def note(self, what: str, error: Exception) -> None:
        """Log it, and tell viewers in one line, unless the same was told before."""
        self.log(what, error)
        text = f"{what} failed: {one_line(error)} (a fault of rftui: the traceback is in logs/{LOG})"
        if text in self._told:
            return
        self._told.add(text)
        try:
            self._registry.log(text, None, "error")
        except Unwritten:
            raise
        except Exception as second:
            self.log("telling viewers of it", second)

    def log(self, what: str, error: Exception) -> None:
        """The traceback into the log."""
        log_traceback(self._registry.experiment, what, error)


def log_traceback(experiment: ExperimentDir, what: str, error: Exception) -> None:
    """Into the scheduler's log; a full disk costs the traceback and nothing else."""
    with suppress(OSError), open(experiment.logs / LOG, "a", encoding="utf-8", errors="replace") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {what} failed\n")
        file.writelines(traceback.format_exception(error))


def one_line(error: BaseException) -> str:
    """Its type and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
