"""What is typed into the Clone-Modify form: the changes that it makes, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from rftui.config.sweeps import sweep_faults
from rftui.config.validate import sentence
from rftui.errors import UserError
from rftui.messages import Field
from rftui.naming import short
from rftui.runs import Run
from rftui.tui.screens.clone_fields import Knob, shown, typed
from rftui.tui.screens.clone_start import Start


@dataclass
class CloneRequest:
    """`changes`: dotted knob -> new value, `sweep`: dotted knob -> several of them; `parents`: the runs to clone;
    `stop_parents`: stop them as the clones are launched."""

    changes: dict[str, Any]
    warm: bool = False
    name: str | None = None
    sweep: dict[str, list[Any]] = field(default_factory=dict)
    from_step: int | None = None
    continue_schedule: bool = False
    parents: list[int] = field(default_factory=list)
    stop_parents: bool = False


class Draft:
    """`others` are runs that get the same changes as `parent`, each with the fields of its algo.

    `faults`: dotted knob, or "" for the whole -> what is wrong; `left_out`: other runs -> why
    they are not cloned.
    """

    def __init__(self, parent: Run, fields: list[Field], others: Sequence[tuple[Run, list[Field]]]) -> None:
        self.changes: dict[str, Any] = {}
        self.sweep: dict[str, list[Any]] = {}
        self.faults: dict[str, str] = {}
        self.left_out: dict[int, str] = {}
        self._parent = parent
        self._fields = fields
        self._others = others
        self._warm = False

    def read(self, knobs: Mapping[str, Knob], start: Start) -> None:
        """All fields anew."""
        self.changes, self.sweep, self.faults, self.left_out = {}, {}, {}, {}
        self._warm = start.warm
        for name, knob in knobs.items():
            try:
                found = knob.read()
            except UserError as fault:
                self.faults[name] = str(fault).removeprefix(f"{name} ")
                continue
            if len(found) > 1:
                self.sweep[name] = found
            elif found:
                self.changes[name] = found[0]
        if not self.faults and not self.empty:
            self.faults = self._judged(self._parent, self._fields, start)
            judged = {run.id: self._judged(run, fields, start) for run, fields in self._others}
            self.left_out = {number: sentence(faults) for number, faults in judged.items() if faults}

    def _judged(self, run: Run, fields: list[Field], start: Start) -> dict[str, str]:
        return sweep_faults(
            run,
            self.changes,
            self.sweep,
            start.warm,
            fields,
            continue_schedule=start.continue_schedule,
            from_step=start.from_step,
        )

    @property
    def empty(self) -> bool:
        """Such a clone would repeat the run: refused, but no fault of what was typed."""
        return not (self.changes or self.sweep or self.faults or self._warm)

    @property
    def parents(self) -> list[int]:
        """The runs that are cloned."""
        return [self._parent.id, *(run.id for run, _ in self._others if run.id not in self.left_out)]

    @property
    def clones(self) -> int:
        return prod(map(len, self.sweep.values())) * len(self.parents)

    def differences(self, knobs: Mapping[str, Knob]) -> list[tuple[str, str, str]]:
        """The short name of each knob that changes, what it was, and what it would be."""
        several = {name: [value] for name, value in self.changes.items()} | self.sweep
        return [
            (short(name), shown(knobs[name].before), typed(knobs[name].field, found))
            for name, found in several.items()
        ]
