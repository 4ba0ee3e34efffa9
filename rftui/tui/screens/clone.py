"""The Clone-Modify form: the knobs of a run to change, checked as they are typed."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Select, Static

from rftui.automl.validate import clone_faults, parse
from rftui.faults import Fault
from rftui.messages import Field
from rftui.runs import Run, flatten, short
from rftui.tui.board import clean
from rftui.tui.keys import Entry

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


class Box(Entry):
    """A value to type; enter goes on to the next field."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "app.focus_next")]


class Pick(Select[str], inherit_bindings=False):
    """A choice on one line: left and right step through it, enter or space opens it; up and down leave the field."""

    DEFAULT_CSS = """
    Pick { width: 1fr; height: 1; }
    Pick > SelectCurrent.-has-value Static#label { color: ansi_default; }
    Pick:focus #label { text-style: reverse; }
    Pick > SelectOverlay { color: ansi_default; background: ansi_default; }
    Pick > SelectOverlay:focus > .option-list--option-highlighted { text-style: bold underline; }
    Pick.-ascii .arrow { display: none; }
    Pick.-ascii > SelectOverlay { border: ascii ansi_cyan; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "show_overlay"),
        Binding("left", "step(-1)"),
        Binding("right", "step(1)"),
    ]

    def __init__(self, choices: dict[str, str], value: str, *, id: str, ascii: bool) -> None:
        """`choices`: value -> what is shown for it."""
        options = [(Text(shown), choice) for choice, shown in choices.items()]
        super().__init__(options, value=value, allow_blank=False, compact=True, id=id)
        self._choices = list(choices)
        self.set_class(ascii, "-ascii")

    def action_step(self, by: int) -> None:
        self.value = self._choices[(self._choices.index(str(self.value)) + by) % len(self._choices)]


class CloneScreen(ModalScreen[CloneRequest | None]):
    """`runs` tell which knobs the experiment sweeps; `fields` describes all knobs."""

    DEFAULT_CSS = """
    CloneScreen { align: center middle; }
    CloneScreen > Vertical { width: 90; max-width: 100%; height: 100%; border: round ansi_cyan; padding: 0 1; }
    CloneScreen #rows { height: 1fr; overflow-y: auto; scrollbar-size-vertical: 1; }
    CloneScreen .knob { height: auto; }
    CloneScreen .row { height: 1; }
    CloneScreen .name { height: 1; padding-right: 2; text-wrap: nowrap; text-overflow: ellipsis; }
    CloneScreen .was { width: auto; max-width: 40%; height: 1; color: ansi_yellow; text-wrap: nowrap;
        text-overflow: ellipsis; }
    CloneScreen Input { width: 1fr; }
    CloneScreen .fault { height: auto; color: ansi_red; display: none; padding-left: 2; }
    CloneScreen .why { height: auto; padding-left: 2; }
    CloneScreen .foot { height: auto; max-height: 3; }
    CloneScreen #help { height: 2; }
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
        self._indent = min(20, max(len(short(name)) for name in ["name", "start", *wanted])) + 2
        self._cold_only = clone_faults(parent, {}, True, fields)
        # A fault of one knob can be mended in the form: a finished parent goes on warm with more epochs.
        self._can_warm = "" not in self._cold_only
        self._changes: dict[str, Any] = {}
        self._faults: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        run = self._origin
        with Vertical() as box:
            box.border_title = Content(f"Clone-Modify run {run.id} {clean(run.name)}")
            if self._ascii:
                box.styles.border = ("ascii", "ansi_cyan")
            # All rows, the lines below them, the border, and room for a few faults before it has to scroll.
            box.styles.max_height = len(self._fields) + 12
            # Not a VerticalScroll, whose own up and down would scroll where they should move between the fields.
            with Vertical(id="rows"):
                yield from self._row("name", Box(id="name", placeholder="made from the changes"))
                for number, field in enumerate(self._fields):
                    yield from self._knob(number, field)
                if self._can_warm:
                    starts = {
                        "warm": f"warm, from run {run.id}'s weights and on from its step {run.step}",
                        "cold": "cold, from the base model and from the beginning",
                    }
                    first = "cold" if self._cold_only else "warm"
                    yield from self._row("start", Pick(starts, first, id="start", ascii=self._ascii))
                    for name, reason in self._cold_only.items():
                        yield Static(f"to start warm: {short(name)} {reason}", classes="why", markup=False)
                else:
                    yield Static(f"cold only: {self._cold_only['']}", markup=False)
            yield Static("", id="whole", classes="fault foot", markup=False)
            yield Static("", id="diff", classes="foot", markup=False)
            yield Static("", id="help", classes="foot", markup=False)
            keys = f"^s launch  ^t launch, stop {run.id}  up/down field  left/right choice  esc cancel"
            yield Static(Text(keys, style="bold"), classes="foot", markup=False)

    def _box(self, number: int, field: Field) -> Box | Pick:
        value, name = shown(self._before[field.name]), f"field-{number}"
        choices = ["true", "false"] if field.kind == "bool" else field.choices
        if not choices:
            return Box(value, id=name)
        # The parent may have a value that is no choice; it stays until another one is picked.
        all_choices = [*choices, *(["none"] if field.optional else []), value]
        return Pick({choice: choice for choice in all_choices}, value, id=name, ascii=self._ascii)

    def _knob(self, number: int, field: Field) -> ComposeResult:
        with Vertical(id=f"knob-{number}", classes="knob"):
            was = Static("", id=f"was-{number}", classes="was", markup=False)
            yield from self._row(short(field.name), self._box(number, field), was)
            yield Static("", id=f"fault-{number}", classes="fault", markup=False)

    def _row(self, name: str, *boxes: Widget) -> ComposeResult:
        with Horizontal(classes="row"):
            label = Static(name, classes="name", markup=False)
            label.styles.width = self._indent
            yield label
            yield from boxes

    def on_mount(self) -> None:
        self._go("#field-0" if self._fields else "#name")
        self._check()

    # ------------------------------------------------------------ what is typed

    def on_input_changed(self) -> None:
        self._check()

    def on_select_changed(self) -> None:
        self._check()

    def on_descendant_focus(self) -> None:
        self._help()

    @property
    def _warm(self) -> bool:
        return self._can_warm and self.query_one("#start", Pick).value == "warm"

    def _typed(self, number: int) -> str:
        box = self.query_one(f"#field-{number}")
        assert isinstance(box, (Box, Pick))
        return str(box.value).strip()

    def _check(self) -> None:
        """Read all fields, and show what is wrong and what would change."""
        self._changes, self._faults = {}, {}
        for number, field in enumerate(self._fields):
            was = shown(self._before[field.name])
            text = self._typed(number)
            self.query_one(f"#was-{number}", Static).update(f" was {was}" if text != was else "")
            if text == was:
                continue
            try:
                value = parse(field, text)
            except Fault as fault:
                self._faults[field.name] = str(fault).removeprefix(f"{field.name} ")
                continue
            if value != self._before[field.name]:
                self._changes[field.name] = value
        if not self._faults and not self._empty:
            self._faults = clone_faults(self._origin, self._changes, self._warm, self._described)
        for number, field in enumerate(self._fields):
            self._show(f"#fault-{number}", self._faults.get(field.name, ""))
        known = {field.name for field in self._fields}
        self._show("#whole", "; ".join(f"{n} {why}".strip() for n, why in self._faults.items() if n not in known))
        self.query_one("#diff", Static).update(self._diff())
        self._reveal(self._focused_field)

    def _reveal(self, number: int | None) -> None:
        """Scroll to a field with its fault, which may stand below the edge."""
        if number is not None and self._fields[number].name in self._faults:
            self.call_after_refresh(self.query_one(f"#knob-{number}").scroll_visible, animate=False)

    def _go(self, field: str) -> None:
        """Focus it, and select what is in it."""
        box = self.query_one(field)
        self.set_focus(box)
        if isinstance(box, Box):
            box.action_select_all()

    @property
    def _focused_field(self) -> int | None:
        """The field with the focus, or whose choices are open."""
        names = [node.id or "" for node in self.focused.ancestors_with_self] if self.focused else []
        return next((int(name.removeprefix("field-")) for name in names if name.startswith("field-")), None)

    @property
    def _empty(self) -> bool:
        """Such a clone would repeat the run: refused, but no fault of what was typed."""
        return not (self._changes or self._faults or self._warm)

    def _show(self, selector: str, text: str) -> None:
        widget = self.query_one(selector, Static)
        widget.update(f"! {text}" if text else "")
        widget.display = bool(text)

    def _diff(self) -> Text:
        arrow = "->" if self._ascii else "→"
        parts = [
            f"{short(name)} {shown(self._before[name])} {arrow} {shown(value)}"
            for name, value in self._changes.items()
        ]
        start = f"warm from step {self._origin.step}" if self._warm else "cold from the beginning"
        changes = f"changes vs {self._origin.id}: {', '.join(parts)}" if parts else "nothing changed yet"
        text = Text(f"{changes}, {start}", style="cyan")
        if number := len(self._faults):
            text.append(f"  ({number} error{'s' if number > 1 else ''})", "bold red")
        return text

    def _help(self) -> None:
        text = ""
        if (number := self._focused_field) is not None:
            field = self._fields[number]
            text = f"{field.name}: {' '.join(field.help.split()).split('. ')[0]}"
        room = 2 * max(10, min(90, self.size.width) - 6)
        self.query_one("#help", Static).update(Text(textwrap.shorten(text, room, placeholder=" ..."), style="dim"))

    # ------------------------------------------------------------ keys

    def action_launch(self, stop_parent: bool) -> None:
        self._check()  # what was typed last may not have been looked at yet
        if self._empty:
            self._show("#whole", f"change something{', or start warm' if self._can_warm else ''}")
        if self._empty or self._faults:
            faulty = (n for n, field in enumerate(self._fields) if field.name in self._faults)
            if (first := next(faulty, None)) is not None:
                self._go(f"#field-{first}")
                self._reveal(first)
            self.app.bell()
            return
        name = self.query_one("#name", Input).value.strip() or None
        self.dismiss(CloneRequest(self._changes, self._warm, name, stop_parent))

    def action_cancel(self) -> None:
        self.dismiss(None)


def shown(value: Any) -> str:
    """A value as one types it, without the loss of a digit: it is read back where the field is left as it is."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isfinite(value):
        forms = (f"{value:g}", f"{value:.0e}", f"{value:.1e}", f"{value:.2e}", repr(value))
        return min((_tidy(form) for form in forms if float(form) == value), key=len)
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)


def _tidy(number: str) -> str:
    """ "2e-04" -> "2e-4"."""
    mantissa, e, exponent = number.partition("e")
    return f"{mantissa}e{int(exponent)}" if e else number
