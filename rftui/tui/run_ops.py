"""What the user asks of the scheduler: ops on runs, and what becomes of them as the viewer leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rftui.errors import DONE, FAILED, INTERRUPTED
from rftui.formatting import clean
from rftui.launching import Launch
from rftui.link import LinkLost
from rftui.messages import RUN_COMMANDS, Command, Finish, Interrupt, Reply, SetRule
from rftui.runs import DELETED, Run, why_not
from rftui.runs import FAILED as RUN_FAILED
from rftui.runs import refusal as runs_refusal
from rftui.tui.actions import ACTIONS, READONLY, refusal
from rftui.tui.board import COMING_BACK, summary
from rftui.tui.screens.confirm import ConfirmScreen
from rftui.tui.screens.quit import QuitScreen

if TYPE_CHECKING:
    from rftui.tui.app import RftuiApp

_DOING = {"stop": "stopping", "resume": "resuming", "delete": "deleting", "undo": COMING_BACK}


class Ops:
    """Whatever is refused is said on the message line, with its reason.

    `leaving` is the exit code once the scheduler was told to end. `ended`: the user left before the script served, and
    it is to be ended.
    """

    def __init__(self, app: RftuiApp, *, readonly: bool, ascii: bool) -> None:
        self.leaving: int | None = None
        self.ended = False
        self._app = app
        self._board = app.board
        self._readonly = readonly
        self._ascii = ascii
        self._attached = app.attached
        self._sent: dict[str, tuple[Command, Run]] = {}
        self._late: list[tuple[Command, Run]] = []  # for the scheduler that is coming up
        self._together: list[set[int]] = []  # runs that were deleted at once
        self._switched: set[str] = set()  # ids of commands to switch rules

    def press(self, op: str) -> None:
        """Stop, resume or delete the marked runs, else the one under the cursor."""
        runs, left_out = self.allowed(op, self._board.targets(self._app.table.cursor))
        if runs and op == "delete":
            self._delete(runs, left_out)
        elif runs:
            self.ask(op, runs, left_out)

    def _delete(self, runs: list[Run], left_out: str) -> None:
        named = ", ".join(f"{run.id} {clean(run.name)}" for run in runs)
        stopped = "It is stopped at its next step. " if any(run.active for run in runs) else ""
        kept = "u brings it back until the experiment ends; then its checkpoints, adapter and MLflow run go. "
        kept += "Clones of it keep their weights."

        def answered(yes: bool | None) -> None:
            if yes:
                self._together.append({run.id for run in runs})
                self.ask("delete", runs, left_out)

        self._app.push_screen(ConfirmScreen(f"Delete run {named}?", stopped + kept, ascii=self._ascii), answered)

    def undo(self) -> None:
        """Bring back what was deleted last: all of it where several were deleted at once."""
        coming = [run for run, (doing, _) in self._board.asked.items() if doing == _DOING["undo"]]
        deleted = self._board.deleted
        if self._attached.lost and not self.can_reopen:
            self._app.say("undo is refused: the scheduler has ended", True)
        elif self._readonly:
            self._app.say(f"undo is refused: {READONLY}", True)
        elif coming:
            self._app.say(f"undo is refused: run {coming[0]} is coming back already", True)
        elif not deleted:
            self._app.say("undo is refused: no run was deleted", True)
        else:
            last = self._board.runs[deleted[-1]]
            together = next((runs for runs in reversed(self._together) if last.id in runs), {last.id})
            runs = [self._board.runs[number] for number in deleted if number in together]
            able = [run for run in runs if not self._gone(run)]
            if not able:
                self._app.say(runs_refusal(last, "undo", self._gone(last) or ""), True)
                return
            self.ask("undo", able)
            if able[0].id in self._board.shown:
                self._app.table.go_to(able[0].id)

    def _gone(self, run: Run) -> str | None:
        """Why a deleted run cannot come back; one that is being deleted can."""
        return why_not(run, "undo") if run.state == DELETED else None

    def switch(self, rule: str, on: bool) -> None:
        """Switch a rule on or off."""
        viewer = self._attached.viewer
        if self._readonly or self._attached.lost or viewer is None:
            why = READONLY if self._readonly else "the scheduler has ended"
            self._app.say(f"rule {rule} stays as it is: {why}", True)
            return
        command = SetRule(rule, {"on": on})
        self._switched.add(command.id)
        try:
            viewer.send(command)
        except LinkLost:
            pass  # whoever listens to it finds out, too, and says so

    def replied(self, reply: Reply) -> None:
        if reply.command in self._switched:
            self._switched.remove(reply.command)
            self._app.say(reply.text, not reply.ok)
        if reply.command not in self._sent:
            return
        if reply.ending and self._attached.can_reopen:
            self._app.say("the experiment is just ending; it is opened again for this")
            return  # asked again as the link is lost
        _, run = self._sent.pop(reply.command)
        if not reply.ok and run.id in self._board.asked:
            del self._board.asked[run.id]
            self._app.show_asked({run.id})
        self._app.say(reply.text, not reply.ok)

    # ------------------------------------------------------------ the next scheduler

    @property
    def can_reopen(self) -> bool:
        """Whether another scheduler may be started for an op: nothing but the op would train there."""
        info = self._board.experiment
        return self._attached.can_reopen and info is not None and info.state == "done"

    def went_on_to_the_next(self) -> bool:
        """Whether another scheduler is started for what this one, which has ended, did not answer."""
        if not (self.can_reopen and self._sent):
            self.forget()
            return False
        self._late += self._sent.values()
        self._sent = {}
        self._reopen()
        return True

    def ask_again(self) -> None:
        """What the scheduler before this one did not answer; clones once the knobs are known here."""
        late, self._late = self._late, []
        for command, run in late:
            if command.op == "clone" and not self._board.schema:
                self._late.append((command, run))
            else:
                self.send(command, run)

    def forget(self) -> None:
        """Nothing that was asked will be done."""
        asked, self._board.asked = set(self._board.asked), {}
        self._sent, self._late = {}, []
        self._app.show_asked(asked)

    def _reopen(self) -> None:
        assert self._board.experiment
        path = Path(self._board.experiment.path)
        self._attached.lost, self._attached.viewer = False, None
        self._app.say("the experiment has ended; it is opened again for this")
        self._app.run_worker(lambda: self._attached.reopen(path), thread=True)

    # ------------------------------------------------------------ leaving

    def last_words(self, launch: Launch) -> list[str]:
        """What the terminal shows when the viewer has left it, but for faults."""
        if self.ended:
            return [f"{launch.title} was ended before it began to train; its output is in {launch.log}"]
        if self._board.experiment is None and launch.exit_status is None:
            output = f"; its output is in {launch.log}" if launch.log else ""
            return [f"{launch.title} goes on; rftui ls names its experiment{output}"]
        late = [f"not done: {command.op} of run {run.id} {clean(run.name)}" for command, run in self._late]
        return [] if self._board.faults else summary(self._board) + late

    def quit(self) -> None:
        """At once where nothing trains any more or by this viewer's leave; else ask."""
        if self.leaving is not None:
            self._app.exit(self.leaving)
        elif self._attached.lost or (self._late and self._attached.viewer is None):
            self._app.exit(self._code)
        elif self._attached.viewer is None and self._attached.launch.started:
            self._end_script()
        elif self._attached.viewer is None:
            self._app.exit(DONE)
        elif self._readonly:
            self._app.exit(DONE)
        elif self._board.active:
            self._app.push_screen(QuitScreen(self._board.active, self._board.opens, ascii=self._ascii), self._answered)
        else:
            self._end(Finish(), self._code, "the scheduler ends; q leaves without waiting")

    def _end_script(self) -> None:
        """Nobody would see what becomes of a script that has not begun to train: it ends with its viewer."""
        title = self._attached.launch.title
        text = f"{title} has not begun to train. If you leave now, it is ended."

        def answered(yes: bool | None) -> None:
            if yes and self._attached.viewer:
                self.quit()  # it has begun meanwhile: the question is another one
            elif yes:
                self.ended = True
                self._app.exit(INTERRUPTED)

        self._app.push_screen(ConfirmScreen(f"End {title}?", text, "End it and leave", ascii=self._ascii), answered)

    def _answered(self, answer: str | None) -> None:
        if answer == "leave":
            self._app.exit(DONE)
        elif answer == "interrupt":
            self._end(Interrupt(), INTERRUPTED, "every run stops at its next step; q leaves without waiting")

    def _end(self, command: Command, code: int, text: str) -> None:
        """Have the scheduler end, and leave when it has."""
        assert self._attached.viewer
        self.leaving = code
        self._app.say(text)
        try:
            self._attached.viewer.send(command)
        except LinkLost:
            self._app.exit(code)

    @property
    def _code(self) -> int:
        return FAILED if self._board.count(RUN_FAILED) else DONE

    # ------------------------------------------------------------ asking

    def allowed(self, op: str, runs: list[Run]) -> tuple[list[Run], str]:
        """Those of `runs` that the op may be asked of, and why the others are left out, which is said."""
        if self._attached.lost and not self.can_reopen:
            self._app.say(f"{op} is refused: the scheduler has ended", True)
            return [], ""
        if not runs:
            self._app.say(f"{op} is refused: {self.reason(op, None)}", True)
        reasons = [(run, reason) for run in runs if (reason := self.reason(op, run))]
        refused = [runs_refusal(run, op, reason) for run, reason in reasons]
        left_out = f"{refused[0]} (and {len(refused) - 1} more)" if len(refused) > 1 else "".join(refused)
        if left_out:
            self._app.say(left_out, True)
        return [run for run in runs if run not in [other for other, _ in reasons]], left_out

    def reason(self, op: str, run: Run | None) -> str | None:
        action = next(action for action in ACTIONS if action.op == op)
        reason = refusal(action, run, readonly=self._readonly)
        doing = self._board.asked[run.id][0] if run and run.id in self._board.asked else ""
        return f"it is already {doing}" if not reason and doing in (_DOING.get(op), "deleting") else reason

    def ask(self, op: str, runs: list[Run], left_out: str = "") -> None:
        for run in runs:
            self._board.asked[run.id] = (_DOING[op], DELETED if op == "undo" else run.state)
            self.send(RUN_COMMANDS[op](run.id), run)
        self._app.show_asked({run.id for run in runs})
        if runs and left_out:
            self._app.say(f"{op} asked for; but {left_out}", True)

    def send(self, command: Command, run: Run) -> None:
        """Ask the scheduler, or the next one where this one has ended."""
        self._app.say(f"run {run.id} {run.name}: {command.op} asked for")
        viewer = self._attached.viewer
        if self._attached.lost:
            self._late.append((command, run))
            self._reopen()
        elif viewer is None:  # it is coming up
            self._late.append((command, run))
        else:
            self._sent[command.id] = command, run
            try:
                viewer.send(command)
            except LinkLost:
                pass  # whoever listens to it finds out, too, and what becomes of the op is decided there
