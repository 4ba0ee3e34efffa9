"""The IC Ops: each is checked, journaled, answered with when it takes effect, and carried out."""

from __future__ import annotations

import traceback

from rftui.config.generation import steps_apart
from rftui.errors import UserError
from rftui.messages import Clone, Command, Delete, Finish, Interrupt, Reply, Resume, RunCommand, SetRule, Stop, Undo
from rftui.runs import DELETED, DONE, FAILED, STOPPED, STOPPING, WAITING, Run, refusal, why_not
from rftui.scheduler.cloning import Cloning
from rftui.scheduler.ending import Ending
from rftui.scheduler.placement import DELETE, MOVE, STOP
from rftui.scheduler.policy import entry_turns
from rftui.scheduler.pruning import Rules
from rftui.scheduler.registry import Registry
from rftui.scheduler.turns import Turns
from rftui.store import Unwritten


class Control:
    """Carries out commands. Everything here happens between two messages of the loop."""

    def __init__(self, ending: Ending, registry: Registry, turns: Turns, rules: Rules) -> None:
        self._ending = ending
        self._registry = registry
        self._turns = turns
        self._cloning = Cloning(registry, turns)
        self._rules = rules

    def handle(self, command: Command) -> Reply:
        """The answer to a command; an accepted one is in the journal before it takes effect."""
        if isinstance(command, RunCommand) and (answered := self._registry.store.accepted(command.id)):
            return answered  # whoever asked did not see the answer, and asks again
        entry = self._registry.store.journal(command)
        try:
            reply = self._answer(command)
        except Unwritten:
            raise
        except UserError as error:
            reply = Reply(command.id, False, str(error))
        except Exception as error:  # one op must not end the training of all runs
            traceback.print_exc()
            text = f"{command.op} failed, which is a fault of rftui: {type(error).__name__}: {error}"
            run = self._registry.runs.get(command.run) if isinstance(command, RunCommand) else None
            self._registry.log(text, run, "error")
            reply = Reply(command.id, False, text)
        self._registry.store.settle(entry, reply)
        return reply

    def _answer(self, command: Command) -> Reply:
        match command:
            case Finish():
                self._ending.finish()
                return Reply(command.id, True, "Ending once no run is active")
            case Interrupt():
                self._ending.interrupt()
                return Reply(command.id, True, "Pausing all runs at their next step")
            case SetRule():
                return self._set_rule(command)
            case RunCommand():
                return self._act(command)
        raise TypeError(f"no such command: {type(command).__name__}")

    def _act(self, command: RunCommand) -> Reply:
        run = self._registry.runs.get(command.run)
        if run is None:
            return Reply(command.id, False, f"No run {command.run}")
        if reason := why_not(run, command.op):
            return Reply(command.id, False, refusal(run, command.op, reason))
        if self._ending.begun and isinstance(command, (Resume, Clone)):
            return self.too_late(command)
        if isinstance(command, Clone):
            reply = self._cloning.clone(command, run, _asked(command))
            if reply.ok and command.stop_parent and not why_not(run, "stop"):
                stopped = self._carry_out(Stop(run.id, by=command.by), run)
                reply.text += f"; {stopped[0].lower()}{stopped[1:]}"
            return reply
        return Reply(command.id, True, self._carry_out(command, run))

    def _carry_out(self, command: RunCommand, run: Run) -> str:
        match command:
            case Stop():
                text = self._stop(run)
                run.stopped_by = f"{command.by}: {command.reason}" if command.reason else None
            case Resume():
                text = self._resume(run)
            case Delete():
                text = self._delete(run)
            case Undo():
                text = self._undo(run)
            case _:
                raise TypeError(f"no such op: {command.op}")
        self._registry.touch(run)
        self._registry.log(f"{text} ({_asked(command)})", run)
        return text

    def too_late(self, command: Command) -> Reply:
        """The refusal of what only another scheduler can do."""
        return Reply(command.id, False, "The experiment is just ending; `rftui open` reopens it", ending=True)

    def _set_rule(self, command: SetRule) -> Reply:
        try:
            text = self._rules.switch(command.name, command.changes)
        except UserError as fault:
            return Reply(command.id, False, str(fault))
        self._registry.log(f"{text} ({_asked(command)})")
        return Reply(command.id, True, text)

    def _stop(self, run: Run) -> str:
        if run.id not in self._turns.resident:
            run.state, run.device = STOPPED, None
            self._turns.snapshots.freed(run)
            return f"Run {run.id} stopped"
        self._turns.halt(run, STOP)
        run.state = STOPPING
        apart = steps_apart(run.algo, run.config.get("training_args") or {})
        where = "its next step" if apart == 1 else f"the next end of a generation (every {apart} steps)"
        return f"Run {run.id} stops at {where}"

    def _resume(self, run: Run) -> str:
        run.turns = entry_turns(self._registry.runs.values(), run.fit, self._turns.snapshots.waiting)
        self._turns.placements[run.id].faults, run.error, run.failure = 0, None, ""
        self._turns.go_back(run)
        if run.warm and not run.start_step and run.active:
            self._turns.snapshots.take_up(run)
        if run.state in (STOPPED, FAILED):
            raise UserError(refusal(run, "resume", run.error or ""))
        text = f"Run {run.id} resumes from step {run.step} with the next free turn"
        if run.stopped_by:
            run.stopped_by, run.exempt = None, True
            text += "; rules leave it alone from now on"
        return text

    def _delete(self, run: Run) -> str:
        run.before = run.state
        if run.id in self._turns.resident:
            self._turns.halt(run, DELETE)
        self._turns.snapshots.forget(run)
        run.state, run.device = DELETED, None
        if run.id not in self._turns.resident:
            self._turns.snapshots.freed(run)
        return f"Run {run.id} deleted; undo restores it until the scheduler ends"

    def _undo(self, run: Run) -> str:
        before, run.before = run.before, ""
        if before in (DONE, FAILED):
            run.state = before
            return f"Run {run.id} restored ({before})"
        stopped = before in (STOPPED, STOPPING)
        run.turns = entry_turns(self._registry.runs.values(), run.fit, self._turns.snapshots.waiting)
        if run.id in self._turns.resident:
            self._turns.halt(run, STOP if stopped else MOVE)
            run.state = STOPPING if stopped else WAITING
        else:
            self._turns.go_back(run, keep=stopped)
            if run.warm:
                self._turns.snapshots.take_up(run)
        goes_on = f"stopped at step {run.step}" if stopped else f"resumes from step {run.step} with the next free turn"
        return f"Run {run.id} restored ({goes_on})"


def _asked(command: Command) -> str:
    by = {"key": "by key", "cli": "from the shell", "python": "from Python"}.get(command.by, f"by {command.by}")
    return f"{by}: {command.reason}" if isinstance(command, Stop) and command.reason else by
