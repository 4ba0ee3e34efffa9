"""The run table. It draws a row only when that row changed: cost and bytes follow what changed, not how many runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from rftui.formatting import clean, format_cell, format_duration
from rftui.naming import short
from rftui.runs import DONE, FAILED, QUEUED, RUNNING, STOPPED, STOPPING, WAITING, Run
from rftui.tui.board import Board
from rftui.tui.lineage import drawn
from rftui.tui.plot import colour, sparkline

STATES = {
    QUEUED: ("…", ".", "queued", "dim"),
    RUNNING: ("▶", ">", "run", "bold green"),
    WAITING: ("▷", "-", "wait", "green"),
    STOPPING: ("◌", "~", "stopping", "yellow"),
    STOPPED: ("‖", "=", "stopped", "yellow"),
    DONE: ("✔", "+", "done", "cyan"),
    FAILED: ("✗", "x", "failed", "bold red"),
}
"""state -> glyph, ASCII glyph, word, style. A state is never told by its colour alone."""

WIDE = 140


@dataclass(frozen=True)
class _Column:
    title: str
    width: int
    text: Callable[[Run], str]
    right: bool = True
    style: Callable[[Run], str] = lambda run: ""


@dataclass(frozen=True)
class _Row:
    """A row as it was drawn: the cursor and mark, its cells with their styles, and what they make."""

    marks: str
    cells: list[tuple[str, str]]
    strip: Strip


class RunTable(ScrollView, can_focus=True, inherit_bindings=False):
    """Shows `board`; `cursor` is the id of the run under the cursor, and stays on it when rows move."""

    class CursorMoved(Message):
        """The cursor is on another run; `fell`: because the row under it went."""

        def __init__(self, *, fell: bool = False) -> None:
            super().__init__()
            self.fell = fell

    DEFAULT_CSS = "RunTable { scrollbar-size-vertical: 1; overflow-x: hidden; }"

    def __init__(self, board: Board, *, ascii: bool = False) -> None:
        super().__init__(id="runs")
        self.board = board
        self.cursor: int | None = None
        self.metric = "loss"
        self._row = 0  # of the cursor
        self._ascii = ascii
        self._columns: list[_Column] = []
        self._drawn: dict[int, _Row] = {}

    # ------------------------------------------------------------ what changed

    def rearrange(self) -> None:
        """The rows, their order or the columns changed."""
        shown = self.board.shown
        if self.cursor not in shown:  # what stands there now
            before, self.cursor = self.cursor, shown[min(self._row, len(shown) - 1)] if shown else None
            self.post_message(self.CursorMoved(fell=before is not None))
        self._drawn.clear()
        self._columns = self._fitting_columns()
        self.virtual_size = Size(self.size.width, len(shown) + 1)
        self.show_titles()
        self._show_cursor()
        self.refresh()

    def refresh_runs(self, runs: set[int]) -> None:
        """Something about these runs changed: draw those of their cells that did."""
        for row, run in enumerate(self.board.shown):
            old = self._drawn.pop(run, None) if run in runs else None
            y = row + 1 - round(self.scroll_offset.y)
            if old is None or not 1 <= y < self.size.height:
                continue
            new = self._drawn[run] = self._draw_row(self.board.runs[run])
            if old.marks != new.marks:
                self.refresh(Region(0, y, self.size.width, 1))
                continue
            x = 2
            for column, was, now in zip(self._columns, old.cells, new.cells, strict=True):
                if was != now:
                    self.refresh(Region(x, y, column.width, 1))
                x += column.width + len(self._gap)

    @property
    def page(self) -> int:
        """Rows that are seen at once."""
        return max(1, self.size.height - 1)

    def show_titles(self) -> None:
        """Above the table how many runs there are; below it which of them are shown, and how."""
        board, shown, alive = self.board, len(self.board.shown), len(self.board.alive)
        self.border_title = Content(f"1 Runs {shown}{f' of {alive}' if shown < alive else ''}")
        parts = [f"filter {clean(board.filter)}"] if board.filter else []
        parts += [f"by {board.sort}{', highest first' if board.descending else ''}"] if board.sort else []
        parts += [f"{len(board.marked)} marked"] if board.marked else []
        self.border_subtitle = Content("  ".join(parts))

    def move(self, rows: int) -> None:
        shown = self.board.shown
        if shown:
            at = shown.index(self.cursor) if self.cursor in shown else 0
            self.go_to(shown[max(0, min(len(shown) - 1, at + rows))])

    def go_to(self, run: int) -> None:
        before, self.cursor = self.cursor, run
        self.refresh_runs({each for each in (before, run) if each is not None})
        self._show_cursor()
        self.post_message(self.CursorMoved())

    def on_resize(self) -> None:
        self.rearrange()

    def on_click(self, event: object) -> None:
        row = getattr(event, "y", 0) - 1 + round(self.scroll_offset.y)
        if self.cursor in self.board.shown and 0 <= row < len(self.board.shown):
            self.move(row - self.board.shown.index(self.cursor))

    def _show_cursor(self) -> None:
        if self.cursor in self.board.shown:
            row, visible = self.board.shown.index(self.cursor), self.size.height - 1
            self._row = row
            top = round(self.scroll_offset.y)
            if row < top:
                self.scroll_to(y=row, animate=False)
            elif visible > 0 and row >= top + visible:
                self.scroll_to(y=row - visible + 1, animate=False)

    # ------------------------------------------------------------ drawing

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y == 0:
            titles = "  " + self._gap.join(
                _fit(column.title, column.width, right=column.right) for column in self._columns
            )
            return Strip([Segment(titles, Style(bold=True, dim=True))]).adjust_cell_length(width)
        row = y - 1 + round(self.scroll_offset.y)
        if row >= len(self.board.shown):
            return Strip.blank(width)
        run = self.board.shown[row]
        if run not in self._drawn:
            self._drawn[run] = self._draw_row(self.board.runs[run])
        return self._drawn[run].strip

    def _draw_row(self, run: Run) -> _Row:
        under = run.id == self.cursor
        base = Style(reverse=True) if under else Style()
        marks = (">" if under else " ") + ("*" if run.id in self.board.marked else " ")
        segments = [Segment(marks, base + Style(bold=True))]
        cells = [
            (_fit(column.text(run), column.width, right=column.right), column.style(run)) for column in self._columns
        ]
        for text, style in cells:
            segments += [Segment(text, base + Style.parse(style or "none")), Segment(self._gap, base)]
        return _Row(marks, cells, Strip(segments).adjust_cell_length(self.size.width, base))

    @property
    def _gap(self) -> str:
        return " " if self.size.width < 100 else "  "

    def _fitting_columns(self) -> list[_Column]:
        """As many columns as fit, in the order of what one wants to know first; the trend gets what is left over."""
        width, runs = self.size.width - 2, [self.board.runs[run] for run in self.board.shown]
        wide, gap = self.size.width >= WIDE, len(self._gap)
        names = max([cell_len(self._cell_name(run)) for run in runs] + [8])
        states = max([cell_len(self._cell_state(run)) for run in runs] + [10])
        columns = [
            _Column("#", 3, lambda run: str(run.id), style=lambda run: colour(run.id)),
            _Column("NAME", min(names, 40 if wide else 20), self._cell_name, right=False),
            _Column("STATE", states, self._cell_state, right=False, style=self._cell_state_style),
            _Column("CHUNK", 6, lambda run: f"{run.chunk}/{run.chunks or '-'}"),
        ]
        step = _Column("STEP", 11, lambda run: f"{run.step}/{run.total_steps or '-'}")
        values = [
            _Column("LOSS", 7, lambda run: format_cell(run.metrics.get("loss"))),
            _Column("EVAL", 6, lambda run: format_cell(run.metrics.get("eval_loss"))),
        ]
        if self.metric not in ("loss", "eval_loss"):
            values.insert(
                0, _Column(self.metric[:12].upper(), 8, lambda run: format_cell(run.metrics.get(self.metric)))
            )
        trend = self._trend_column(20 if wide else 8)
        knobs = [self._knob_column(name, runs) for name in self.board.knobs]
        tail = [_Column("DEVICE", 6, lambda run: run.device or "-", right=False)]
        if any(run.parent for run in runs):
            tail.append(_Column("PARENT", 14 if wide else 8, self._cell_parent, right=False))
        tail.append(_Column("TIME", 6, lambda run: format_duration(run.active_seconds) if run.active_seconds else "-"))
        left = width - sum(column.width + gap for column in columns)
        more = [step, *values, trend, *knobs] if wide else [*values, *knobs[:1], trend, *knobs[1:]]
        for column in [*more, *tail]:
            if column.width <= left:
                columns.append(column)
                left -= column.width + gap
        if trend in columns and left > 0:
            columns[columns.index(trend)] = self._trend_column(min(trend.width + left, 40))
        return columns

    def _trend_column(self, width: int) -> _Column:
        def text(run: Run) -> str:
            curve = self.board.curves.points(run.id, self.metric)
            return sparkline([value for _, value in curve], width, ascii=self._ascii)

        return _Column("TREND", width, text, right=False, style=lambda run: colour(run.id))

    def _knob_column(self, name: str, runs: list[Run]) -> _Column:
        texts = [format_cell(run.knobs.get(name)) for run in runs]
        return _Column(
            short(name),
            min(20, max([len(short(name)), *map(len, texts)])),
            lambda run: format_cell(run.knobs.get(name)),
            right=not any(isinstance(run.knobs.get(name), (list, str)) for run in runs),
        )

    def _cell_name(self, run: Run) -> str:
        return drawn(self.board.branches.get(run.id, ()), ascii=self._ascii) + clean(run.name)

    def _cell_state(self, run: Run) -> str:
        if run.id in self.board.asked:
            return f"{'~' if self._ascii else '◌'} {self.board.asked[run.id][0]}"
        glyph, plain, word, _ = STATES.get(run.state, ("?", "?", run.state, ""))
        hint = "!" if run.suggestion else ""
        return f"{f'{plain if self._ascii else glyph} {word}':<9}{hint}"

    def _cell_state_style(self, run: Run) -> str:
        return "yellow" if run.id in self.board.asked else STATES.get(run.state, ("", "", "", ""))[3]

    def _cell_parent(self, run: Run) -> str:
        if not run.parent:
            return "-"
        at = "@step " if self.size.width >= WIDE else "@"
        return f"{run.parent} {at}{run.start_step}" if run.warm else f"{run.parent} cold"


def _fit(text: str, width: int, *, right: bool) -> str:
    """`text` in exactly `width` cells, cut where it is longer."""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width)
    return " " * (width - length) + text if right else text + " " * (width - length)
