"""The IC Ops: each is checked, journaled, answered with when it takes effect, and carried out."""

from __future__ import annotations

import time
from typing import Protocol

from rftui.automl.generation import steps_apart
from rftui.automl.spec import plain_value, run_name
from rftui.automl.validate import clone_faults, sentence
from rftui.faults import Fault
from rftui.messages import Command, Reply
from rftui.paths import newest_checkpoint
from rftui.runs import DELETED, FAILED, STOPPED, STOPPING, Run, changed, flatten, redact, short, why_not
from rftui.scheduler.board import Board
from rftui.scheduler.pins import not_linked
from rftui.scheduler.policy import entry_turns
from rftui.scheduler.rules import Rules
from rftui.scheduler.turns import Turns


class Host(Protocol):
    """What the ops need of the scheduler's loop."""

    @property
    def ending(self) -> bool: ...
    def finish(self) -> None: ...
    def interrupt(self) -> None: ...


class Control:
    """Carries out commands. Everything here happens between two messages of the loop."""

    def __init__(self, host: Host, board: Board, turns: Turns, rules: Rules) -> None:
        self._host = host
        self._board = board
        self._turns = turns
        self._rules = rules

    def handle(self, command: Command) -> Reply:
        """The answer to a command; an accepted one is in the journal before it takes effect."""
        entry = self._board.store.journal(command)
        reply = self._answer(command)
        self._board.store.settle(entry, reply.ok, reply.text)
        return reply

    def _answer(self, command: Command) -> Reply:
        if command.op == "finish":
            self._host.finish()
            return Reply(command.id, True, "ends once no run is active")
        if command.op == "halt":
            self._host.interrupt()
            return Reply(command.id, True, "every run stops at its next step")
        if command.op == "rule":
            return self._rule(command)
        run = self._board.runs.get(command.run)
        if run is None:
            return Reply(command.id, False, f"there is no run {command.run}")
        op = {"stop": self._stop, "resume": self._resume, "clone": self._clone, "delete": self._delete}.get(command.op)
        if op is None:
            return Reply(command.id, False, f"{command.op!r} is no op: say stop, resume, clone or delete")
        if reason := why_not(run, command.op):
            return Reply(command.id, False, f"run {run.id} {run.name}: {command.op} is refused, {reason}")
        if self._host.ending and command.op in ("resume", "clone"):
            return self.too_late(command)
        return op(command, run)

    def too_late(self, command: Command) -> Reply:
        """The refusal of what only another scheduler can do."""
        return Reply(command.id, False, "the experiment is just ending; `rftui open` takes it up again", ending=True)

    def _rule(self, command: Command) -> Reply:
        try:
            text = self._rules.switch(command.name or "", command.changes)
        except Fault as fault:
            return Reply(command.id, False, str(fault))
        self._board.log(f"{text} ({_asked(command)})")
        return Reply(command.id, True, text)

    def _stop(self, command: Command, run: Run) -> Reply:
        if run.id in self._turns.resident:
            self._turns.halt(run, "stop")
            run.state = STOPPING
            apart = steps_apart(run.algo, run.config.get("training_args") or {})
            where = "its next step" if apart == 1 else f"the next end of a generation (every {apart} steps)"
            text = f"run {run.id} stops at {where}"
        else:
            run.state, run.device = STOPPED, None
            self._turns.pins.freed(run)
            text = f"run {run.id} is stopped"
        run.stopped_by = f"{command.by}: {command.reason}" if command.reason else None
        self._note(run, f"{text} ({_asked(command)})")
        return Reply(command.id, True, text)

    def _resume(self, command: Command, run: Run) -> Reply:
        run.turns = entry_turns(self._board.runs.values(), run.fit, self._turns.pins.waiting)
        self._turns.go_back(run)
        text = f"run {run.id} goes on from step {run.step} with the next free turn"
        if run.stopped_by:
            run.stopped_by, run.exempt = None, True
            text += "; rules leave it alone from now on"
        self._note(run, f"{text} ({_asked(command)})")
        return Reply(command.id, True, text)

    def _delete(self, command: Command, run: Run) -> Reply:
        if run.id in self._turns.resident:
            self._turns.halt(run, "delete")
        self._turns.pins.forget(run)
        run.state, run.device = DELETED, None
        if run.id not in self._turns.resident:
            self._turns.pins.freed(run)
        text = f"run {run.id} is deleted"
        self._note(run, f"{text} ({_asked(command)})")
        return Reply(command.id, True, text)

    def _clone(self, command: Command, run: Run) -> Reply:
        fields = self._board.schema.get(run.algo, [])
        if not fields:
            return Reply(command.id, False, "the knobs are not known yet: the first worker is still starting")
        faults = clone_faults(run, command.changes, command.warm, fields)
        checkpoint = newest_checkpoint(self._board.experiment.run(run.id).checkpoints) if command.warm else None
        if command.warm and not faults and not checkpoint and run.id not in self._turns.resident:
            faults[""] = f"run {run.id} has no checkpoint to start from; clone it cold"
        if faults:
            return Reply(command.id, False, f"run {run.id} cannot be cloned so: {sentence(faults)}")
        clone = self._new_run(command, run)
        if not command.warm:
            text = f"run {clone.id} is cloned cold from run {run.id}"
        elif run.id in self._turns.resident:
            self._turns.pins.ask(clone, run, self._turns.resident[run.id])
            text = f"run {clone.id} starts warm from run {run.id} after its next step"
        else:
            assert checkpoint
            try:
                self._turns.pins.link(clone, run, checkpoint)
            except OSError as error:
                clone.state, clone.error = FAILED, not_linked(run, error)
                self._note(clone, f"run {clone.id} failed: {clone.error}")
                return Reply(command.id, False, f"run {clone.id} {clone.name}: {clone.error}", run=clone.id)
            text = f"run {clone.id} starts warm from step {clone.start_step} of run {run.id}"
        self._note(clone, f"{text} ({_asked(command)}; {_told(command.changes) or 'nothing changed'})")
        return Reply(command.id, True, text, run=clone.id)

    def _new_run(self, command: Command, run: Run) -> Run:
        changes = {**run.changes, **command.changes}
        clone = Run(0, "", run.algo, run.fit, run.leaf, parent=run.id, warm=command.warm, created=time.time())
        clone.changes = changes
        clone.config = changed(run.config, plain_value(command.changes))
        clone.knobs = {**run.knobs, **plain_value(flatten(command.changes))}
        taken = {other.name for other in self._board.runs.values()}
        number = max(self._board.runs) + 1
        clone.name = _unique(command.name, taken) if command.name else run_name(clone.knobs, number, taken)
        clone.turns = entry_turns(self._board.runs.values(), run.fit, self._turns.pins.waiting)
        self._board.add_run(clone)
        return clone

    def _note(self, run: Run, text: str) -> None:
        self._board.touch(run)
        self._board.log(text, run)


def _asked(command: Command) -> str:
    by = {"key": "by key", "cli": "from the shell", "python": "from Python"}.get(command.by, f"by {command.by}")
    return f"{by}: {command.reason}" if command.reason else by


def _told(changes: dict[str, object]) -> str:
    return ", ".join(f"{short(name)}={_value(value)}" for name, value in redact(changes).items())


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _unique(name: str, taken: set[str]) -> str:
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        candidate = f"{name} {number}"
    return candidate
