"""Rules that stop runs for their user: their parameters, checked, and how an experiment keeps them. Pure.

What a rule decides is in `verdicts`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice
from typing import Any, ClassVar

from rftui.automl.ranking import more_is_better
from rftui.config.nearest import nearest
from rftui.errors import UserError
from rftui.formatting import format_value


@dataclass
class RFSuccessiveHalving:
    """After chunk `min_chunks`, and again whenever `reduction_factor` times as many chunks have ended, the best one in
    `reduction_factor` runs go on and the others stop; the first time at least half go on.

    `metric` is any that is logged: by default eval_loss, loss where that is not logged, reward for GRPO. `mode` is
    "min" or "max", by default guessed from the metric's name. Nothing is stopped in its warm-up.
    """

    reduction_factor: int = 2
    min_chunks: int = 1
    metric: str | None = None
    mode: str | None = None

    name: ClassVar[str] = "halving"

    def rungs(self) -> Iterator[int]:
        """The chunks after which it judges, without end."""
        rung = self.min_chunks
        while True:
            yield rung
            rung *= self.reduction_factor

    @property
    def about(self) -> str:
        chunks = ", ".join(str(rung) for rung in islice(self.rungs(), 3))
        return f"after chunk {chunks}, ... the best 1 in {self.reduction_factor} go on, at first half"


@dataclass
class RFMedianStopping:
    """From chunk `min_chunks` on, a run stops at a chunk end where its best value is worse than the median of what the
    other runs had on average up to that chunk, once at least `min_runs` others have come to it.

    `metric` and `mode` as in RFSuccessiveHalving.
    """

    min_chunks: int = 1
    min_runs: int = 3
    metric: str | None = None
    mode: str | None = None

    name: ClassVar[str] = "median"

    @property
    def about(self) -> str:
        return "a run stops whose best is worse than the median of the others"


@dataclass
class RFEarlyStopping:
    """A run stops once its value at `patience` chunk ends in a row was not better, by more than `min_delta`, than its
    best before.

    `metric` and `mode` as in RFSuccessiveHalving.
    """

    patience: int = 3
    min_delta: float = 0.0
    metric: str | None = None
    mode: str | None = None

    name: ClassVar[str] = "early"

    @property
    def about(self) -> str:
        return f"a run stops that has not become better at {self.patience} chunk ends in a row"


Rule = RFSuccessiveHalving | RFMedianStopping | RFEarlyStopping

RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (RFSuccessiveHalving, RFMedianStopping, RFEarlyStopping)}
"""Every rule there is, by its name."""


@dataclass
class Switch:
    """A rule of an experiment. `after`: run -> the chunk past which it may judge the run, where that is not the first:
    what had ended when it was switched on is not judged."""

    rule: Rule
    on: bool = False
    after: dict[int, int] = field(default_factory=dict)


# ---------------------------------------------------------------- checks


def _whole(least: int) -> tuple[Any, str]:
    return (lambda value: type(value) is int and value >= least), f"must be a whole number, {least} or more"


_CHECKS: dict[str, tuple[Any, str]] = {
    "reduction_factor": _whole(2),
    "min_chunks": _whole(1),
    "min_runs": _whole(1),
    "patience": _whole(1),
    "min_delta": (
        lambda value: type(value) in (int, float) and math.isfinite(value) and value >= 0,
        "must be a number, 0 or more",
    ),
    "metric": (
        lambda value: value is None or (isinstance(value, str) and value.strip() != ""),
        "must be the name of a metric that is logged, such as eval_loss",
    ),
    "mode": (lambda value: value in (None, "min", "max"), "must be 'min' or 'max'"),
}


def faults(rule: Rule) -> list[str]:
    """What is wrong with the rule's parameters: the ends of sentences that start with the rule's name."""
    lines = []
    for parameter, value in asdict(rule).items():
        right, why = _CHECKS[parameter]
        if not right(value):
            lines.append(f"{parameter} {why}, not {value!r}")
    return lines


def kind(name: str) -> type[Rule]:
    """The rule that is called so. Raises UserError."""
    if name not in RULES:
        raise UserError(f"there is no rule {name!r}{nearest(name, RULES)} (there are {', '.join(RULES)})")
    return RULES[name]


def changed(rule: Rule, changes: Mapping[str, Any]) -> Rule:
    """The rule with other parameters. Raises UserError, one line."""
    known = [each.name for each in fields(rule)]
    listed = ", ".join(known)
    lines = [f"has no {name!r}{nearest(name, known)} (it has {listed})" for name in changes if name not in known]
    if not lines:
        rule = replace(rule, **changes)
        lines = faults(rule)
    if lines:
        raise UserError(f"rule {rule.name}: {'; '.join(lines)}")
    return rule


def parse(name: str, text: str) -> Any:
    """The value of a parameter that a user typed; what is none of its kind is told by `changed`."""
    text = text.strip()
    if text.lower() in ("none", "auto", ""):
        return None
    for read in () if name in ("metric", "mode") else (int, float):
        try:
            return read(text)
        except ValueError:
            pass
    return text


def format_rule(rule: Rule) -> str:
    """Its parameters that are set, in one line."""
    return ", ".join(f"{name} {format_value(value)}" for name, value in asdict(rule).items() if value is not None)


def greater_is_better(rule: Rule, metric: str) -> bool:
    """As the rule says, or as the metric's name lets one guess."""
    return rule.mode == "max" if rule.mode else more_is_better(metric)


# ---------------------------------------------------------------- an experiment's rules


def switches(given: Any) -> tuple[dict[str, Switch], list[str]]:
    """All rules, those that `run_fit` was given (one, or a list) switched on; and what is wrong with them."""
    made = {name: Switch(rule()) for name, rule in RULES.items()}
    lines: list[str] = []
    for rule in given if isinstance(given, (list, tuple)) else [] if given is None else [given]:
        if not isinstance(rule, Rule):
            known = ", ".join(each.__name__ for each in RULES.values())
            lines.append(f"rules holds {rule!r:.60}; it can hold {known}")
        elif made[rule.name].on:
            lines.append(f"rules holds {type(rule).__name__} twice: one of each is enough")
        else:
            made[rule.name] = Switch(rule, True)
            lines += [f"{type(rule).__name__}: {line}" for line in faults(rule)]
    return made, lines


def switched(switch: Switch, changes: Mapping[str, Any], ended: dict[int, int]) -> Switch:
    """The rule switched ("on": true or false) and changed; `ended`: run -> its chunks that have. Raises UserError."""
    on = changes.get("on", switch.on)
    if not isinstance(on, bool):
        raise UserError(f"rule {switch.rule.name}: on must be true or false, not {on!r}")
    rule = changed(switch.rule, {name: value for name, value in changes.items() if name != "on"})
    stays = switch.on and rule == switch.rule
    return Switch(rule, on, ended if on and not stays else switch.after)


def written(switches: Mapping[str, Switch]) -> str:
    return json.dumps(
        {
            name: {"on": switch.on, "after": switch.after, "parameters": asdict(switch.rule)}
            for name, switch in switches.items()
        }
    )


def read(text: str | None) -> dict[str, Switch]:
    """What was `written`; where nothing was, every rule is off."""
    found, _ = switches(None)
    for name, kept in json.loads(text or "{}").items():
        after = {int(run): chunk for run, chunk in kept["after"].items()}
        found[name] = Switch(RULES[name](**kept["parameters"]), kept["on"], after)
    return found
