"""What becomes of runs that train when their user leaves."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static


class QuitScreen(ModalScreen[str | None]):
    """ "leave" them training, "interrupt" them at their next step, or None: stay. `opens`: the command that comes
    back."""

    DEFAULT_CSS = """
    QuitScreen { align: center middle; }
    QuitScreen > VerticalScroll { width: 76; max-width: 100%; height: auto; max-height: 100%;
        border: round ansi_yellow; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "answer('leave')"),
        Binding("s", "answer('interrupt')"),
        Binding("escape,q", "answer('')"),
    ]

    def __init__(self, active: int, opens: str, *, ascii: bool = False) -> None:
        super().__init__()
        self._active = active
        self._opens = opens
        self._ascii = ascii

    def compose(self) -> ComposeResult:
        runs = "1 run is" if self._active == 1 else f"{self._active} runs are"
        lines = Text.assemble(
            (f"{runs} not done. Leave?\n\n", "bold"),
            ("l    ", "bold"),
            "leave: they train on, and this shows them again:\n",
            f"     {self._opens}\n",
            ("s    ", "bold"),
            "stop each at its next step, save it, and quit\n",
            ("esc  ", "bold"),
            "stay",
        )
        with VerticalScroll() as box:
            if self._ascii:
                box.styles.border = ("ascii", "ansi_yellow")
            yield Static(lines, markup=False)

    def action_answer(self, answer: str) -> None:
        self.dismiss(answer or None)
