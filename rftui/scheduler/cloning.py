"""Clone-Modify: new runs out of one, cold from the base model or warm from its weights."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from rftui.checkpoints import committed
from rftui.config.spec import change
from rftui.config.sweeps import combinations, sweep_faults
from rftui.config.validate import sentence
from rftui.messages import Clone, Reply
from rftui.naming import format_changes, run_name
from rftui.runs import FAILED, Run
from rftui.scheduler.policy import entry_turns
from rftui.scheduler.registry import Registry
from rftui.scheduler.turns import Turns
from rftui.scheduler.weight_snapshots import not_linked


class Cloning:
    """Makes clones: all that a command asks for, or none."""

    def __init__(self, registry: Registry, turns: Turns) -> None:
        self._registry = registry
        self._turns = turns

    def clone(self, command: Clone, run: Run, asked: str) -> Reply:
        """The answer; `asked` is by whom, for the event log."""
        fields = self._registry.schema.get(run.algo, [])
        if not fields:
            return Reply(command.id, False, "Can't clone yet: the worker is still loading")
        faults = sweep_faults(
            run,
            command.changes,
            command.sweep,
            command.warm,
            fields,
            continue_schedule=command.continue_schedule,
            from_step=command.from_step,
        )
        checkpoint, missing = self._checkpoint(command, run) if command.warm else (None, "")
        if missing and not faults:
            faults[""] = missing
        if faults:
            return Reply(command.id, False, f"can't clone run {run.id}: {sentence(faults)}")
        variants = combinations(command.changes, command.sweep)
        clones = [self._new_run(command, run, changes) for changes in variants]
        if not command.warm:
            done = f"cloned cold from run {run.id}"
        elif checkpoint:
            failed = [clone for clone in clones if not self._linked(clone, run, checkpoint)]
            if failed:
                said = "; ".join(f"run {clone.id} {clone.name}: {clone.error}" for clone in failed)
                return Reply(command.id, False, said, clones[0].id, runs=[clone.id for clone in clones])
            done = f"cloned warm from step {clones[0].start_step - run.start_step} of run {run.id}"
        else:
            self._turns.snapshots.ask(clones, run, self._turns.resident[run.id])
            done = f"cloned warm from run {run.id} after its next step"
        for clone, changes in zip(clones, variants, strict=True):
            self._registry.log(f"Run {clone.id} {done} ({asked}; {format_changes(changes)})", clone)
        named = ", ".join(str(clone.id) + f" {clone.name}" * (clone.name != f"run {clone.id}") for clone in clones)
        text = f"Run {named} {done}" if len(clones) == 1 else f"Runs {named} {done}"
        return Reply(command.id, True, text, clones[0].id, runs=[clone.id for clone in clones])

    def _checkpoint(self, command: Clone, run: Run) -> tuple[Path | None, str]:
        """The committed checkpoint to start from, or why there is none; neither where the run's worker is to be asked
        for the weights of its next step."""
        if command.from_step is None and run.id in self._turns.resident:
            return None, ""
        whole = committed(self._registry.experiment.run(run.id).checkpoints)
        step = max(whole, default=0) if command.from_step is None else command.from_step
        return whole.get(step), "" if step in whole else f"run {run.id} has no checkpoint to start from; clone it cold"

    def _linked(self, clone: Run, run: Run, checkpoint: Path) -> bool:
        try:
            self._turns.snapshots.link(clone, run, checkpoint)
        except OSError as error:
            clone.state, clone.error = FAILED, not_linked(run, error)
            self._registry.log(f"Run {clone.id} failed: {clone.error}", clone, "error")
            self._registry.touch(clone)
            return False
        return True

    def _new_run(self, command: Clone, run: Run, changes: dict[str, Any]) -> Run:
        clone = Run(0, "", run.algo, run.fit, run.config_index, parent=run.id, warm=command.warm, created=time.time())
        clone.continue_schedule = command.continue_schedule
        clone.changes, clone.config, clone.knobs = run.changes, run.config, run.knobs
        change(clone, changes)
        taken = {other.name for other in self._registry.runs.values()}
        number = max(self._registry.runs) + 1
        # A name that a terminal of another encoding sent cannot be written to any file.
        asked = (command.name or "").encode("utf-8", "replace").decode().strip()
        clone.name = _unique(asked, taken) if asked else run_name(clone.knobs, number, taken)
        clone.turns = entry_turns(self._registry.runs.values(), run.fit, self._turns.snapshots.waiting)
        self._registry.add_run(clone)
        # A scheduler that was killed before it had kept a clone of this number may have left its files.
        shutil.rmtree(self._registry.experiment.run(clone.id).path, ignore_errors=True)
        return clone


def _unique(name: str, taken: set[str]) -> str:
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        candidate = f"{name} {number}"
    return candidate
