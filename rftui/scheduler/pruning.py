"""The rules of an experiment: what they press, and switching them while it trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import islice
from typing import Any

from rftui import messages
from rftui.automl import rules
from rftui.automl.rules import RFSuccessiveHalving, Switch
from rftui.automl.verdicts import STOP, Verdict, decide
from rftui.scheduler.registry import Registry

_META = "rules"


class Rules:
    """Every rule there is, on or off; the store keeps how they are set, and what they decided."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._switches = rules.read(registry.store.meta(_META))
        self._looked = -1
        self._taken = {name: registry.store.decisions(name) for name in rules.RULES}
        self._show()

    def presses(self) -> Iterator[messages.Stop]:
        """The stops that the rules ask for now, one after the other; each is to be carried out before the next."""
        if self._registry.revision == self._looked:
            return
        while found := self._verdicts():
            name, verdicts = found
            for verdict in verdicts:
                self._registry.store.decide(name, verdict)
                self._taken[name][verdict.run, verdict.rung] = verdict.outcome
            goes_on = [verdict.reason for verdict in verdicts if verdict.outcome != STOP and verdict.reason]
            for reason in dict.fromkeys(goes_on):
                self._registry.log(f"rule {name}: {reason}", None, "notice")
            for verdict in verdicts:
                if verdict.outcome == STOP:
                    identity, by = f"rule {name} {verdict.run} {verdict.rung}", f"rule {name}"
                    yield messages.Stop(verdict.run, verdict.reason, id=identity, by=by)
        self._looked = self._registry.revision

    def switch(self, name: str, changes: dict[str, Any]) -> str:
        """Switch a rule on or off ("on"), or change its parameters; what that means, in one line. Raises UserError."""
        rules.kind(name)
        ended = {run.id: run.chunk for run in self._registry.runs.values()}
        self._switches[name] = rules.switched(self._switches[name], changes, ended)
        self._registry.store.set_meta(_META, rules.written(self._switches))
        self._looked = -1
        self._show()
        return f"Rule {name} is {self._format_switch(self._switches[name])}"

    def _verdicts(self) -> tuple[str, list[Verdict]] | None:
        """Those of the first rule that decides something now."""
        runs, ends = self._registry.runs.values(), self._registry.ends
        for name, switch in self._switches.items():
            if switch.on and (verdicts := decide(switch.rule, runs, ends, self._taken[name], switch.after)):
                return name, verdicts
        return None

    def _show(self) -> None:
        self._registry.set_rules(
            [
                messages.Rule(name, switch.on, switch.rule.about, dataclasses.asdict(switch.rule))
                for name, switch in self._switches.items()
            ]
        )

    def _format_switch(self, switch: Switch) -> str:
        if not switch.on:
            return "off"
        active = [run for run in self._registry.runs.values() if run.active]
        when = "it judges each run from its next chunk end on"
        if not active:
            when = "no run is active now"
        elif isinstance(switch.rule, RFSuccessiveHalving):
            past = max([switch.after.get(run.id, 0) for run in active], default=0)
            last = max(run.chunks for run in active)
            coming = list(islice((rung for rung in switch.rule.rungs() if rung > past), 2))
            when = f"it judges after chunk {coming[0]}, then {coming[1]}"
            if last and coming[0] >= last:
                when = f"it has nothing left to judge: its next would be after chunk {coming[0]} of {last}"
        return f"on: {when} ({rules.format_rule(switch.rule)})"
