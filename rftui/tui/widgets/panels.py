"""The lower panels: the plot and the event log."""

from __future__ import annotations

import time

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from rftui.formatting import clean
from rftui.messages import Event
from rftui.tui.board import Board
from rftui.tui.plot import plot

TALL = 34
_LEVELS = {"error": "bold red", "notice": "yellow"}


class Lower(Horizontal):
    """The panels below the table."""

    def __init__(self, board: Board, *panels: Widget) -> None:
        super().__init__(*panels, id="bottom")
        self._board = board

    def share_room(self, height: int) -> None:
        """On a screen that is tall the panels get what the table's rows leave of its `height`."""
        free = height - len(self._board.alive) - 9  # its frame and titles, the other lines, and two rows
        self.styles.height = max(height * 2 // 5, free) if height >= TALL else None

    def toggle(self, panel: str) -> None:
        """Show or hide one panel, or ("") all of them; without any, the table gets all the room."""
        shown = any(child.display for child in self.children)
        for child in self.children:
            if panel in ("", child.id):
                child.display = not child.display if panel else not shown
        self.display = any(child.display for child in self.children)


class PlotPanel(Static):
    """The curves of the marked runs, or of all if they are few. `draw` is called at most twice a second."""

    def __init__(self, board: Board, *, ascii: bool) -> None:
        super().__init__("", id="plot", markup=False)
        self._board = board
        self._ascii = ascii
        self._drawn: object = None

    def draw(self, metric: str, cursor: int | None) -> None:
        """Draw anew if a shown curve, the size or the choice of runs changed."""
        runs = self._board.plotted(cursor)
        curves = {run: self._board.curves.points(run, metric) for run in runs}
        size = self.content_size
        key = (metric, size, [(run, len(curve), curve[-1:]) for run, curve in curves.items()])
        if key == self._drawn or not self.display:
            return
        self._drawn = key
        alone = len(runs) == 1 and not self._board.marked and sum(map(bool, self._board.curves.values())) > 1
        self.border_title = Content(f"2 {clean(metric)}{'  (mark runs to compare them)' if alone else ''}")
        labels = {run: f"{run} {clean(self._board.runs[run].name)}" for run in runs}
        self.update(plot(curves, labels, size.width, size.height, ascii=self._ascii))


class EventLog(VerticalScroll):
    """The newest events first."""

    def __init__(self) -> None:
        super().__init__(id="events", can_focus=False)
        self.border_title = "3 Events"
        self._text = Static("", markup=False)

    def compose(self) -> ComposeResult:
        yield self._text

    def show(self, events: list[Event]) -> None:
        lines = []
        for event in reversed(events[-100:]):
            clock = time.strftime("%H:%M:%S ", time.localtime(event.time))
            lines.append(Text.assemble((clock, "dim"), (clean(event.text), _LEVELS.get(event.level, ""))))
        self._text.update(Text("\n").join(lines))
