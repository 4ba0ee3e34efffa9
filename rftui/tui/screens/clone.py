"""The Clone-Modify form: the knobs of a run to change, checked as they are typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.suggester import SuggestFromList
from textual.widgets import Checkbox, Input, Static

from rftui.automl.validate import clone_faults, parse
from rftui.faults import Fault
from rftui.messages import Field
from rftui.runs import Run, flatten, short

_ALWAYS = (
    "training_args.learning_rate",
    "training_args.lr_scheduler_type",
    "training_args.warmup_steps",
    "training_args.per_device_train_batch_size",
    "training_args.gradient_accumulation_steps",
    "training_args.num_train_epochs",
    "training_args.max_steps",
    "peft_config.r",
    "peft_config.lora_alpha",
    "peft_config.lora_dropout",
    "peft_config.target_modules",
)


@dataclass
class CloneRequest:
    """`changes`: dotted knob -> new value; `stop_parent`: stop the parent as the clone is launched."""

    changes: dict[str, Any]
    warm: bool
    name: str | None
    stop_parent: bool


class CloneScreen(ModalScreen[CloneRequest | None]):
    """`runs` tell which knobs the experiment sweeps; `fields` describes all knobs."""

    DEFAULT_CSS = """
    CloneScreen { align: center middle; }
    CloneScreen > Vertical { width: 90; max-width: 100%; height: auto; max-height: 100%; border: round ansi_cyan;
        padding: 0 1; }
    CloneScreen VerticalScroll { height: auto; max-height: 100%; scrollbar-size-vertical: 1; }
    CloneScreen .row { height: 1; }
    CloneScreen .name { width: 14; height: 1; }
    CloneScreen .was { width: auto; max-width: 34; height: 1; color: ansi_yellow; }
    CloneScreen Input { width: 1fr; }
    CloneScreen .fault { height: auto; color: ansi_red; display: none; padding-left: 2; }
    CloneScreen Checkbox { height: 1; border: none; padding: 0; }
    CloneScreen .foot { height: auto; max-height: 3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "launch(False)", priority=True),
        Binding("ctrl+t", "launch(True)", priority=True),
        Binding("escape", "cancel"),
        Binding("down", "app.focus_next"),
        Binding("up", "app.focus_previous"),
    ]

    def __init__(self, parent: Run, runs: list[Run], fields: list[Field], *, ascii: bool = False) -> None:
        super().__init__()
        self._origin = parent
        self._described = fields
        self._ascii = ascii
        config = flatten(parent.config)
        swept = dict.fromkeys(name for run in runs for name in run.knobs)
        described = {field.name: field for field in fields}
        wanted = [name for name in dict.fromkeys([*swept, *_ALWAYS]) if name in described]
        if parent.config.get("peft_config") is None:
            wanted = [name for name in wanted if not name.startswith("peft_config.")]
        self._fields = [described[name] for name in wanted]
        self._before = {field.name: config.get(field.name, field.default) for field in self._fields}
        self._cold_only = clone_faults(parent, {}, True, fields)
        # A finished parent goes on warm only with more epochs, which the user has yet to type.
        self._can_warm = not (self._cold_only and parent.step == 0)
        self._changes: dict[str, Any] = {}
        self._faults: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        run = self._origin
        with Vertical() as box:
            box.border_title = Content(f"Clone-Modify run {run.id} {run.name}")
            if self._ascii:
                box.styles.border = ("ascii", "ansi_cyan")
            with VerticalScroll(can_focus=False):
                yield from self._row("name", Input(placeholder="made from the changes", id="name", compact=True))
                for number, field in enumerate(self._fields):
                    box_of = Input(
                        _shown(self._before[field.name]),
                        id=f"field-{number}",
                        compact=True,
                        suggester=SuggestFromList(field.choices, case_sensitive=False) if field.choices else None,
                    )
                    yield from self._row(short(field.name), box_of, number)
                if self._can_warm:
                    label = f"warm start: take run {run.id}'s weights and go on from its step {run.step}"
                    yield Checkbox(label, value=not self._cold_only, id="warm", compact=True)
                else:
                    yield Static(f"cold only: {'; '.join(self._cold_only.values())}", markup=False)
            yield Static("", id="whole", classes="fault", markup=False)
            yield Static("", id="diff", classes="foot", markup=False)
            yield Static("", id="help", classes="foot", markup=False)
            keys = Text("^s launch  ^t launch and stop the parent  up/down field  esc cancel", style="bold")
            yield Static(keys, classes="foot", markup=False)

    def _row(self, name: str, box: Input, number: int | None = None) -> ComposeResult:
        with Horizontal(classes="row"):
            yield Static(name, classes="name", markup=False)
            yield box
            if number is not None:
                yield Static("", id=f"was-{number}", classes="was", markup=False)
        if number is not None:
            yield Static("", id=f"fault-{number}", classes="fault", markup=False)

    def on_mount(self) -> None:
        self.query_one("#field-0" if self._fields else "#name").focus()
        self._check()

    # ------------------------------------------------------------ what is typed

    def on_input_changed(self) -> None:
        self._check()

    def on_checkbox_changed(self) -> None:
        self._check()

    def on_descendant_focus(self) -> None:
        self._help()

    @property
    def _warm(self) -> bool:
        return self._can_warm and self.query_one("#warm", Checkbox).value

    def _check(self) -> None:
        """Read all fields, and show what is wrong and what would change."""
        self._changes, self._faults = {}, {}
        for number, field in enumerate(self._fields):
            text = self.query_one(f"#field-{number}", Input).value
            if text.strip() == _shown(self._before[field.name]):
                continue
            try:
                value = parse(field, text)
            except Fault as fault:
                self._faults[field.name] = str(fault).removeprefix(f"{field.name} ")
                continue
            if value != self._before[field.name]:
                self._changes[field.name] = value
        if not self._faults:
            self._faults = clone_faults(self._origin, self._changes, self._warm, self._described)
        for number, field in enumerate(self._fields):
            self._show(f"#fault-{number}", self._faults.get(field.name, ""))
            changed = field.name in self._changes
            self.query_one(f"#was-{number}", Static).update(
                f" was {_shown(self._before[field.name])}" if changed else ""
            )
        known = {field.name for field in self._fields}
        self._show("#whole", "; ".join(f"{n} {why}".strip() for n, why in self._faults.items() if n not in known))
        self.query_one("#diff", Static).update(self._diff())

    def _show(self, selector: str, text: str) -> None:
        widget = self.query_one(selector, Static)
        widget.update(text)
        widget.display = bool(text)

    def _diff(self) -> Text:
        arrow = "->" if self._ascii else "→"
        parts = [
            f"{short(name)} {_shown(self._before[name])} {arrow} {_shown(value)}"
            for name, value in self._changes.items()
        ]
        start = f"warm from step {self._origin.step}" if self._warm else "cold, from the beginning"
        return Text(f"against run {self._origin.id}: {', '.join(parts) or 'nothing changed'}; {start}", style="cyan")

    def _help(self) -> None:
        number = (self.focused.id or "").removeprefix("field-") if self.focused else ""
        text = ""
        if number.isdecimal():
            field = self._fields[int(number)]
            text = f"{field.name}: " + (", ".join(field.choices) if field.choices else field.help.split(". ")[0])
        self.query_one("#help", Static).update(Text(text[:240], style="dim"))

    # ------------------------------------------------------------ keys

    def action_launch(self, stop_parent: bool) -> None:
        if self._faults:
            faulty = next((n for n, field in enumerate(self._fields) if field.name in self._faults), 0)
            self.query_one(f"#field-{faulty}").focus()
            self.app.bell()
            return
        name = self.query_one("#name", Input).value.strip() or None
        self.dismiss(CloneRequest(self._changes, self._warm, name, stop_parent))

    def action_cancel(self) -> None:
        self.dismiss(None)


def _shown(value: Any) -> str:
    """A value as one types it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return min(f"{value:g}", f"{value:.10g}".rstrip("."), _scientific(value), key=len)
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)


def _scientific(value: float) -> str:
    mantissa, exponent = f"{value:e}".split("e")
    text = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return text if float(text) == value else repr(value)
