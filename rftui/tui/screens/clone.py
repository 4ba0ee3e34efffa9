"""The Clone-Modify form: the knobs of a run to change, checked as they are typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Static

from rftui.config.validate import clone_faults
from rftui.errors import UserError
from rftui.formatting import clean
from rftui.messages import Field
from rftui.naming import short
from rftui.redaction import redact
from rftui.runs import Run, Suggestion, flatten
from rftui.tui.editor import edit
from rftui.tui.screens.clone_draft import CloneRequest, Draft
from rftui.tui.screens.clone_fields import INDENT, Box, Finder, Knob, Row, typed
from rftui.tui.screens.clone_foot import Foot
from rftui.tui.screens.clone_start import Start
from rftui.tui.screens.clone_yaml import from_yaml, to_yaml

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
_MODEL = "model_name"


class CloneScreen(ModalScreen[CloneRequest | None]):
    """`runs` tell which knobs the experiment sweeps; `fields` describes all knobs of the parent's algo.

    `others` are runs that get the same changes, each with the fields of its algo. `suggested` is filled in.
    """

    DEFAULT_CSS = """
    CloneScreen { align: center middle; }
    CloneScreen > Vertical { width: 90; max-width: 100%; height: 100%; border: round ansi_cyan; padding: 0 1; }
    CloneScreen #rows { height: 1fr; overflow-y: auto; scrollbar-size-vertical: 1; }
    CloneScreen Input { width: 1fr; }
    CloneScreen .fault { height: auto; color: ansi_red; display: none; padding-left: 2; }
    CloneScreen #suggested { height: auto; color: ansi_yellow; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "launch(False)", priority=True),
        Binding("ctrl+t", "launch(True)", priority=True),
        Binding("ctrl+e", "yaml", priority=True),
        Binding("ctrl+p", "promote", priority=True),
        Binding("escape", "cancel"),
        Binding("down", "app.focus_next"),
        Binding("up", "app.focus_previous"),
    ]

    def __init__(
        self,
        parent: Run,
        runs: list[Run],
        fields: list[Field],
        *,
        others: Sequence[tuple[Run, list[Field]]] = (),
        suggested: Suggestion | None = None,
        ascii: bool = False,
    ) -> None:
        super().__init__()
        self._origin = parent
        self._others = others
        self._suggested = suggested
        self._given = suggested.changes if suggested else {}
        self._fields = fields
        self._ascii = ascii
        self._described = {each.name: each for each in fields}
        self._config = flatten(redact(parent.config), whole=self._described)
        if parent.config.get("peft_config") is None:
            self._described = {n: each for n, each in self._described.items() if not n.startswith("peft_config.")}
        wanted = dict.fromkeys([*(name for run in runs for name in run.knobs), *_ALWAYS, *self._given])
        self._first = [name for name in wanted if name in self._described]
        self._indent = min(INDENT, 2 + max(len(short(name)) for name in ["more settings", *self._first]))
        self._draft = Draft(parent, fields, others)
        self._yaml: str | None = None  # with faults, to be mended
        self._unread: list[str] = []  # and what they are

    def compose(self) -> ComposeResult:
        run, others = self._origin, len(self._others)
        self._knobs = {name: self._knob(name) for name in self._first}
        self._finder = Finder(list(self._described.values()), indent=self._indent)
        self._foot = Foot(run, "them" if others else str(run.id), ascii=self._ascii)
        self._start = Start(
            run,
            clone_faults(run, {}, True, self._fields),
            self._suggested,
            alone=not others,
            indent=self._indent,
            ascii=self._ascii,
        )
        with Vertical() as box:
            more = f" and {others} more marked run{'s' if others > 1 else ''}" if others else ""
            box.border_title = Content(f"Clone-Modify run {run.id} {clean(run.name)}{more}")
            if self._ascii:
                box.styles.border = ("ascii", "ansi_cyan")
            # Not a VerticalScroll, whose own up and down would scroll where they should move between the fields.
            with Vertical(id="rows"):
                if self._suggested:
                    yield Static(f"Suggested: {self._suggested.reason}", id="suggested", markup=False)
                yield Row("name", Box(id="name", placeholder="auto, from the changes"), indent=self._indent)
                yield from self._knobs.values()
                yield self._finder
                yield self._start
            yield self._foot

    def _knob(self, name: str) -> Knob:
        field = self._described[name]
        before = self._config.get(name, field.default)
        text = typed(field, [self._given[name]]) if name in self._given else None
        return Knob(field, before, indent=self._indent, ascii=self._ascii, text=text)

    def on_mount(self) -> None:
        self._make_room()
        self._go(next((knob.box for knob in self._knobs.values()), self.query_one("#name", Box)))
        self._check()

    def _make_room(self) -> None:
        """For all rows, the lines below them, the border, and a few faults and finds before it has to scroll."""
        self.query_one("CloneScreen > Vertical").styles.max_height = len(self._knobs) + 14

    # ------------------------------------------------------------ what is typed

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "more":
            self._finder.typed()
        self._check()

    def on_select_changed(self) -> None:
        self._check()

    def on_descendant_focus(self) -> None:
        here = self._knob_here
        self._foot.show_help(here.field if here else None, min(90, self.size.width) - 6)

    def _check(self) -> None:
        """Read all fields, and show what is wrong and what would change."""
        draft = self._draft
        draft.read(self._knobs, self._start)
        for name, knob in self._knobs.items():
            knob.show_fault(draft.faults.get(name, ""))
        self._show_whole()
        self._foot.show_left_out(draft.left_out)
        errors = len(draft.faults) + len(self._unread)
        self._foot.show_changes(draft.differences(self._knobs), draft.clones, str(self._start), errors)
        self._start.show_schedule()
        if (knob_here := self._knob_here) and knob_here.fault:
            self._reveal(knob_here)

    def _show_whole(self, reason: str = "") -> None:
        """What is wrong with more than one field; `reason` where nothing else is."""
        lines = [f"{name} {why}".strip() for name, why in self._draft.faults.items() if name not in self._knobs]
        if self._unread:
            lines.append(f"YAML not applied: {'; '.join(self._unread)} (^e edits it again; empty it to discard it)")
        self._foot.show_faults("; ".join(lines) or reason)

    def _reveal(self, knob: Knob) -> None:
        """Scroll to a field with its fault, which may stand below the edge."""
        self.call_after_refresh(knob.scroll_visible, animate=False)

    def _go(self, box: Widget) -> None:
        """Focus it, and select what is in it."""
        self.set_focus(box)
        if isinstance(box, Box):
            box.action_select_all()

    @property
    def _knob_here(self) -> Knob | None:
        """The knob with the focus, or whose choices are open."""
        nodes = self.focused.ancestors_with_self if self.focused else []
        return next((node for node in nodes if isinstance(node, Knob)), None)

    # ------------------------------------------------------------ keys

    @property
    def focus_chain(self) -> list[Widget]:
        """From top to bottom. Textual's own goes by places, which rows that are just added do not have yet."""
        knobs = [knob.box for knob in self._knobs.values()]
        return [self.query_one("#name"), *knobs, self._finder.box, *self._start.boxes]

    async def _row_of(self, name: str) -> Knob:
        """The knob's row, which is added where there is none yet."""
        if name not in self._knobs:
            self._indent = min(INDENT, max(self._indent, len(short(name)) + 2))
            for row in self.query(Row):
                row.indent(self._indent)
            knob = self._knob(name)
            await self.query_one("#rows").mount(knob, before=self._finder)
            self._knobs[name] = knob
            self._make_room()
        return self._knobs[name]

    async def action_take_found(self) -> None:
        if field := self._finder.chosen:
            self._finder.clear()
            self._go((await self._row_of(field.name)).box)
        elif not self._finder.text:
            self.focus_next()

    async def action_promote(self) -> None:
        """Another base model: everything from the beginning."""
        if _MODEL in self._described:
            knob = await self._row_of(_MODEL)
            self._start.be_cold()
            self._go(knob.box)

    async def action_yaml(self) -> None:
        self._check()
        unread = {name: self._knobs[name].text for name in self._draft.faults if name in self._knobs}
        text = self._yaml or to_yaml(self._origin, unread | self._draft.changes | self._draft.sweep)
        try:
            written = edit(self.app, text, ".yaml")
        except UserError as fault:
            self._show_whole(str(fault))
            return
        try:
            found = from_yaml(written, self._origin, list(self._described.values()))
        except UserError as fault:
            self._yaml, self._unread = written, list(fault.lines)
        else:
            self._yaml, self._unread = None, []
            if found is not None:
                for name in found:
                    await self._row_of(name)
                for name, knob in self._knobs.items():
                    knob.put(found.get(name, [knob.before]))
        self._check()

    def action_launch(self, stop_parents: bool) -> None:
        self._check()  # what was typed last may not have been looked at yet
        if self._draft.empty:
            self._show_whole(f"Change a setting{', or start warm' if self._start.can_warm else ''}")
        if self._draft.empty or self._draft.faults or self._unread:
            if faulty := next((knob for name, knob in self._knobs.items() if name in self._draft.faults), None):
                self._go(faulty.box)
                self._reveal(faulty)
            self.app.bell()
            return
        self.dismiss(
            CloneRequest(
                self._draft.changes,
                self._start.warm,
                self.query_one("#name", Input).value.strip() or None,
                self._draft.sweep,
                self._start.from_step,
                self._start.continue_schedule,
                self._draft.parents,
                stop_parents,
            )
        )

    def action_cancel(self) -> None:
        self.dismiss(None)
