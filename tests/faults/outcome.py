"""What an experiment left: weights, curves and facts of its runs, and what MLflow was sent; and how two differ."""

import hashlib
import math
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rftui.store import Store

FACTS = (
    "step",
    "total_steps",
    "chunk",
    "chunks",
    "epoch",
    "start_step",
    "start_epoch",
    "start_row",
    "knobs",
    "metrics",
)

Point = tuple[int, float]


@dataclass
class Outcome:
    """By the name of a run. `adapters`: digests of the weights; `curves` and `sent`: metric -> its points in step
    order, as the store and as MLflow has them; `faults`: what is wrong whatever it is compared with."""

    states: dict[str, str] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    adapters: dict[str, str] = field(default_factory=dict)
    curves: dict[str, dict[str, list[Point]]] = field(default_factory=dict)
    sent: dict[str, dict[str, list[Point]]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def read(database: Path, mlflow: Path) -> Outcome:
    """The outcome of the experiment of `database`, tracked to the SQLite file `mlflow`."""
    outcome = Outcome()
    with closing(Store.read(database)) as store:
        runs, curves = store.runs(), store.curves()
    for run in runs:
        if run.name in outcome.states:
            outcome.faults.append(f"two runs are called {run.name}")
        outcome.states[run.name] = run.state + (f": {run.error}" if run.error else "")
        outcome.facts[run.name] = {name: getattr(run, name) for name in FACTS}
        outcome.curves[run.name] = curves.get(run.id, {})
        weights = Path(run.final or "missing") / "adapter_model.safetensors"
        outcome.adapters[run.name] = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.exists() else "none"
    _read_mlflow(outcome, {run.id: run.name for run in runs}, mlflow)
    return outcome


def _read_mlflow(outcome: Outcome, names: dict[int, str], mlflow: Path) -> None:
    with closing(sqlite3.connect(f"{mlflow.as_uri()}?mode=ro", uri=True)) as db:
        tracked = db.execute(
            "SELECT run_uuid, status, tags.value FROM runs JOIN tags USING (run_uuid)"
            " WHERE tags.key = 'rftui.run' AND lifecycle_stage = 'active'"
        ).fetchall()
        rows = db.execute("SELECT run_uuid, key, step, value, is_nan FROM metrics ORDER BY step").fetchall()
    for number, count in Counter(number for _, _, number in tracked).items():
        if count > 1:
            outcome.faults.append(f"MLflow has {count} runs for run {number}")
    for uuid, status, number in tracked:
        name = names.get(int(number), number)
        if status != "FINISHED":
            outcome.faults.append(f"MLflow calls {name} {status}")
        curves = outcome.sent.setdefault(name, {})
        for run, metric, step, value, is_nan in rows:
            if run == uuid:
                curves.setdefault(metric, []).append((step, math.nan if is_nan else value))


def differences(reference: Outcome, found: Outcome) -> list[str]:
    """A line for everything in which `found` is not as the undisturbed `reference`; MLflow must have its curves."""
    lines = list(found.faults)
    for name in reference.states.keys() ^ found.states.keys():
        lines.append(f"{name}: {'missing' if name in reference.states else 'there should be no such run'}")
    for name in [name for name in reference.states if name in found.states]:
        if found.states[name] != reference.states[name]:
            lines.append(f"{name} is {found.states[name]}")
        if found.adapters[name] != reference.adapters[name]:
            lines.append(f"{name}: other weights than the undisturbed run's")
        lines += [
            f"{name}: {fact} is {found.facts[name][fact]}, not {value}"
            for fact, value in reference.facts[name].items()
            if found.facts[name][fact] != value
        ]
        lines += _curves(f"{name} in the store", reference.curves[name], found.curves[name])
        lines += _curves(f"{name} in MLflow", reference.curves[name], found.sent.get(name, {}))
    return lines


def _curves(where: str, expected: dict[str, list[Point]], found: dict[str, list[Point]]) -> list[str]:
    lines = []
    for metric in sorted(expected.keys() | found.keys()):
        wanted, given = expected.get(metric, []), found.get(metric, [])
        if wanted == given:
            continue
        steps = Counter(step for step, _ in given)
        problems = {
            "lacks steps": [step for step, _ in wanted if step not in steps],
            "has twice": [step for step, count in steps.items() if count > 1],
            "has steps too many": sorted(steps.keys() - {step for step, _ in wanted}),
            "has other values at": [step for step, value in wanted if step in steps and dict(given)[step] != value],
        }
        told = "; ".join(f"{what} {_short(steps)}" for what, steps in problems.items() if steps)
        lines.append(f"{where}: {metric} {told or 'has another order'}")
    return lines


def _short(steps: list[int]) -> str:
    return ", ".join(map(str, steps[:8])) + (f" and {len(steps) - 8} more" if len(steps) > 8 else "")
