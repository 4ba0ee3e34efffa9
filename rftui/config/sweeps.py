"""Several values of a knob: what was typed for it, and the clones that they make. Pure."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

from rftui.config.validate import clone_faults, parse
from rftui.errors import UserError
from rftui.formatting import format_value
from rftui.messages import Field
from rftui.naming import short
from rftui.runs import Run

MOST = 64
"""Clones of one sweep: more are rather a slip of the keys than a wish."""

SEPARATORS = {"list": ";", "text": ";"}
"""Kind of knob -> what stands between several values, a comma where it is not here: these hold commas themselves."""


def values(field: Field, text: str) -> list[Any]:
    """The values that a user typed for `field`, each once: "1e-4,2e-4" are two, as are "all-linear; q_proj,v_proj".

    Raises UserError, one line that names the value, where one is none.
    """
    parts = [part for part in text.split(SEPARATORS.get(field.kind, ",")) if part.strip()]
    found: list[Any] = []
    for part in parts or [text]:
        value = parse(field, part)
        if not any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in found):
            found.append(value)
    return found


def combinations(changes: dict[str, Any], sweep: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """The changes of each clone: every combination of the sweep's values, with `changes`. Too many are a UserError."""
    for name, several in sweep.items():
        if not several:
            raise UserError(f"{name} has no value to sweep")
    if (count := prod(len(several) for several in sweep.values())) > MOST:
        counts = " x ".join(str(len(several)) for several in sweep.values())
        raise UserError(f"{counts} values make {count} clones; at most {MOST} at once")
    return [changes | dict(zip(sweep, chosen, strict=True)) for chosen in product(*sweep.values())]


def sweep_faults(
    parent: Run,
    changes: dict[str, Any],
    sweep: dict[str, list[Any]],
    warm: bool,
    fields: list[Field],
    *,
    continue_schedule: bool = False,
    from_step: int | None = None,
) -> dict[str, str]:
    """`validate.clone_faults` of all clones of a sweep; a fault that not all of them have names the values that do."""
    try:
        clones = combinations(changes, sweep)
    except UserError as fault:
        return {"": str(fault)}
    judged = [(each, clone_faults(parent, each, warm, fields, continue_schedule, from_step)) for each in clones]
    faults: dict[str, str] = {}
    for name in dict.fromkeys(name for _, found in judged for name in found):
        faulty = [each for each, found in judged if name in found]
        reason = next(found[name] for _, found in judged if name in found)
        faults[name] = reason + _where(sweep, faulty)
    return faults


def _where(sweep: dict[str, list[Any]], faulty: list[dict[str, Any]]) -> str:
    """ " (with r 4 or 8)": the values of the faulty clones, of those knobs on which it depends whether one is."""
    told = []
    for name, several in sweep.items():
        met = [value for value in several if any(each[name] == value for each in faulty)]
        if len(met) < len(several):
            told.append(f"{short(name)} {' or '.join(format_value(value) for value in met)}")
    return f" (with {', '.join(told)})" if told else ""
