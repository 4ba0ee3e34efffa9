"""The help, made from the registry of actions."""

from __future__ import annotations

from rich.text import Text

from rftui.tui.screens.pages import Page

Groups = list[tuple[str, list[tuple[str, str, str | None]]]]


class HelpScreen(Page):
    """`groups`: a title and its (key, what it does, why it is refused now or None)."""

    def __init__(self, groups: Groups, *, ascii: bool = False) -> None:
        text = Text()
        width = max([len(key) for _, actions in groups for key, _, _ in actions] + [0])
        for title, actions in groups:
            text.append(f"{title}\n", "bold")
            for key, what, reason in actions:
                text.append(f"  {key:<{width}}  ", "bold cyan")
                text.append(what)
                text.append(f"  (not now: {reason})\n" if reason else "\n", "yellow")
            text.append("\n")
        super().__init__("Keys", text, ascii=ascii)
