"""What the parts of the viewer need of the app that holds them."""

from __future__ import annotations

from typing import Any, Protocol

from rftui.runs import Run
from rftui.session import Session
from rftui.tui.board import Board


class Host(Protocol):
    """`readonly`: nothing is asked of the scheduler; `ascii`: nothing else is shown."""

    board: Board
    session: Session
    readonly: bool
    ascii: bool

    @property
    def run_at_cursor(self) -> Run | None: ...
    def say(self, text: str, refused: bool = False) -> None:
        """On the message line: an op's answer, or why a key is refused."""

    def show_asked(self, runs: set[int]) -> None:
        """Something was asked of these runs, or is asked no more."""

    def go_to(self, run: int) -> None:
        """Move the cursor there."""

    def follow(self) -> None:
        """Listen to the session's scheduler, or the next one, in a thread of its own."""

    def push_screen(self, screen: Any, callback: Any = None) -> Any: ...
    def exit(self, result: int) -> None: ...
