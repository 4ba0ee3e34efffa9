"""What becomes of the runs, and of the scheduler, as the user quits."""

from __future__ import annotations

from rftui.errors import DONE, FAILED, INTERRUPTED
from rftui.formatting import clean
from rftui.launching import Launch
from rftui.messages import Command, Finish, Interrupt
from rftui.runs import FAILED as RUN_FAILED
from rftui.tui.board import summary
from rftui.tui.host import Host
from rftui.tui.run_ops import Ops
from rftui.tui.screens.confirm import ConfirmScreen
from rftui.tui.screens.quit import PurgeScreen, QuitScreen

_ENDED = ("done", "interrupted")
"""States of an experiment whose scheduler has put everything down."""


class Quitting:
    """`leaving` is the exit code once the scheduler was told to end. `ended`: the user left before the script served,
    and it is to be ended."""

    def __init__(self, app: Host, ops: Ops) -> None:
        self.leaving: int | None = None
        self.ended = False
        self._app = app
        self._ops = ops
        self._board = app.board
        self._session = app.session

    def quit(self) -> None:
        """At once where nothing trains any more or by this viewer's leave, and nothing is lost; else ask."""
        session, board = self._session, self._board
        if self.leaving is not None:
            self._app.exit(self.leaving)
        elif session.ended or (self._ops.unanswered and not session.up):
            self._app.exit(self._code)
        elif not session.up and session.launch and session.launch.started:
            self._end_script(session.launch)
        elif not session.up or self._app.readonly:
            self._app.exit(DONE)
        elif board.active:
            screen = QuitScreen(
                board.active, board.opens, unsaved=board.unsaved, deleted=board.restorable, ascii=self._app.ascii
            )
            self._app.push_screen(screen, self._answered)
        elif board.restorable:
            self._app.push_screen(PurgeScreen(board.restorable, ascii=self._app.ascii), self._answered)
        else:
            self._finish()

    def _end_script(self, launch: Launch) -> None:
        """Nobody would see what becomes of a script that has not begun to train: it ends with its viewer."""

        def answered(yes: bool | None) -> None:
            if yes and self._session.up:
                self.quit()  # it has begun meanwhile: the question is another one
            elif yes:
                self.ended = True
                self._app.exit(INTERRUPTED)

        title, text = f"Stop {launch.title} and quit?", "Training has not started yet, so nothing is lost."
        self._app.push_screen(ConfirmScreen(title, text, "Stop and quit", ascii=self._app.ascii), answered)

    def _answered(self, answer: str | None) -> None:
        if answer == "leave":
            self._app.exit(DONE)
        elif answer == "restore":
            self._ops.restore_all()
        elif answer == "finish":
            self._finish()
        elif answer == "interrupt":
            self._end(Interrupt(), INTERRUPTED, "Pausing all runs... q quits now")

    def _finish(self) -> None:
        self._end(Finish(), self._code, "Closing... q quits now")

    def _end(self, command: Command, code: int, text: str) -> None:
        """Have the scheduler end, and leave when it has."""
        self.leaving = code
        self._app.say(text)
        self._session.submit(command)

    @property
    def _code(self) -> int:
        return FAILED if self._board.count(RUN_FAILED) else DONE

    def last_words(self, launch: Launch) -> list[str]:
        """What the terminal shows when the viewer has left it, but for faults."""
        if self.ended:
            return [f"{launch.title} was stopped before training began; its output is in {launch.log}"]
        if self._board.experiment is None and launch.exit_status is None:
            output = f"; its output is in {launch.log}" if launch.log else ""
            return [f"{launch.title} is still running; rftui ls shows its experiment{output}"]
        late = [(command.op, self._board.runs[command.run]) for command in self._ops.unanswered]
        not_done = [f"Not done: {op} run {run.id} {clean(run.name)}" for op, run in late]
        return [] if self._board.faults else summary(self._board) + not_done + self._still_closing(launch)

    def _still_closing(self, launch: Launch) -> list[str]:
        """What the scheduler does yet, whose end was asked for and not awaited."""
        info = self._board.experiment
        if self.leaving is None or info is None or info.state in _ENDED or launch.exit_status is not None:
            return []
        steps = [f"run {device.run} on {device.name}" for device in self._board.devices.values() if device.run]
        what = f"waiting for the step of {' and of '.join(steps)}" if steps else "its workers save their runs"
        return [f"Still closing: {what}; rftui ls shows when it has ended, kill -INT {info.pid} ends it at once"]
