"""A run: its states, which op each state allows and, where it does not, why. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from rftui.redaction import redact

QUEUED, RUNNING, WAITING, STOPPING = "queued", "running", "waiting", "stopping"
STOPPED, DONE, FAILED, DELETED = "stopped", "done", "failed", "deleted"

ACTIVE = frozenset({QUEUED, RUNNING, WAITING, STOPPING})
"""States in which a run holds `run_fit` open."""

OPS = ("stop", "resume", "clone", "delete", "undo")
"""What can be asked of a run; "undo" brings back one that was deleted."""

_REFUSALS = {
    "stop": {
        STOPPING: "already stopping",
        STOPPED: "already stopped; resume continues it",
        DONE: "already done",
        FAILED: "it failed",
    },
    "resume": {
        QUEUED: "not started yet",
        RUNNING: "already running",
        WAITING: "already running; waiting for its next turn",
        STOPPING: "still stopping; wait until it is stopped",
        DONE: "already done; clone it with more epochs instead",
    },
}


@dataclass(frozen=True)
class Suggestion:
    """A clone to try: `reason` says in one line what is wrong and what it changes."""

    changes: dict[str, Any]
    warm: bool
    from_step: int | None
    reason: str


@dataclass
class Run:
    """One run as every part of the program sees it; plain data only.

    `config` is its whole configuration as plain nested data (`model_name`, `model_kwargs`, `peft_config`,
    `training_args`, ...; a function stands there by its name). `knobs` maps the dotted names of the swept and the
    changed knobs ("training_args.learning_rate") to their values. `config_index` numbers the config of its fit's spec
    that it was made from, `changes` (dotted name -> value) is what clones changed in it. `chunk` of `chunks` have
    ended, over all epochs; `step` of `total_steps` optimizer steps are done; `turns` were started. A warm clone has
    `start_step`, `start_epoch` and `start_row`, which like `epoch` and its limits (`num_train_epochs`, `max_steps`)
    count from the start of its first ancestor; its `step`, `total_steps` and `checkpoints` are its own. `grid` is how
    its rows are cut, as `chunks.Grid` takes it, and empty until its trainer stands. With
    `continue_schedule` it goes on with the parent's optimizer and schedule instead of fresh ones. `checkpoints` are
    the steps of its committed checkpoints on disk, the newest last. `stopped_by`: which rule stopped it and why.
    `failure`: why it failed, where that is known: "memory", "child" or "diverged" (as `messages.Failed.cause`).
    `exempt`: its user resumed it after that, so rules leave it alone. `before`: the state that undoing its deletion
    brings back, "" once its files are gone. `suggestion`: what to try instead, where it failed or goes wrong.
    """

    id: int
    name: str
    algo: str = "SFT"
    fit: int = 1
    config_index: int = 0
    state: str = QUEUED
    chunk: int = 0
    chunks: int = 0
    step: int = 0
    total_steps: int = 0
    epoch: float = 0.0
    turns: int = 0
    device: str | None = None
    parent: int | None = None
    warm: bool = False
    start_step: int = 0
    start_epoch: float = 0.0
    start_row: int = 0
    grid: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    knobs: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    failure: str = ""
    continue_schedule: bool = False
    checkpoint: str | None = None
    checkpoints: list[int] = field(default_factory=list)
    final: str | None = None
    stopped_by: str | None = None
    exempt: bool = False
    before: str = ""
    created: float = 0.0
    active_seconds: float = 0.0
    suggestion: Suggestion | None = None

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @classmethod
    def from_json(cls, data: str) -> Run:
        """A run as a database keeps it, also as one of an earlier version did."""
        run = cls(**{_RENAMED.get(name, name): value for name, value in json.loads(data).items()})
        if isinstance(run.suggestion, dict):
            run.suggestion = Suggestion(**run.suggestion)
        return run

    def to_json(self) -> str:
        """As a database keeps it."""
        return json.dumps(
            vars(self), default=lambda value: vars(value) if isinstance(value, Suggestion) else str(value)
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields, with secrets redacted, as `show --json` prints them."""
        plain = asdict(self)
        for key in ("config", "changes", "knobs"):
            plain[key] = redact(plain[key])
        return plain


_RENAMED = {"leaf": "config_index", "carry_on": "continue_schedule"}
"""Fields of a run as databases before version 3 call them -> their names."""


def why_not(run: Run, op: str) -> str | None:
    """Why `op` cannot be done to `run` now, as the end of a sentence; None where it can."""
    if op == "undo":
        if run.state != DELETED:
            return "not deleted"
        return None if run.before else "its files are gone: the scheduler that deleted it has ended"
    if run.state == DELETED:
        return "deleted; undo restores it" if run.before else "deleted"
    return _REFUSALS.get(op, {}).get(run.state)


def refusal(run: Run, op: str, reason: str) -> str:
    """A refused op in one line, the same wherever it is told."""
    return f"Can't {op} run {run.id} {run.name}: {reason}"


def curve_values(logged: dict[str, Any]) -> dict[str, float]:
    """What of a trainer's log entry becomes points of curves: metric -> value."""
    return {
        name: float(value)
        for name, value in logged.items()
        if isinstance(value, (int, float)) and not name.endswith(_NO_CURVES)
    }


_NO_CURVES = ("runtime", "samples_per_second", "steps_per_second", "step_time", "epoch", "step", "total_flos")
"""Ends of logged names that are no curve: times, which no two trainings share, or what is known anyway."""


def flatten(nested: dict[str, Any], prefix: str = "", *, whole: Collection[str] = ()) -> dict[str, Any]:
    """Nested config data as dotted names: `{"peft_config": {"r": 8}}` -> `{"peft_config.r": 8}`.

    The names in `whole` keep their values as they are, also where one is a dict.
    """
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value and name not in whole:
            flat |= flatten(value, f"{name}.", whole=whole)
        else:
            flat[name] = value
    return flat


def changed(nested: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A deep copy of config data with the dotted names of `changes` set; missing levels are made."""
    result = {key: changed(value, {}) if isinstance(value, dict) else value for key, value in nested.items()}
    for name, value in changes.items():
        *path, last = name.split(".")
        level = result
        for part in path:
            if not isinstance(level.get(part), dict):
                level[part] = {}
            level = level[part]
        level[last] = value
    return result
