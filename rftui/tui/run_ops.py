"""What the user asks of the scheduler: ops on runs, and rules."""

from __future__ import annotations

from pathlib import Path

from rftui.formatting import clean
from rftui.messages import RUN_COMMANDS, Clone, Command, Reply, RunCommand, SetRule
from rftui.paths import ExperimentDir
from rftui.runs import DELETED, Run, why_not
from rftui.runs import refusal as runs_refusal
from rftui.tui.actions import ACTIONS, READONLY, refusal
from rftui.tui.board import RESTORING
from rftui.tui.host import Host
from rftui.tui.screens.confirm import ConfirmScreen

_DOING = {"stop": "stopping", "resume": "resuming", "delete": "deleting", "undo": RESTORING, "clone": "cloning"}
_ENDED = "the scheduler has ended"


class Ops:
    """Whatever is refused is said on the message line, with its reason. `send` and `_ask` make all the commands."""

    def __init__(self, app: Host) -> None:
        self._app = app
        self._board = app.board
        self._session = app.session
        self._sent: dict[str, Command] = {}
        self._together: list[set[int]] = []  # runs that were deleted at once

    def press(self, op: str) -> None:
        """Stop, resume or delete the marked runs, else the one under the cursor."""
        cursor = self._app.run_at_cursor
        runs, left_out = self.allowed(op, self._board.targets(cursor.id if cursor else None))
        if runs and op == "delete":
            self._delete(runs, left_out)
        elif runs:
            self._ask(op, runs, left_out)

    def _delete(self, runs: list[Run], left_out: str) -> None:
        named = ", ".join(f"{run.id} {clean(run.name)}" for run in runs)
        it, its = ("them", "their") if len(runs) > 1 else ("it", "its")
        stopped = f"Stops {it} at the next step. " if any(run.active for run in runs) else ""
        kept = (
            f"u restores {it} until the scheduler ends; after that {its} checkpoints, adapter and MLflow run are "
            "gone. Clones keep their weights."
        )

        def answered(yes: bool | None) -> None:
            if yes:
                self._together.append({run.id for run in runs})
                self._ask("delete", runs, left_out)

        title = f"Delete run{'s' if len(runs) > 1 else ''} {named}?"
        self._app.push_screen(ConfirmScreen(title, stopped + kept, ascii=self._app.ascii), answered)

    def undo(self) -> None:
        """Bring back what was deleted last: all of it where several were deleted at once."""
        coming = [run for run, (doing, _) in self._board.asked.items() if doing == RESTORING]
        deleted = self._board.deleted
        if self._session.ended and not self.can_reopen:
            self._app.say(f"Can't undo: {_ENDED}", True)
        elif self._app.readonly:
            self._app.say(f"Can't undo: {READONLY}", True)
        elif coming:
            self._app.say(f"Run {coming[0]} is already being restored", True)
        elif not deleted:
            self._app.say("Nothing to undo", True)
        else:
            last = self._board.runs[deleted[-1]]
            together = next((runs for runs in reversed(self._together) if last.id in runs), {last.id})
            self._restore([self._board.runs[number] for number in deleted if number in together])

    def restore_all(self) -> None:
        """Bring back every run that can be."""
        self._restore(self._board.restorable)

    def _restore(self, runs: list[Run]) -> None:
        able = [run for run in runs if not self._gone(run)]
        if not able:
            self._app.say(runs_refusal(runs[-1], "undo", self._gone(runs[-1]) or ""), True)
            return
        self._ask("undo", able)
        if able[0].id in self._board.shown:
            self._app.go_to(able[0].id)

    def _gone(self, run: Run) -> str | None:
        """Why a deleted run cannot come back; one that is being deleted can."""
        return why_not(run, "undo") if run.state == DELETED else None

    def switch(self, rule: str, on: bool) -> None:
        """Switch a rule on or off."""
        if self._app.readonly or not self._session.up:
            self._app.say(f"Can't change rule {rule}: {READONLY if self._app.readonly else _ENDED}", True)
        else:
            self._submit(SetRule(rule, {"on": on}))

    def replied(self, reply: Reply) -> None:
        command = self._sent.get(reply.command)
        if command is None:
            return
        if reply.ending and self._session.reopens and command.id in self._session.pending:
            self._app.say("The experiment is closing; reopening it for this...")
            return
        self._session.drop(command.id)
        del self._sent[command.id]
        if not reply.ok and isinstance(command, RunCommand) and command.run in self._board.asked:
            del self._board.asked[command.run]
            self._app.show_asked({command.run})
        self._app.say(reply.text, not reply.ok)

    # ------------------------------------------------------------ the next scheduler

    @property
    def can_reopen(self) -> bool:
        """Whether another scheduler may be started for an op: nothing but the op would train there."""
        info = self._board.experiment
        return self._session.reopens and info is not None and info.state == "done"

    @property
    def unanswered(self) -> list[RunCommand]:
        return [command for command in self._session.pending.values() if isinstance(command, RunCommand)]

    def went_on_to_the_next(self) -> bool:
        """Whether another scheduler is started for what this one, which has ended, did not answer."""
        kept: set[int] = set()
        for command in self.unanswered:
            run = self._board.runs[command.run]
            reason = why_not(run, command.op) if run.id not in kept else None  # what comes before it may allow it
            if reason:
                self._session.drop(command.id)
                self._app.say(runs_refusal(run, command.op, reason), True)
            else:
                kept.add(run.id)
        if not (self.can_reopen and self.unanswered):
            self.forget()
            return False
        self._forget_but(kept)
        self._reopen()
        return True

    def forget(self) -> None:
        """Nothing that was asked will be done."""
        for number in self._session.pending:
            self._session.drop(number)
        self._sent.clear()
        self._forget_but(set())

    def _forget_but(self, runs: set[int]) -> None:
        asked = set(self._board.asked) - runs
        for run in asked:
            del self._board.asked[run]
        self._app.show_asked(asked)

    def _reopen(self) -> None:
        assert self._board.experiment
        self._session.go_on(ExperimentDir(Path(self._board.experiment.path)))
        self._app.say("Reopening the experiment...")
        self._app.follow()

    # ------------------------------------------------------------ asking

    def allowed(self, op: str, runs: list[Run]) -> tuple[list[Run], str]:
        """Those of `runs` that the op may be asked of, and why the others are left out, which is said."""
        if self._session.ended and not self.can_reopen:
            self._app.say(f"Can't {op}: {_ENDED}", True)
            return [], ""
        if self._app.readonly:
            self._app.say(f"Can't {op}: {READONLY}", True)
            return [], ""
        if not runs:
            self._app.say(f"Can't {op}: {self.reason(op, None)}", True)
        reasons = [(run, reason) for run in runs if (reason := self.reason(op, run))]
        refused = [runs_refusal(run, op, reason) for run, reason in reasons]
        left_out = f"{refused[0]} (and {len(refused) - 1} more)" if len(refused) > 1 else "".join(refused)
        if left_out:
            self._app.say(left_out, True)
        return [run for run in runs if run not in [other for other, _ in reasons]], left_out

    def reason(self, op: str, run: Run | None) -> str | None:
        action = next(action for action in ACTIONS if action.op == op)
        reason = refusal(action, run, readonly=self._app.readonly)
        doing = self._board.asked[run.id][0] if run and run.id in self._board.asked else ""
        return f"already {doing}" if not reason and doing in (_DOING.get(op), "deleting") else reason

    def _ask(self, op: str, runs: list[Run], left_out: str = "") -> None:
        for run in runs:
            self._board.asked[run.id] = (_DOING[op], DELETED if op == "undo" else run.state)
        self.send([RUN_COMMANDS[op](run.id) for run in runs], left_out)
        self._app.show_asked({run.id for run in runs})

    def send(self, commands: list[RunCommand], left_out: str = "") -> None:
        """Ask the scheduler, or the next one where this one has ended."""
        named = f"run {commands[0].run}" if len(commands) == 1 else f"{len(commands)} runs"
        said = f"{_DOING[commands[0].op].capitalize()} {named}..."
        self._app.say(f"{said} but {left_out}" if left_out else said, bool(left_out))
        for command in commands:
            algo = self._board.runs[command.run].algo if isinstance(command, Clone) else ""
            self._submit(command, algo)
        if self._session.ended:
            self._reopen()

    def _submit(self, command: Command, algo: str = "") -> None:
        self._sent[command.id] = command
        self._session.submit(command, algo)
