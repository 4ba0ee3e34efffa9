"""What a scheduler does first with an experiment that another one left, and with runs whose worker died.

Nothing of an earlier scheduler may live: its workers notice that it has died and end after their step, or after ten
seconds; what is left then is killed. So two generations never train the same runs, and no checkpoint can come from
the older one. Each run then stands where its newest whole checkpoint is, and the database is brought to agree.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Protocol

import psutil

from rftui.checkpoints import CHECKPOINT_MARKER, checkpoint_marker, checkpoints_in, committed
from rftui.errors import FAILED, UserError
from rftui.paths import ExperimentDir
from rftui.runs import DELETED, DONE, STOPPED, Run, curve_values
from rftui.scheduler.registry import Registry
from rftui.scheduler.weight_snapshots import WeightSnapshots
from rftui.store import Store

_PATIENCE = 12.0
_AFTER_KILL = 10.0


def birth(pid: int) -> str | None:
    """What tells this process from any other that has its number at another time; None where there is none."""
    try:
        if sys.platform != "linux":
            return str(psutil.Process(pid).create_time())
        # Counted from the boot, unlike psutil's, which moves when the clock is set.
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {started}"
    except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        return None


class OrphanWorkers:
    """`gone` is asked again and again until it is true."""

    def __init__(self, experiment: ExperimentDir, store: Store) -> None:
        self._experiment = experiment
        self._store = store
        self._began = time.monotonic()
        self._killed = False

    def gone(self) -> bool:
        """Whether none lives. Those that take too long are killed. Raises UserError where that does not end them."""
        if self._experiment.workers_gone():
            return True
        waited = time.monotonic() - self._began
        if waited > _PATIENCE and not self._killed:
            self._killed = True
            for pid in self._alive():
                kill_group(pid)
        if waited > _PATIENCE + _AFTER_KILL:
            named = "".join(f" (process {pid})" for pid in self._alive())
            name = self._experiment.name
            raise UserError(
                f"{name}: a worker of an earlier scheduler{named} neither ends nor can be killed; end it, on whatever "
                f"machine it runs, and open {name} again",
                code=FAILED,
            )
        return False

    def _alive(self) -> list[int]:
        return [pid for pid, born in self._store.workers() if born and birth(pid) == born]


def kill_group(leader: int) -> None:
    """Kill a worker, which leads its group, and its children."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has just ended by itself


class TakesBack(Protocol):
    """What follows the runs, as far as taking them up needs it."""

    snapshots: WeightSnapshots

    def go_back(self, run: Run, *, keep: bool = False) -> None: ...
    def fail(self, run: Run, error: str) -> None: ...


def take_up(registry: Registry, turns: TakesBack) -> None:
    """Every run stands where its newest whole checkpoint is, whatever the other scheduler was just doing."""
    runs = [run for run in registry.runs.values() if run.active or run.state == STOPPED]
    for run in runs:
        folder = registry.experiment.run(run.id)
        for unfinished in [*folder.checkpoints.glob(".step-*"), folder.path / ".final"]:
            shutil.rmtree(unfinished, ignore_errors=True)
        turns.go_back(run, keep=run.state == STOPPED)
    for run in runs:
        if run.warm and not run.start_step and (run.active or run.state == STOPPED):
            try:
                turns.snapshots.take_up(run)
            except OSError as error:
                turns.fail(run, f"its parent's weights cannot be read: {error}")
    discard_deleted(registry)  # last: a clone may still have needed its parent's files


def discard_deleted(registry: Registry) -> None:
    """Remove the files of deleted runs, which cannot be brought back from then on."""
    for run in registry.runs.values():
        if run.state == DELETED:
            run.before = ""
            registry.touch(run)
            shutil.rmtree(registry.experiment.run(run.id).path, ignore_errors=True)


def reposition(registry: Registry, run: Run) -> None:
    """Put a run that no worker holds where its newest whole checkpoint is, or at its beginning; done if it is at its
    end. The event log tells what is done again.

    What the database holds past that step is void: it is trained again. What it lacks up to it (a checkpoint is there
    before the reports of its last steps are stored) is taken from the history that the checkpoint holds.
    """
    folder = registry.experiment.run(run.id)
    newest, marker, history = None, {"step": 0, "epoch": 0.0}, []
    for checkpoint in checkpoints_in(folder.checkpoints):
        if (whole := checkpoint_marker(checkpoint)) and (logged := _history(checkpoint)) is not None:
            newest, marker, history = checkpoint, whole, logged
            break
        if whole:
            (checkpoint / CHECKPOINT_MARKER).unlink()  # it is whole no longer, for the worker either
        registry.log(f"Run {run.id}: checkpoint {checkpoint.name} is incomplete; skipped", run, "notice")
    before, step = run.step, int(marker["step"])
    if step < before:
        steps = before - step
        registry.log(
            f"Run {run.id}: rolled back to the checkpoint at step {step}; retraining {steps} step{'s' * (steps > 1)}",
            run,
            "notice",
        )
    elif step > before:
        registry.log(f"Run {run.id}: at step {step} by its checkpoint, not at step {before}", run, "notice")
    final = checkpoint_marker(folder.final)
    registry.rewind(run, step, [*history, *(_history(folder.final) or [] if final else [])])
    run.epoch = float(marker["epoch"])
    run.chunk = run.chunk if step else 0  # else told again by `Begun`
    run.checkpoint, run.device = str(newest) if newest else None, None
    run.checkpoints = list(committed(folder.checkpoints))
    if final:
        run.state, run.final, run.error = DONE, str(folder.final), None
        run.chunk = run.chunks if int(final["step"]) >= run.total_steps else run.chunk
        registry.log(f"Run {run.id} done", run)


def _history(checkpoint: Path) -> list[tuple[int, dict[str, float]]] | None:
    """What the trainer had logged when it wrote the checkpoint: (step, metric -> value), in order; None where that
    cannot be read."""
    try:
        state = json.loads((checkpoint / "trainer_state.json").read_text())
        return [(int(entry["step"]), curve_values(entry)) for entry in state["log_history"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
