"""Where a clone starts: warm from the parent's weights, now or at an earlier checkpoint, or cold; and its schedule."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from rftui.naming import short
from rftui.runs import FAILED, Run, Suggestion
from rftui.tui.screens.clone_fields import Pick, Row

_SCHEDULES = {
    "fresh": "New, over the remaining steps",
    "parent": "Parent's, continued with its optimizer",
}


class Start(Vertical):
    """`not_warm` is what keeps an unchanged clone from a warm start: knob, or "" for the whole -> why.

    `alone`: no other run gets the same changes. Where some do, each starts where it stands.
    """

    DEFAULT_CSS = """
    Start { height: auto; }
    Start .why { height: auto; padding-left: 2; }
    """

    def __init__(
        self,
        run: Run,
        not_warm: dict[str, str],
        suggested: Suggestion | None,
        *,
        alone: bool,
        indent: int,
        ascii: bool,
    ) -> None:
        super().__init__()
        self._run = run
        self._not_warm = not_warm
        self._alone = alone
        # One that failed goes on from its last checkpoint.
        self._step = run.checkpoints[-1] if run.state == FAILED and run.checkpoints else run.step
        self._indent = indent
        starts = {"now": f"Warm: continue from run {run.id}, step {self._step}"}
        if alone:
            earlier = [step for step in reversed(run.checkpoints) if step < self._step]
            starts |= {str(step): f"Warm: continue from its checkpoint at step {step}" for step in earlier}
        starts["cold"] = "Cold: start from the base model"
        first = "cold" if not_warm else "now"
        if suggested:
            first = str(suggested.from_step) if str(suggested.from_step) in starts else "now"
            first = first if suggested.warm else "cold"
        self._start = Pick(starts, first, id="start", ascii=ascii)
        self._schedule = Pick(_SCHEDULES, "fresh", id="schedule", ascii=ascii)
        self._schedule_row = Row("schedule", self._schedule, indent=indent)

    def compose(self) -> ComposeResult:
        if not self.can_warm:
            yield Static(f"Starts from scratch: {self._not_warm['']}", markup=False)
            return
        yield Row("start", self._start, indent=self._indent)
        for name, reason in self._not_warm.items():
            yield Static(f"For a warm start: {short(name)} {reason}", classes="why", markup=False)
        yield self._schedule_row

    @property
    def boxes(self) -> list[Pick]:
        """Those that are there."""
        return [*[self._start] * self.can_warm, *[self._schedule] * self.warm]

    @property
    def can_warm(self) -> bool:
        """A fault of one knob can be mended in the form: a finished parent goes on warm with more epochs."""
        return "" not in self._not_warm

    @property
    def warm(self) -> bool:
        return self.can_warm and self._start.value != "cold"

    @property
    def from_step(self) -> int | None:
        value = str(self._start.value)
        return int(value) if self.warm and value.isdigit() else None

    @property
    def continue_schedule(self) -> bool:
        return self.warm and self._schedule.value == "parent"

    def be_cold(self) -> None:
        self._start.value = "cold"

    def show_schedule(self) -> None:
        """A cold clone has none to choose."""
        self._schedule_row.display = self.warm

    def __str__(self) -> str:
        if not self.warm:
            return "from scratch"
        where = (
            f"warm from step {self.from_step or self._step}" if self._alone else "warm from each run's current step"
        )
        return f"{where}, schedule continued" if self.continue_schedule else where
