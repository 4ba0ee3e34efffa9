"""The viewer: a Textual app over a link to the scheduler. It holds plain data only and never touches a model."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any, ClassVar

os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")  # read when textual is imported
os.environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Input

from rftui.errors import INTERRUPTED, USAGE, UserError
from rftui.formatting import clean
from rftui.launching import Launch
from rftui.messages import Reply, Snapshot, Update
from rftui.runs import Run
from rftui.session import NotServed, Reopen, Session
from rftui.tui.actions import ACTIONS, refusal
from rftui.tui.ascii import AsciiFilter
from rftui.tui.board import Board, Change
from rftui.tui.clones import Clones
from rftui.tui.feed import Feed
from rftui.tui.keys import KeysInOrder
from rftui.tui.main_view import MainView
from rftui.tui.quitting import Quitting
from rftui.tui.run_ops import Ops
from rftui.tui.screens.detail import DetailScreen, log_tail
from rftui.tui.screens.help import HelpScreen
from rftui.tui.screens.log import SHOWN, LogScreen
from rftui.tui.screens.rule_list import RulesScreen
from rftui.tui.terminal import end_with_the_terminal, forget_stale_size
from rftui.tui.widgets.panels import TALL
from rftui.tui.widgets.run_table import RunTable

_PAINT = 0.25  # seconds between two paintings of rows whose numbers changed
_DRAW = 0.5  # seconds between two drawings of the plot


class RftuiApp(KeysInOrder):
    """`launch` gives the link once the scheduler serves; until then the app shows what is being waited for.

    An op on an experiment that has ended starts another scheduler by `reopen`.
    """

    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-thin"), (40, "-narrow"), (140, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-small"), (10, "-tiny"), (20, "-short"), (TALL, "-tall")]
    BINDINGS: ClassVar[list[Any]] = [
        Binding(action.keys, action.name, action.label or action.help, show=False) for action in ACTIONS
    ]

    def __init__(
        self, launch: Launch, *, readonly: bool = False, ascii: bool = False, reopen: Reopen | None = None
    ) -> None:
        super().__init__(ansi_color=True)
        self.board = Board()
        self.session = Session(launch, None if readonly else reopen)
        self.readonly = readonly
        self.ascii = ascii
        self.view = MainView(self.board, readonly=readonly, ascii=ascii)
        self.table = self.view.table
        self.ops = Ops(self)
        self.clones = Clones(self, self.ops)
        self.quitting = Quitting(self, self.ops)
        self._feed = Feed(self, self.session)
        self._change = Change()
        if ascii:
            self._filters.append(AsciiFilter())

    def compose(self) -> ComposeResult:
        yield from self.view.compose()

    def on_mount(self) -> None:
        self.screen.add_class("-launching")
        self.show_launch([])
        self.view.paint_lines()
        self.table.set_interval(_PAINT, self.paint)
        self.table.set_interval(_DRAW, self.view.draw)
        # Else a signal would leave the terminal in raw mode.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.exit, INTERRUPTED)
        self.follow()

    def on_unmount(self) -> None:
        self.session.leave()

    @property
    def run_at_cursor(self) -> Run | None:
        return self.view.run_at_cursor

    # ------------------------------------------------------------ the link

    def follow(self) -> None:
        self.run_worker(self._feed.follow, thread=True)

    def receive(self, messages: list[Any]) -> None:
        urgent = False
        for message in messages:
            match message:
                case Snapshot():
                    self._change.merge(self.board.reset(message))
                    if self.screen_stack[0].has_class("-launching"):
                        self.screen_stack[0].remove_class("-launching")
                        self.table.focus()
                    urgent = True
                case Update():
                    change = self.board.apply(message)
                    urgent |= bool(change.layout or change.events or message.runs and not message.points)
                    self._change.merge(change)
                case Reply():
                    self.ops.replied(message)
        if urgent:
            self.paint()

    def not_served(self, fault: UserError) -> None:
        """What was started ended before it served, or nothing could be started."""
        if self.board.experiment is None and isinstance(fault, NotServed):
            self.exit(fault.status)
        else:
            self.ops.forget()
            self.say(f"Can't reopen the experiment: {fault}", True)

    def link_lost(self) -> None:
        """The table stays as it is."""
        done = self.board.experiment is not None and self.board.experiment.state == "done"
        if self.quitting.leaving is not None:
            self.exit(self.quitting.leaving)
        elif self.board.faults:
            self.exit(USAGE)
        elif not self.ops.went_on_to_the_next():
            reopens = " Any action reopens it;" if self.ops.can_reopen else ""
            last = "Scheduler ended; showing the last known state. q quits, `rftui open` resumes"
            self.say(f"Finished.{reopens} q quits" if done else last, not done)

    # ------------------------------------------------------------ painting

    def show_launch(self, tail: list[str]) -> None:
        if self.session.launch:
            self.view.show_launch(self.session.launch.title, tail)

    def paint(self) -> None:
        """Bring the screen up to what changed since the last time."""
        change, self._change = self._change, Change()
        if change == Change():
            return
        if isinstance(self.screen, DetailScreen) and self.screen.run.id in change.runs:
            run = self.board.runs[self.screen.run.id]
            self.screen.update(run, log_tail(self.board.experiment, run))
        elif isinstance(self.screen, LogScreen):
            self.screen.update(log_tail(self.board.experiment, self.screen.run, SHOWN))
        elif isinstance(self.screen, RulesScreen) and self.board.experiment:
            self.screen.update(self.board.experiment.rules)
        self.view.paint(change)

    def _rearrange(self) -> None:
        self._change.merge(Change(layout=True))
        self.paint()

    def show_asked(self, runs: set[int]) -> None:
        self.view.show_asked(runs)

    def go_to(self, run: int) -> None:
        self.table.go_to(run)

    def say(self, text: str, refused: bool = False) -> None:
        """On the message line: an op's answer, or why a key is refused."""
        self.view.say(text, refused)

    def on_run_table_cursor_moved(self, event: RunTable.CursorMoved) -> None:
        self.view.paint_lines()
        if not event.fell:  # else it would stand over the answer to a deletion
            self.view.show_hint()

    def on_resize(self, event: events.Resize) -> None:
        self.view.resize(event.size)  # `self.size` is still the old one

    # ------------------------------------------------------------ keys

    def action_op(self, op: str) -> None:
        self.ops.press(op)

    def action_undo(self) -> None:
        self.ops.undo()

    def action_clone(self, how: str) -> None:
        {"form": self.clones.clone, "promote": self.clones.promote, "suggest": self.clones.suggest}[how]()

    def action_quit(self) -> None:  # type: ignore[override]
        self.quitting.quit()

    def action_move(self, rows: int) -> None:
        self.table.move(rows)

    def action_page(self, pages: int) -> None:
        self.table.move(pages * self.table.page)

    def action_mark(self) -> None:
        self.view.mark()

    def action_clear(self) -> None:
        self.board.marked = set()
        self.board.set_filter("")
        self.view.filter.value, self.view.filter.display = "", False
        self.screen.set_focus(self.table)
        self._rearrange()

    def action_metric(self, step: int) -> None:
        if self.view.next_metric(step):
            self._rearrange()
            self.view.draw()

    def action_sort(self) -> None:
        orders = [None, "loss", "eval_loss"]
        self.board.sort_by(orders[(orders.index(self.board.sort) + 1) % len(orders)])
        self._rearrange()

    def action_reverse(self) -> None:
        self.board.sort_by(self.board.sort or "loss", descending=not self.board.descending)
        self._rearrange()

    def action_filter(self) -> None:
        self.view.filter.display = True
        self.screen.set_focus(self.view.filter)

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter":
            self.board.set_filter(event.value)
            self._rearrange()

    def action_keep_filter(self) -> None:
        self.board.set_filter(self.view.filter.value)
        self._rearrange()
        self.view.filter.display = False
        self.screen.set_focus(self.table)

    def action_panel(self, panel: str) -> None:
        self.view.toggle(panel)

    def action_detail(self) -> None:
        if run := self.run_at_cursor:
            tail = log_tail(self.board.experiment, run)
            self.push_screen(DetailScreen(run, self.board.runs, tail, ascii=self.ascii))

    def action_log(self) -> None:
        if run := self.run_at_cursor:
            self.push_screen(LogScreen(run, log_tail(self.board.experiment, run, SHOWN), ascii=self.ascii))

    def action_rules(self) -> None:
        rules = self.board.experiment.rules if self.board.experiment else []
        self.push_screen(RulesScreen(rules, self.ops.switch, ascii=self.ascii))

    def action_help(self) -> None:
        run = self.run_at_cursor
        groups: dict[str, list[tuple[str, str, str | None]]] = {}
        for action in ACTIONS:
            reason = refusal(action, run, readonly=self.readonly)
            groups.setdefault(action.group, []).append((action.shown, action.help, reason))
        self.push_screen(HelpScreen(list(groups.items()), ascii=self.ascii))


def run(launch: Launch, *, readonly: bool = False, ascii: bool = False, reopen: Reopen | None = None) -> int:
    """Show the experiment until its user leaves; returns the exit code, and prints how the runs stand.

    Where the script ended before it served, that is its exit code, and why is for the caller to say.
    """
    forget_stale_size(os.environ)
    end_with_the_terminal()
    app = RftuiApp(launch, readonly=readonly, ascii=ascii, reopen=reopen)
    code = app.run()
    if app.quitting.ended:
        launch.end()
    for line in app.board.faults:
        print(f"rftui: {clean(line)}", file=sys.stderr)
    for line in app.quitting.last_words(launch):
        encoding = sys.stdout.encoding or "ascii"
        print(line.encode(encoding, "replace").decode(encoding))
    return app.return_code or (INTERRUPTED if code is None else code)
