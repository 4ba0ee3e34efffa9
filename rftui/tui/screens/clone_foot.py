"""The lines below the rows of the Clone-Modify form: faults, what would change, help and keys."""

from __future__ import annotations

import textwrap

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from rftui.config.ranges import USUAL, USUAL_OF
from rftui.messages import Field
from rftui.runs import Run
from rftui.tui.screens.clone_fields import first_sentence, tell


class Foot(Vertical):
    """`run` is the parent, `stops` what ^t stops."""

    DEFAULT_CSS = """
    Foot { height: auto; }
    Foot Static { height: auto; max-height: 3; }
    Foot #left-out { color: ansi_yellow; display: none; }
    Foot #help { height: 2; }
    """

    def __init__(self, run: Run, stops: str, *, ascii: bool) -> None:
        super().__init__()
        self._run = run
        self._stops = stops
        self._arrow = "->" if ascii else "→"
        self._faults = Static("", id="whole", classes="fault", markup=False)
        self._left_out = Static("", id="left-out", markup=False)
        self._diff = Static("", id="diff", markup=False)
        self._help = Static("", id="help", markup=False)

    def compose(self) -> ComposeResult:
        keys = f"^s launch  ^t and stop {self._stops}  ^e YAML  ^p promote  left/right pick  , several  esc cancel"
        yield from (self._faults, self._left_out, self._diff, self._help)
        yield Static(Text(keys, style="bold"), markup=False)

    def show_faults(self, reason: str) -> None:
        tell(self._faults, reason)

    def show_left_out(self, left_out: dict[int, str]) -> None:
        """Marked runs that are not cloned, and why."""
        tell(self._left_out, "; ".join(f"Skipping run {number}: {why}" for number, why in left_out.items()))

    def show_changes(self, changes: list[tuple[str, str, str]], clones: int, start: str, errors: int) -> None:
        """`changes`: the names of knobs, what they were, and what they would be."""
        parts = ", ".join(f"{name} {was} {self._arrow} {value}" for name, was, value in changes)
        line = f"Changes vs {self._run.id}: {parts}" if changes else "No changes yet"
        text = Text(f"{line}{f': {clones} clones' if clones > 1 else ''}, {start}", style="cyan")
        if errors:
            text.append(f"  ({errors} error{'s' if errors > 1 else ''})", "bold red")
        self._diff.update(text)

    def show_help(self, field: Field | None, width: int) -> None:
        """What a knob is, and which values are usual, in the `width` of two lines."""
        text = ""
        if field:
            usual = USUAL_OF.get(self._run.algo, {}).get(field.name, USUAL.get(field.name))
            text = f"{field.name}{f' (typically {usual})' if usual else ''}: {first_sentence(field.help)}"
        self._help.update(Text(textwrap.shorten(text, 2 * max(10, width), placeholder=" ..."), style="dim"))
