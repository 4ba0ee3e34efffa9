"""The viewer: a Textual app over a link to the scheduler. It holds plain data only and never touches a model."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from typing import Any, ClassVar

os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")  # read when textual is imported
os.environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Input, Static

from rftui.errors import INTERRUPTED, USAGE
from rftui.formatting import clean
from rftui.launching import Launch
from rftui.messages import Reply, Snapshot, Update
from rftui.runs import Run
from rftui.tui.actions import ACTIONS, refusal
from rftui.tui.ascii import AsciiFilter
from rftui.tui.attached import Attached, Reopen
from rftui.tui.board import Board, Change
from rftui.tui.clones import Clones
from rftui.tui.keys import Entry, KeysInOrder
from rftui.tui.run_ops import Ops
from rftui.tui.screens.detail import DetailScreen, log_tail
from rftui.tui.screens.help import HelpScreen
from rftui.tui.screens.log import LINES, LogScreen
from rftui.tui.screens.rule_list import RulesScreen
from rftui.tui.widgets.lines import Line, answer, devices, footer, hint, status
from rftui.tui.widgets.panels import TALL, EventLog, Lower, PlotPanel
from rftui.tui.widgets.run_table import RunTable

_PAINT = 0.25  # seconds between two paintings of rows whose numbers changed
_DRAW = 0.5  # seconds between two drawings of the plot


class FilterBox(Entry):
    BINDINGS: ClassVar[list[Any]] = [Binding("enter", "app.keep_filter")]


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
        self.attached = Attached(self, launch, None if readonly else reopen)
        self.ops = Ops(self, readonly=readonly, ascii=ascii)
        self.clones = Clones(self, self.ops, ascii=ascii)
        self._readonly = readonly
        self._ascii = ascii
        self._change = Change()
        self._metric = "loss"
        self._began = time.monotonic()
        self._room = self.size
        if ascii:
            self._filters.append(AsciiFilter())

    def compose(self) -> ComposeResult:
        # Kept by name: a timer may still tick while the screen is taken down, when a query finds nothing any more.
        self.table = RunTable(self.board, ascii=self._ascii)
        self._plot, self._events = PlotPanel(self.board, ascii=self._ascii), EventLog()
        self._lower = Lower(self.board, self._plot, self._events)
        self._lines = {name: Line(name, ascii=self._ascii) for name in ("status", "devices", "message", "footer")}
        self._tail = Static("", id="launch", markup=False)
        self._box = FilterBox(id="filter", placeholder="filter runs; enter keeps it, esc clears it")
        yield from (self._lines["status"], self._tail, self.table, self._lower, self._box)
        yield from (self._lines[name] for name in ("devices", "message", "footer"))

    def on_mount(self) -> None:
        self.screen.add_class("-launching")
        self.show_launch([])
        self._paint_lines()
        self.table.set_interval(_PAINT, self._paint)
        self.table.set_interval(_DRAW, self._draw)
        # Else a signal would leave the terminal in raw mode.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.exit, INTERRUPTED)
        self.run_worker(self.attached.follow, thread=True)

    def on_unmount(self) -> None:
        self.attached.leave()

    @property
    def run_at_cursor(self) -> Run | None:
        return self.board.runs.get(self.table.cursor or 0)

    # ------------------------------------------------------------ the link

    def receive(self, messages: list[Any]) -> None:
        urgent = False
        for message in messages:
            match message:
                case Snapshot():
                    self._change.merge(self.board.reset(message))
                    if self.screen_stack[0].has_class("-launching"):
                        self.screen_stack[0].remove_class("-launching")
                        self.table.focus()
                    self.ops.ask_again()
                    urgent = True
                case Update():
                    change = self.board.apply(message)
                    urgent |= bool(change.layout or change.events or message.runs and not message.points)
                    self._change.merge(change)
                    self.ops.ask_again()
                case Reply():
                    self.ops.replied(message)
        if urgent:
            self._paint()

    def ended_unseen(self, status: int) -> None:
        """What was started ended before it served."""
        if self.board.experiment is None:
            self.exit(status)
        else:
            self.not_reopened("".join(self.attached.launch.tail(1)) or f"it ended with exit code {status}")

    def not_reopened(self, why: str) -> None:
        self.attached.lost = True
        self.ops.forget()
        self.say(f"the experiment could not be opened again: {why}", True)

    def link_lost(self) -> None:
        """The table stays as it is: the scheduler's last word."""
        self.attached.lost = True
        done = self.board.experiment is not None and self.board.experiment.state == "done"
        if self.ops.leaving is not None:
            self.exit(self.ops.leaving)
        elif self.board.faults:
            self.exit(USAGE)
        elif not self.ops.went_on_to_the_next():
            again = ", an op opens it again" if self.ops.can_reopen else ""
            last = "the scheduler has ended: this is its last word. q leaves, `rftui open` goes on"
            self.say(f"the experiment has ended; q leaves{again}" if done else last, not done)

    # ------------------------------------------------------------ painting

    def show_launch(self, tail: list[str]) -> None:
        if self.board.experiment is None:
            text = Text(
                f"{self.attached.launch.title}: waiting for the script ({time.monotonic() - self._began:.0f} s)\n\n"
            )
            text.append("\n".join(map(clean, tail)) or "it has written nothing yet", style="dim")
            self._tail.update(text)

    def _paint(self) -> None:
        """Bring the screen up to what changed since the last time."""
        change, self._change = self._change, Change()
        if change == Change():
            return
        if isinstance(self.screen, DetailScreen) and self.screen.run.id in change.runs:
            run = self.board.runs[self.screen.run.id]
            self.screen.update(run, log_tail(self.board.experiment, run))
        elif isinstance(self.screen, LogScreen):
            self.screen.update(log_tail(self.board.experiment, self.screen.run, LINES))
        elif isinstance(self.screen, RulesScreen) and self.board.experiment:
            self.screen.update(self.board.experiment.rules)
        if change.layout:
            self._lower.share_room(self._room.height)
            self.table.rearrange()
        elif change.runs:
            self.table.refresh_runs(change.runs)
        if change.events:
            self._events.show(self.board.events)
        self._paint_lines()

    def _rearrange(self) -> None:
        self._change.merge(Change(layout=True))
        self._paint()

    def _paint_lines(self) -> None:
        lines, width = self._lines, self._room.width
        lines["status"].show(status(self.board, self.attached.launch.title, width, ascii=self._ascii))
        lines["devices"].show(devices(self.board, ascii=self._ascii))
        lines["footer"].show(footer(self.run_at_cursor, self._room, readonly=self._readonly))

    def _draw(self) -> None:
        self._plot.draw(self._metric, self.table.cursor)

    def show_asked(self, runs: set[int]) -> None:
        """Something was asked of these runs, or is asked no more."""
        if self.board.arrange():
            self.table.rearrange()
        else:
            self.table.refresh_runs(runs)

    def say(self, text: str, refused: bool = False) -> None:
        """On the message line: an op's answer, or why a key is refused."""
        self._lines["message"].show(answer(text, refused, ascii=self._ascii))

    def on_run_table_cursor_moved(self, event: RunTable.CursorMoved) -> None:
        """Say what failed, or goes wrong, and what is suggested, but not over the answer to a deletion."""
        run = self.run_at_cursor
        self._paint_lines()
        text = hint(run, self.board.suggestion(run), self._room.width, ascii=self._ascii) if run else None
        if text and not event.fell:
            self._lines["message"].show(text)

    def on_resize(self, event: events.Resize) -> None:
        self._room = event.size  # `size` is still the old one
        self._lower.share_room(self._room.height)
        self._paint_lines()

    # ------------------------------------------------------------ keys

    def action_op(self, op: str) -> None:
        self.ops.press(op)

    def action_undo(self) -> None:
        self.ops.undo()

    def action_clone(self, how: str) -> None:
        {"form": self.clones.clone, "promote": self.clones.promote, "suggest": self.clones.suggest}[how]()

    def action_quit(self) -> None:  # type: ignore[override]
        self.ops.quit()

    def action_move(self, rows: int) -> None:
        self.table.move(rows)

    def action_page(self, pages: int) -> None:
        self.table.move(pages * self.table.page)

    def action_mark(self) -> None:
        if (cursor := self.table.cursor) is not None:
            self.board.marked ^= {cursor}
            self.table.refresh_runs({cursor})
            self.table.show_titles()
            self.table.move(1)

    def action_clear(self) -> None:
        self.board.marked = set()
        self.board.set_filter("")
        self._box.value, self._box.display = "", False
        self.screen.set_focus(self.table)
        self._rearrange()

    def action_metric(self, step: int) -> None:
        metrics = self.board.metrics()
        if metrics:
            at = metrics.index(self._metric) if self._metric in metrics else 0
            self._metric = self.table.metric = metrics[(at + step) % len(metrics)]
            self._rearrange()
            self._draw()

    def action_sort(self) -> None:
        orders = [None, "loss", "eval_loss"]
        self.board.sort_by(orders[(orders.index(self.board.sort) + 1) % len(orders)])
        self._rearrange()

    def action_reverse(self) -> None:
        self.board.sort_by(self.board.sort or "loss", descending=not self.board.descending)
        self._rearrange()

    def action_filter(self) -> None:
        self._box.display = True
        self.screen.set_focus(self._box)

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter":
            self.board.set_filter(event.value)
            self._rearrange()

    def action_keep_filter(self) -> None:
        self.board.set_filter(self._box.value)
        self._rearrange()
        self._box.display = False
        self.screen.set_focus(self.table)

    def action_panel(self, panel: str) -> None:
        self._lower.toggle(panel)

    def action_detail(self) -> None:
        if run := self.run_at_cursor:
            tail = log_tail(self.board.experiment, run)
            self.push_screen(DetailScreen(run, self.board.runs, tail, ascii=self._ascii))

    def action_log(self) -> None:
        if run := self.run_at_cursor:
            self.push_screen(LogScreen(run, log_tail(self.board.experiment, run, LINES), ascii=self._ascii))

    def action_rules(self) -> None:
        rules = self.board.experiment.rules if self.board.experiment else []
        self.push_screen(RulesScreen(rules, self.ops.switch, ascii=self._ascii))

    def action_help(self) -> None:
        run = self.run_at_cursor
        groups: dict[str, list[tuple[str, str, str | None]]] = {}
        for action in ACTIONS:
            reason = refusal(action, run, readonly=self._readonly)
            groups.setdefault(action.group, []).append((action.shown, action.help, reason))
        self.push_screen(HelpScreen(list(groups.items()), ascii=self._ascii))


def run(launch: Launch, *, readonly: bool = False, ascii: bool = False, reopen: Reopen | None = None) -> int:
    """Show the experiment until its user leaves; returns the exit code, and prints how the runs stand.

    Where the script ended before it served, that is its exit code, and why is for the caller to say.
    """
    app = RftuiApp(launch, readonly=readonly, ascii=ascii, reopen=reopen)
    if os.isatty(0):
        # At once, also where whoever started us ignores it: there is no terminal left to restore, and Textual's writer
        # would wait for it for ever.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        threading.Thread(target=_end_with_the_terminal, daemon=True).start()
    code = app.run()
    if app.ops.ended:
        launch.end()
    for line in app.board.faults:
        print(f"rftui: {clean(line)}", file=sys.stderr)
    for line in app.ops.last_words(launch):
        encoding = sys.stdout.encoding or "ascii"
        print(line.encode(encoding, "replace").decode(encoding))
    return app.return_code or (INTERRUPTED if code is None else code)


def _end_with_the_terminal() -> None:
    """A terminal that is not the controlling one (`setsid`, some containers) goes away without a SIGHUP."""
    while os.isatty(0):
        time.sleep(2.0)
    os.kill(os.getpid(), signal.SIGHUP)
