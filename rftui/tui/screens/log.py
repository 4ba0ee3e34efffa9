"""The end of a run's log, followed while it grows."""

from __future__ import annotations

from rich.text import Text
from textual.containers import VerticalScroll

from rftui.runs import Run
from rftui.tui.screens.pages import Page

SHOWN = 500
"""Lines of a log that are shown: its last ones."""


class LogScreen(Page):
    """Shows the last lines of a log; `update` shows them anew, and stays at the end if the end is seen."""

    def __init__(self, run: Run, lines: list[str], *, ascii: bool = False) -> None:
        super().__init__(f"Log of run {run.id} {run.name}", _text(lines), ascii=ascii)
        self.run = run
        self._lines = lines

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).scroll_end(animate=False)

    def update(self, lines: list[str]) -> None:
        if lines != self._lines:
            self._lines = lines
            scroll = self.query_one(VerticalScroll)
            at_end = scroll.scroll_y >= scroll.max_scroll_y
            self.show(_text(lines))
            if at_end:
                scroll.scroll_end(animate=False)


def _text(lines: list[str]) -> Text:
    # What a run writes may hold the codes of colours and cursor moves, which would reach the terminal.
    return Text.from_ansi("\n".join(lines)) if lines else Text("No output yet", "dim")
