"""Plain progress for a terminal without a viewer, a pipe or a log file."""

from __future__ import annotations

import math
import os
import sys
import time

from rftui.formatting import format_duration, format_number
from rftui.runs import RUNNING, Run
from rftui.scheduler.registry import Registry

_EVERY = 5.0


class Printer:
    """Prints events as they come, a progress line at most every few seconds, and a table at the end.

    Events that were there before it are known, but for those since `fit` was written: its notices."""

    def __init__(self, registry: Registry, fit: int | None = None) -> None:
        self._registry = registry
        store = registry.store
        began = next((each["created"] for each in store.fits() if each["id"] == fit), math.inf)
        self._last_event = max((event.id for event in store.events() if event.time < began), default=0)
        self._last = 0.0

    def print(self) -> None:
        """What is new."""
        for event in self._registry.store.events_since(self._last_event):
            if event.level != "progress":
                self._line(event.text)
            self._last_event = event.id
        if time.monotonic() - self._last > _EVERY and self._registry.info.state == "running":
            self._last = time.monotonic()
            self._line(self._progress())

    def summary(self) -> None:
        """How it ended: a table of the runs."""
        runs = list(self._registry.runs.values())
        width = max([len(run.name) for run in runs] + [4])
        algos = {run.algo for run in runs}
        # A GRPO loss says nothing of how well it goes.
        metrics = {"loss": "loss", "eval": "eval_loss"} if algos != {"GRPO"} else {}
        metrics |= {"reward": "reward", "eval reward": "eval_reward"} if "GRPO" in algos else {}
        rows = [("run", "name", "state", "chunk", "step", list(metrics), "")]
        for run in runs:
            shown = [format_number(_value(run, metric)) for metric in metrics.values()]
            chunk = f"{run.chunk}/{run.chunks}"
            why = run.error or run.stopped_by or ""
            rows.append((str(run.id), run.name, run.state, chunk, str(run.step), shown, why))
        for number, name, state, chunk, step, values, why in rows:
            cells = [f"{number:>4}  {name:<{width}}  {state:<8}  {chunk:>7}  {step:>6}"]
            cells += [f"{value:>{max(8, len(head))}}" for head, value in zip(metrics, values, strict=True)]
            self._write("  ".join([*cells, why]).rstrip())
        self._write(f"{self._registry.info.state}: {self._registry.info.path}")

    def _progress(self) -> str:
        info, runs = self._registry.info, [run for run in self._registry.runs.values() if run.active or run.chunks]
        total = sum(run.total_steps for run in runs)
        share = sum(run.step for run in runs) / total if total and all(run.total_steps for run in runs) else None
        most = max((run.chunks for run in runs), default=0)
        running, active = (sum(run.state == RUNNING for run in runs), sum(run.active for run in runs))
        parts = [
            f"{share:4.0%}" if share is not None else "   -",
            f"chunk {min((run.chunk for run in runs if run.active), default=most)}/{most}",
            f"{running} running, {active - running} waiting",
            f"{info.steps_per_second:.1f} steps/s" if info.steps_per_second else "- steps/s",
            f"ETA {format_duration(info.eta)}",
        ]
        return "  ".join(parts)

    def _line(self, text: str) -> None:
        self._write(f"{time.strftime('%H:%M:%S')}  {text}")

    def _write(self, text: str) -> None:
        encoding = sys.stdout.encoding or "ascii"
        try:
            print(text.encode(encoding, "replace").decode(encoding), flush=True)
        except OSError:  # whoever read the lines, or the terminal, is gone; that is no reason to end a training
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _value(run: Run, metric: str) -> float | None:
    return None if run.algo == "GRPO" and metric.endswith("loss") else run.metrics.get(metric)
