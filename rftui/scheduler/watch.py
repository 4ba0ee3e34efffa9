"""What takes long, or may never come, is told while it is waited for: a worker that hangs, a step that is to end."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection
from typing import Any

from rftui.formatting import format_duration
from rftui.messages import Gone
from rftui.scheduler.ending import Ending
from rftui.scheduler.front import Front
from rftui.scheduler.registry import Registry

_SILENT = 30.0
"""Seconds without a word of a worker, which says how it is every two, until it is told to hang."""

_REMIND = 30.0
"""Seconds between two lines about what the end waits for."""

_LONGEST_LOOK = 10.0
"""Seconds that count between two looks: a scheduler that was itself stopped has not listened."""


class Watch:
    """`look` is to be called every few seconds, and `heard` with all that is said by a worker, or of its end."""

    def __init__(self, registry: Registry, ending: Ending) -> None:
        self._registry = registry
        self._ending = ending
        self._front = Front()
        self._silent: defaultdict[str, float] = defaultdict(float)  # seconds
        self._looked = time.monotonic()
        self._waited = self._told = 0.0  # seconds, since every run was to pause

    def heard(self, worker: str, reports: Collection[Any]) -> None:
        self._silent[worker] = 0
        device = self._registry.devices[worker]
        if device.silent:
            device.silent = False
            self._registry.touch_device(worker)
            if not any(isinstance(report, Gone) for report in reports):
                self._registry.log(f"Worker {worker} responds again", None, "notice")

    def look(self) -> None:
        """Tell what has been waited for too long; interrupt what lost the process that shows it."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, _LONGEST_LOOK), now
        for name, device in self._registry.devices.items():
            self._silent[name] = self._silent[name] + passed if device.state == "ready" else 0
            if self._silent[name] > _SILENT and not device.silent:
                device.silent = True
                self._registry.log(self._hangs(name), self._registry.runs.get(device.run or 0), "error")
                self._registry.touch_device(name)
        if not self._ending.interrupted and self._front.gone():
            self._registry.log("The rftui command that shows this progress was killed", None, "error")
            self._ending.interrupt()
        if self._ending.interrupted:
            self._waited += passed
            if self._waited - self._told > _REMIND:
                self._told = self._waited
                self._registry.log(f"{self._waits_for()}; {self._ending.at_once}", None, "notice")

    def _hangs(self, worker: str) -> str:
        device = self._registry.devices[worker]
        where = f" in a turn of run {device.run}" if device.run else ""
        what = f"Worker {worker} has not responded for {format_duration(self._silent[worker])}{where}: it may hang"
        return f"{what}; if it stays so, end it with kill -KILL {device.pid}: its runs continue from their checkpoints"

    def _waits_for(self) -> str:
        steps = [f"run {device.run} on {name}" for name, device in self._registry.devices.items() if device.run]
        what = f"the step of {' and of '.join(steps)}" if steps else "the workers to save their runs and end"
        return f"Still waiting for {what} ({format_duration(self._waited)})"
