"""Pages of text over the table: what they share."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static


class Page(ModalScreen[None]):
    """A scrolling page; esc, q, enter or ? closes it."""

    DEFAULT_CSS = """
    Page { align: center middle; }
    Page > VerticalScroll { width: 120; max-width: 100%; height: 100%; border: round ansi_cyan; padding: 0 1;
        scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "close"),
        Binding("j,down", "scroll(1)"),
        Binding("k,up", "scroll(-1)"),
        Binding("ctrl+d,pagedown,space", "scroll(10)"),
        Binding("ctrl+u,pageup", "scroll(-10)"),
        Binding("g,home", "scroll(-100_000)"),
        Binding("G,end", "scroll(100_000)"),
    ]

    def __init__(self, title: str, text: Text, *, ascii: bool = False) -> None:
        super().__init__()
        self._heading = title
        self._ascii = ascii
        self._body = Static(text, markup=False)

    def compose(self) -> ComposeResult:
        with VerticalScroll() as scroll:
            scroll.border_title = Content(self._heading)
            scroll.border_subtitle = "j k scroll  esc close"
            if self._ascii:
                scroll.styles.border = ("ascii", "ansi_cyan")
            yield self._body

    def show(self, text: Text) -> None:
        self._body.update(text)

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_close(self) -> None:
        self.dismiss(None)
