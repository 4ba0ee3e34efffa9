"""The one validator of the clone form, the command line and the scheduler. Pure."""

from __future__ import annotations

import math
import sys
from typing import Any

from rftui.config.generation import generation_faults
from rftui.config.managed import MANAGED, REFUSED
from rftui.config.nearest import nearest
from rftui.config.ranges import range_fault
from rftui.config.renames import DROPPED, RENAMED
from rftui.config.warm import DEFAULTS, at_checkpoint, continue_faults, length_faults, warm_faults, warmup_faults
from rftui.errors import UserError
from rftui.messages import Field
from rftui.naming import short
from rftui.runs import FAILED, Run, flatten, why_not


def parse(field: Field, text: str) -> Any:
    """The value that a user typed for `field`. Raises UserError, one line, where it is none."""
    text = text.strip()
    if field.kind == "choice" and text in field.choices:
        return {"true": True, "false": False}.get(text, text)
    if text.lower() in ("none", "null", "") and field.optional:
        return None
    if not text:
        raise UserError(f"{field.name} needs a value")
    value = _READERS[field.kind](field, text)
    if reason := value_fault(field, value):
        raise UserError(f"{field.name} {reason}")
    return value


def resolve(name: str, fields: list[Field]) -> str:
    """The dotted name of the knob that a user calls `name`: "learning_rate" and "lr" are training_args.learning_rate.

    Raises UserError that names the nearest knob, or all that go by that name.
    """
    known = [field.name for field in fields]
    if name in known:
        return name
    found = [dotted for dotted in known if dotted.rsplit(".", 1)[-1] == name]
    found = found or [dotted for dotted in known if short(dotted) == name]
    if len(found) > 1:
        raise UserError(f"{name!r} is ambiguous: write one of {', '.join(found)}")
    if not found:
        raise UserError(f"{name} {unknown(name, known)}")
    return found[0]


def unknown(name: str, known: list[str]) -> str:
    """Why a knob is not among the `known`, as the end of a sentence that starts with its name."""
    last = name.rsplit(".", 1)[-1]
    if last in RENAMED:
        return f"is now called {RENAMED[last]}"
    for table in (MANAGED, REFUSED, DROPPED):
        if last in table:
            return f"cannot be set: {table[last]}"
    return f"is not a known setting{nearest(name, known)}"


def sentence(faults: dict[str, str]) -> str:
    """The faults of a clone in one line."""
    return "; ".join(f"{name} {reason}".strip() for name, reason in faults.items())


def value_fault(field: Field, value: Any) -> str | None:
    """Why `value` is none for `field`, as the end of a sentence that starts with the knob's name."""
    if value is None:
        return None if field.optional else f"must be {_article(field.kind)}, not None"
    if not _CHECKS[field.kind](value):
        return f"must be {_article(field.kind)}, not {value!r}"
    if field.kind == "choice" and _word(value) not in field.choices:
        shown = ", ".join(field.choices)
        return f"cannot be {value!r}{nearest(_word(value), field.choices)} (one of {shown})"
    return range_fault(field.name, value)


def clone_faults(
    parent: Run,
    changes: dict[str, Any],
    warm: bool,
    fields: list[Field],
    continue_schedule: bool = False,
    from_step: int | None = None,
) -> dict[str, str]:
    """What is wrong with a clone of `parent` with `changes` (dotted name -> value): knob, or "" for the whole -> why.

    Empty where the clone can be made. `warm`: it starts from the parent's weights and position, as they are or as they
    were at the committed checkpoint of step `from_step`; `continue_schedule`: with the parent's optimizer and
    schedule. Each reason is the end of a sentence that starts with the knob's name; `sentence` makes one line of them
    all.
    """
    if reason := why_not(parent, "clone"):
        return {"": reason}
    if not warm and (continue_schedule or from_step is not None):
        return {
            "": f"a cold clone has no {'schedule' if continue_schedule else 'step'} to continue from; clone it warm"
        }
    if from_step is not None:
        if from_step not in parent.checkpoints:
            return {"": f"it has no checkpoint at step {from_step}{_listed(parent.checkpoints)}"}
        parent = at_checkpoint(parent, from_step)
    elif warm and parent.state == FAILED and parent.checkpoints:  # what it did past its last one is lost
        parent = at_checkpoint(parent, parent.checkpoints[-1])
    by_name = {field.name: field for field in fields}
    faults: dict[str, str] = {}
    for name, value in changes.items():
        field = by_name.get(name)
        reason = value_fault(field, value) if field else unknown(name, list(by_name))
        if reason:
            faults[name] = reason
    if faults:
        return faults
    before = (
        DEFAULTS | {name: field.default for name, field in by_name.items()} | flatten(parent.config, whole=by_name)
    )
    after = before | changes
    changed = {name: value for name, value in changes.items() if value != before.get(name)}
    if not warm and not changed:
        return {"": "no changes: the clone would repeat the run; change a setting, or its seed"}
    if after.get("training_args.fp16") and after.get("training_args.bf16"):
        faults["training_args.fp16"] = "and bf16 cannot both be on"
    if parent.algo == "GRPO":
        args = {name.removeprefix("training_args."): value for name, value in after.items()}
        faults |= {f"training_args.{name}": why for name, why in generation_faults(args, evaluates=False).items()}
        if faults:
            return faults
    if warm:
        faults |= warm_faults(parent, changed, before)
        faults = faults or length_faults(parent, after)
        if continue_schedule:
            return continue_faults(parent, changed) | faults
    return faults or warmup_faults(parent, changed, after, warm)


def _listed(checkpoints: list[int]) -> str:
    return f" (it has those at step {', '.join(map(str, checkpoints))})" if checkpoints else ""


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _article(kind: str) -> str:
    return {
        "float": "a number",
        "int": "a whole number",
        "bool": "true or false",
        "choice": "one of its choices",
        "list": "a list of names",
        "text": "text",
    }[kind]


def _float(field: Field, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{field.name} must be a number such as 3e-4, not {text!r}") from None


def _int(field: Field, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number.is_integer():
        raise UserError(f"{field.name} must be a whole number, not {text!r}")
    return int(number)


def _bool(field: Field, text: str) -> bool:
    word = text.lower()
    if word in ("true", "yes", "on", "1", "false", "no", "off", "0"):
        return word in ("true", "yes", "on", "1")
    raise UserError(f"{field.name} must be true or false, not {text!r}")


def _choice(field: Field, text: str) -> Any:
    match = next((choice for choice in field.choices if choice.lower() == text.lower()), text)
    return {"true": True, "false": False}.get(match, match)


def _list(field: Field, text: str) -> list[str] | str:
    bare = text.strip("[]() ")
    names = [name.strip(" '\"") for name in bare.split(",") if name.strip(" '\"")]
    if names == ["all-linear"]:
        return "all-linear"
    if not names:
        raise UserError(f"{field.name} must be a list of names such as q_proj,v_proj, not {text!r}")
    # PEFT reads a string, unlike a list, as a regular expression over module names.
    return text if set(text) & set("*+?|^$\\") else names


def _text(_: Field, text: str) -> str:
    return text


_READERS = {"float": _float, "int": _int, "bool": _bool, "choice": _choice, "list": _list, "text": _text}


_MOST = 2**53
"""The largest whole number that a float can stand for, and far more than any knob is for."""


def _is_number(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and -sys.float_info.max <= value <= sys.float_info.max  # a huge int is no float either


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_MOST <= value <= _MOST


def _is_names(value: Any) -> bool:
    names = isinstance(value, list) and all(isinstance(item, str) and item for item in value)
    return bool(value) and (isinstance(value, str) or names)


_CHECKS = {
    "float": _is_number,
    "int": _is_whole,
    "bool": lambda value: isinstance(value, bool),
    "choice": lambda value: isinstance(value, (str, bool, int, float)),
    "list": _is_names,
    "text": lambda value: isinstance(value, (str, int, float, bool, dict)),
}
