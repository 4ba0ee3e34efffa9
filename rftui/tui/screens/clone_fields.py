"""The rows of the Clone-Modify form: a knob with its value or several, and the line that finds other knobs."""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Select, Static
from textual.widgets._select import SelectCurrent

from rftui.config.sweeps import SEPARATORS, values
from rftui.messages import Field
from rftui.naming import short
from rftui.tui.find import matches
from rftui.tui.keys import Entry

INDENT = 22
"""Columns that names before the boxes have at most."""


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


class Choice(Pick):
    """A choice that may be several: a comma keeps the present one and goes on to another, backspace takes one back."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("comma", "keep"), Binding("backspace", "take_back")]

    def __init__(self, choices: list[str], text: str, *, id: str, ascii: bool) -> None:
        *self._kept, value = text.split(",")
        super().__init__({choice: choice for choice in choices}, value, id=id, ascii=ascii)

    @property
    def text(self) -> str:
        return ",".join(dict.fromkeys([*self._kept, str(self.value)]))

    def put(self, text: str) -> None:
        *self._kept, self.value = text.split(",")
        self._show()

    def action_keep(self) -> None:
        others = [choice for choice in self._choices if choice not in (*self._kept, self.value)]
        if others:
            self._kept.append(str(self.value))
            self.value = others[0]
            self._show()

    def action_take_back(self) -> None:
        if self._kept:
            self.value = self._kept.pop()
            self._show()

    def _watch_value(self, value: Any) -> None:
        super()._watch_value(value)
        self._show()

    def _show(self) -> None:
        if self.is_mounted:
            self.query_one(SelectCurrent).update(Text(self.text.replace(",", ", ")))
            self.post_message(self.Changed(self, self.value))


class Row(Horizontal):
    """A name, and the boxes beside it."""

    DEFAULT_CSS = """
    Row { height: 1; }
    Row > .name { height: 1; padding-right: 2; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self, name: str, *boxes: Widget, indent: int) -> None:
        self._label = Static(name, classes="name", markup=False)
        self.indent(indent)
        super().__init__(self._label, *boxes)

    def indent(self, columns: int) -> None:
        self._label.styles.width = columns


class Knob(Vertical):
    """A knob: its box, what it was before, and below it what is wrong with what is typed."""

    DEFAULT_CSS = """
    Knob { height: auto; }
    Knob .was { width: auto; max-width: 40%; height: 1; color: ansi_yellow; text-wrap: nowrap;
        text-overflow: ellipsis; }
    """

    def __init__(self, field: Field, before: Any, *, indent: int, ascii: bool, text: str | None = None) -> None:
        """`before` is the parent's value; `text` what is typed already."""
        self.field, self.before = field, before
        was, name = shown(before), f"field-{field.name.replace('.', '-')}"
        text = was if text is None else text
        choices = ["true", "false"] if field.kind == "bool" else field.choices
        # The parent may have a value that is no choice; it stays until another one is picked.
        choices = [*dict.fromkeys([*choices, *(["none"] if field.optional else []), was])] if choices else []
        self.box: Box | Choice = Choice(choices, text, id=name, ascii=ascii) if choices else Box(text, id=name)
        self._was = Static("", classes="was", markup=False)
        self._fault = Static("", classes="fault", markup=False)
        super().__init__(Row(short(field.name), self.box, self._was, indent=indent), self._fault)

    @property
    def text(self) -> str:
        return self.box.text if isinstance(self.box, Choice) else self.box.value.strip()

    def put(self, found: list[Any]) -> None:
        """Have these values stand there as if they were typed."""
        text = typed(self.field, found)
        if isinstance(self.box, Choice):
            self.box.put(text)
        else:
            self.box.value = text

    def read(self) -> list[Any]:
        """The values that are typed; none where it is as it was. Raises UserError."""
        was = shown(self.before)
        changed = self.text != was
        put(self._was, f" was {was}" if changed else "")
        found = values(self.field, self.text) if changed else []
        return [] if found == [self.before] else found

    def show_fault(self, reason: str) -> None:
        tell(self._fault, reason)

    @property
    def fault(self) -> str:
        return str(self._fault.content) if self._fault.display else ""


class FinderBox(Entry):
    """Enter takes the chosen match; up and down choose, and leave the field at either end."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "screen.take_found"),
        Binding("down", "choose(1)"),
        Binding("up", "choose(-1)"),
    ]

    def action_choose(self, by: int) -> None:
        finder = self.query_ancestor(Finder)
        at = finder.at + by
        if 0 <= at < len(finder.found):
            finder.at = at
            finder.show()
        elif by > 0:
            self.screen.focus_next()
        else:
            self.screen.focus_previous()


class Finder(Vertical):
    """A line in which any of `fields` is found by typing, and below it the best few."""

    DEFAULT_CSS = """
    Finder { height: auto; }
    Finder .found { height: auto; padding-left: 2; display: none; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self, fields: list[Field], *, indent: int) -> None:
        self.at = 0
        self._fields = fields
        self.box = FinderBox(id="more", placeholder="type to search all settings")
        self._list = Static("", classes="found", markup=False)
        super().__init__(Row("more settings", self.box, indent=indent), self._list)

    @property
    def text(self) -> str:
        return self.box.value.strip()

    @property
    def found(self) -> list[Field]:
        return matches(self.box.value, self._fields)

    @property
    def chosen(self) -> Field | None:
        found = self.found
        return found[min(self.at, len(found) - 1)] if found else None

    def clear(self) -> None:
        self.box.value = ""
        self.typed()

    def typed(self) -> None:
        """Something else is typed."""
        self.at = 0
        self.show()

    def show(self) -> None:
        found, chosen = self.found, self.chosen
        width = max([len(field.name.rsplit(".", 1)[-1]) for field in found] + [0])
        lines = Text()
        for field in found:
            name, style = field.name.rsplit(".", 1)[-1], "bold reverse" if field is chosen else "bold"
            lines.append(f"{name:<{width}}", style).append(f"  {first_sentence(field.help)}\n", "dim")
        if self.text and not found:
            lines.append("No matching setting", "red")
        lines.rstrip()
        self._list.update(lines)
        self._list.display = bool(lines)
        self.call_after_refresh(self.scroll_visible, animate=False)


def first_sentence(text: str) -> str:
    return " ".join(text.split()).split(". ")[0]


def tell(line: Static, reason: str) -> None:
    """Show what is wrong; nothing where it is nothing."""
    put(line, f"! {reason}" if reason else "")
    line.display = bool(reason)


def put(line: Static, text: str) -> None:
    """Have it show the text; nothing is laid out anew where it does already."""
    if line.content != text:
        line.update(text)


def typed(field: Field, found: list[Any]) -> str:
    """Values as one types them into a knob's box."""
    return SEPARATORS.get(field.kind, ",").join(map(shown, found))


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
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _tidy(number: str) -> str:
    """ "2e-04" -> "2e-4"."""
    mantissa, e, exponent = number.partition("e")
    return f"{mantissa}e{int(exponent)}" if e else number
