"""The process whose terminal, pipe or log gets a headless scheduler's lines: `rftui run --headless`."""

from __future__ import annotations

import os

from rftui.paths import setting
from rftui.scheduler.recovery import birth


class Front:
    """The scheduler ends with it, in good order, however it ends: nobody would see, or know how to stop, a training
    that goes on without it. `python script.py` has none."""

    def __init__(self) -> None:
        self._pid = int(setting("FRONT") or 0)
        self._parent = os.getppid() == self._pid  # also where nobody has taken note of its end yet
        self._born = birth(self._pid) if self._pid else None

    def gone(self) -> bool:
        if self._parent:
            return os.getppid() != self._pid
        return self._pid > 0 and (self._born is None or birth(self._pid) != self._born)
