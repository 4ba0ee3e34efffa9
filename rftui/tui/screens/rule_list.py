"""The rules that stop runs by themselves: which are on, and how they are set."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from rftui.formatting import clean, format_cell
from rftui.messages import Rule


class RulesScreen(ModalScreen[None]):
    """`switch` is called with a rule's name and whether it shall be on; `update` shows what became of it."""

    DEFAULT_CSS = """
    RulesScreen { align: center middle; }
    RulesScreen > VerticalScroll { width: 78; max-width: 100%; height: auto; max-height: 100%;
        border: round ansi_cyan; padding: 0 1; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,R", "close"),
        Binding("j,down", "move(1)"),
        Binding("k,up", "move(-1)"),
        Binding("space,enter", "switch"),
    ]

    def __init__(self, rules: list[Rule], switch: Callable[[str, bool], None], *, ascii: bool = False) -> None:
        super().__init__()
        self._rules = rules
        self._switch = switch
        self._at = 0
        self._ascii = ascii
        self._body = Static(self._text(), markup=False)

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False) as box:
            box.border_title = "Rules that stop runs automatically"
            box.border_subtitle = "space switch  esc close"
            if self._ascii:
                box.styles.border = ("ascii", "ansi_cyan")
            yield self._body

    def update(self, rules: list[Rule]) -> None:
        self._rules = rules
        self._body.update(self._text())

    def action_move(self, rows: int) -> None:
        self._at = max(0, min(len(self._rules) - 1, self._at + rows))
        self._body.update(self._text())

    def action_switch(self) -> None:
        if self._rules:
            rule = self._rules[self._at]
            self._switch(rule.name, not rule.on)

    def action_close(self) -> None:
        self.dismiss(None)

    def _text(self) -> Text:
        text = Text()
        for at, rule in enumerate(self._rules):
            under = at == self._at
            box = ("x" if self._ascii else "✔") if rule.on else " "
            row = f"{'>' if under else ' '} [{box}] {clean(rule.name):<9}{_set(rule)}"
            text.append(f"{row}\n", "reverse" if under else "bold" if rule.on else "")
            text.append(f"        {clean(rule.about)}\n\n", "" if rule.on else "dim")
        return text.append(_ABOUT)


_ABOUT = (
    "Rules compare eval_loss (loss where that is not logged, reward for GRPO) unless you set a metric: "
    "rftui rules NAME on RULE --set metric=... A stopped run keeps its checkpoint: r resumes it, and no rule "
    "stops it again."
)


def _set(rule: Rule) -> str:
    return "  ".join(f"{name} {format_cell(value)}" for name, value in rule.parameters.items() if value is not None)
