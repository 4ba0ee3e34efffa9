"""The screen below all others: the table, the panels, and the lines around them."""

from __future__ import annotations

import time

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.geometry import Size
from textual.widgets import Static

from rftui.formatting import clean
from rftui.runs import Run
from rftui.tui.board import Board, Change
from rftui.tui.keys import Entry
from rftui.tui.widgets.lines import Line, answer, devices, footer, hint, status
from rftui.tui.widgets.panels import EventLog, Lower, PlotPanel
from rftui.tui.widgets.run_table import RunTable


class FilterBox(Entry):
    BINDINGS = [Binding("enter", "app.keep_filter")]


class MainView:
    """Its widgets, kept by name (a timer may still tick while the screen is taken down, when a query finds nothing any
    more), and what each shows of `board`."""

    def __init__(self, board: Board, *, readonly: bool, ascii: bool) -> None:
        self.board = board
        self.table = RunTable(board, ascii=ascii)
        self.filter = FilterBox(id="filter", placeholder="Filter runs (enter keeps, esc clears)")
        self.metric = "loss"
        self._readonly = readonly
        self._ascii = ascii
        self._plot, self._events = PlotPanel(board, ascii=ascii), EventLog()
        self._lower = Lower(board, self._plot, self._events)
        self._lines = {name: Line(name, ascii=ascii) for name in ("status", "devices", "message", "footer")}
        self._tail = Static("", id="launch", markup=False)
        self._began = time.monotonic()
        self._size = Size(80, 24)
        self._title = ""

    def compose(self) -> ComposeResult:
        yield from (self._lines["status"], self._tail, self.table, self._lower, self.filter)
        yield from (self._lines[name] for name in ("devices", "message", "footer"))

    @property
    def run_at_cursor(self) -> Run | None:
        return self.board.runs.get(self.table.cursor or 0)

    def resize(self, size: Size) -> None:
        self._size = size
        self._lower.share_room(size.height)
        self.paint_lines()

    def show_launch(self, title: str, tail: list[str]) -> None:
        """What is being waited for, and the last lines that it wrote."""
        self._title = title
        if self.board.experiment is None:
            text = Text(f"{title}: waiting for the script ({time.monotonic() - self._began:.0f} s)\n\n")
            text.append("\n".join(map(clean, tail)) or "No output yet", style="dim")
            self._tail.update(text)

    def paint(self, change: Change) -> None:
        """Bring the screen up to what changed."""
        if change.layout:
            self._lower.share_room(self._size.height)
            self.table.rearrange()
        elif change.runs:
            self.table.refresh_runs(change.runs)
        if change.events:
            self._events.show(self.board.events)
        self.paint_lines()

    def paint_lines(self) -> None:
        lines, width = self._lines, self._size.width
        lines["status"].show(status(self.board, self._title, width, ascii=self._ascii))
        lines["devices"].show(devices(self.board, ascii=self._ascii))
        lines["footer"].show(footer(self.run_at_cursor, self._size, readonly=self._readonly))

    def draw(self) -> None:
        self._plot.draw(self.metric, self.table.cursor)

    def say(self, text: str, refused: bool) -> None:
        self._lines["message"].show(answer(text, refused, ascii=self._ascii))

    def show_hint(self) -> None:
        """What failed, or goes wrong, in the run under the cursor, and what is suggested."""
        run = self.run_at_cursor
        text = hint(run, run.suggestion, self._size.width, ascii=self._ascii) if run else None
        if text:
            self._lines["message"].show(text)

    def show_asked(self, runs: set[int]) -> None:
        """Something was asked of these runs, or is asked no more."""
        if self.board.arrange():
            self.table.rearrange()
        else:
            self.table.refresh_runs(runs)

    def toggle(self, panel: str) -> None:
        self._lower.toggle(panel)

    def mark(self) -> None:
        """Mark the run under the cursor, or not, and go on to the next."""
        if (cursor := self.table.cursor) is not None:
            self.board.marked ^= {cursor}
            self.table.refresh_runs({cursor})
            self.table.show_titles()
            self.table.move(1)

    def next_metric(self, step: int) -> bool:
        """Show the metric that is `step` further on; False where there is none."""
        metrics = self.board.metrics()
        if metrics:
            at = metrics.index(self.metric) if self.metric in metrics else 0
            self.metric = self.table.metric = metrics[(at + step) % len(metrics)]
        return bool(metrics)
