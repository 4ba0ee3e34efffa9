"""The best runs, or the marked ones, as cold clones on another base model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from rftui.automl.ranking import best, usual_metric
from rftui.config.sweeps import sweep_faults, values
from rftui.config.validate import sentence
from rftui.formatting import clean, format_cell
from rftui.messages import Field
from rftui.runs import Run
from rftui.tui.keys import Entry
from rftui.tui.screens.clone_fields import Row, tell

_MODEL = "model_name"
_LISTED = 8
_FITTED = "Target modules are matched to the new base; the batch is fitted to memory, at the same effective size."


@dataclass
class PromoteRequest:
    """`runs` are cloned cold with the changes; with several models, by the sweep."""

    runs: list[Run]
    changes: dict[str, Any]
    sweep: dict[str, list[Any]]


class PromoteScreen(ModalScreen[PromoteRequest | None]):
    """`runs` are the marked ones (`chosen`), or all of which the best few are taken."""

    DEFAULT_CSS = """
    PromoteScreen { align: center middle; }
    PromoteScreen > Vertical { width: 78; max-width: 100%; height: auto; max-height: 100%; border: round ansi_cyan;
        padding: 0 1; }
    PromoteScreen Input { width: 1fr; }
    PromoteScreen #of { height: auto; max-height: 12; margin: 1 0; }
    PromoteScreen #fault { color: ansi_red; display: none; height: auto; max-height: 4; }
    PromoteScreen .foot { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,ctrl+s", "launch", priority=True),
        Binding("escape", "cancel"),
        Binding("down", "app.focus_next"),
        Binding("up", "app.focus_previous"),
    ]

    def __init__(
        self, runs: list[Run], schema: Mapping[str, list[Field]], *, chosen: bool, ascii: bool = False
    ) -> None:
        super().__init__()
        self._runs = runs
        self._schema = schema
        self._chosen = chosen
        self._ascii = ascii
        self._metric = usual_metric(runs)

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Promote"
            if self._ascii:
                box.styles.border = ("ascii", "ansi_cyan")
            yield Row("base model", Entry(id="model", placeholder="a directory or a name on the Hub"), indent=14)
            if not self._chosen:
                yield Row("how many", Entry("1", id="count"), indent=14)
            yield Static("", id="of", markup=False)
            yield Static("", id="fault", markup=False)
            yield Static(Text(_FITTED, style="dim"), classes="foot", markup=False)
            yield Static(Text("enter launch  up/down field  esc cancel", style="bold"), classes="foot", markup=False)

    def on_mount(self) -> None:
        self.query_one("#model").focus()
        self._check()

    def on_input_changed(self) -> None:
        self._check()

    def _check(self) -> PromoteRequest | None:
        """Read the fields and show which runs are meant; None where something is wrong, which is shown."""
        model = self.query_one("#model", Entry).value.strip()
        models = values(Field(_MODEL, "text"), model) if model else []
        runs, fault = self._meant(models)
        self.query_one("#of", Static).update(self._listed(runs))
        changes, sweep = ({_MODEL: models[0]}, {}) if len(models) == 1 else ({}, {_MODEL: models})
        if models and not fault:
            judged = {run.id: sweep_faults(run, changes, sweep, False, self._schema[run.algo]) for run in runs}
            fault = "; ".join(f"run {run}: {sentence(why)}" for run, why in judged.items() if why)
        tell(self.query_one("#fault", Static), fault)
        return PromoteRequest(runs, changes, sweep) if models and not fault else None

    def _meant(self, models: list[str]) -> tuple[list[Run], str]:
        """The runs to promote, which are on other models yet, or why there are none."""
        runs = [run for run in self._runs if run.config.get(_MODEL) not in models]
        if self._chosen:
            return runs, "" if runs else "The marked runs already use that model"
        count = self.query_one("#count", Entry).value.strip()
        if not count.isdecimal() or int(count) < 1:
            return [], "How many? Enter a number such as 3"
        found = best(runs, self._metric, int(count))
        return found, "" if found else f"No run on another model has a {self._metric} yet; mark the runs to promote"

    def _listed(self, runs: list[Run]) -> Text:
        how = "Marked runs" if self._chosen else f"Best by {self._metric}"
        text = Text(f"{how}, each started from scratch:", no_wrap=True, overflow="ellipsis")
        shown = runs[:_LISTED]
        width = max([cell_len(clean(run.name)) for run in shown] + [0])
        for run in shown:
            name, value = clean(run.name), format_cell(run.metrics.get(self._metric))
            text.append(f"\n{run.id:>4}  {name}{' ' * (width - cell_len(name))}  {value:>7}", "cyan")
            text.append(f"  {clean(run.config.get(_MODEL, ''))}", "dim")
        if len(runs) > len(shown):
            text.append(f"\n      and {len(runs) - len(shown)} more")
        return text

    def action_launch(self) -> None:
        if request := self._check():
            self.dismiss(request)
            return
        fault = self.query_one("#fault", Static)
        if not fault.display:
            tell(fault, "Enter a base model")
        self.app.bell()

    def action_cancel(self) -> None:
        self.dismiss(None)
