"""A question before something that cannot be undone by one key."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static


class ConfirmScreen(ModalScreen[bool]):
    """True where the user says yes. Cancel has the focus."""

    DEFAULT_CSS = """
    ConfirmScreen { align: center middle; }
    ConfirmScreen > Vertical { width: 66; max-width: 100%; height: auto; border: round ansi_yellow; padding: 0 1; }
    ConfirmScreen VerticalScroll { height: auto; }
    ConfirmScreen Static { margin-bottom: 1; }
    ConfirmScreen Horizontal { height: 1; align-horizontal: right; }
    ConfirmScreen Button { margin-left: 2; min-width: 0; }
    ConfirmScreen Button:focus { text-style: reverse bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)"),
        Binding("n,escape", "answer(False)"),
        Binding("left,up", "app.focus_previous"),
        Binding("right,down", "app.focus_next"),
        Binding("pageup", "scroll(-1)"),
        Binding("pagedown", "scroll(1)"),
    ]

    def __init__(self, title: str, consequence: str, yes: str = "Delete", *, ascii: bool = False) -> None:
        super().__init__()
        self._title = title
        self._consequence = consequence
        self._yes = yes
        self._ascii = ascii

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            if self._ascii:
                box.styles.border = ("ascii", "ansi_yellow")
            with VerticalScroll(can_focus=False):
                yield Static(Text(self._title, style="bold"), markup=False)
                yield Static(self._consequence, markup=False)
            with Horizontal():
                yield Button("n  Cancel", id="no", compact=True)
                yield Button(Content(f"y  {self._yes}"), id="yes", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_resize(self) -> None:
        # In cells: a share of the screen would not count in the height of the box around it.
        self.query_one(VerticalScroll).styles.max_height = max(2, self.size.height - 6)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_scroll(self, pages: int) -> None:
        text = self.query_one(VerticalScroll)
        text.scroll_relative(y=pages * text.size.height, animate=False)

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)
