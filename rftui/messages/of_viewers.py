"""Between viewers and the scheduler. Viewer -> scheduler: `Attach`, a `Command`. Scheduler -> viewer: `Snapshot`, then
`Update`s, and one `Reply` a command."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rftui.curves import Curves
from rftui.runs import Run

# ---------------------------------------------------------------- viewer -> scheduler


@dataclass
class Attach:
    """A viewer wants a fresh `Snapshot`: it has come, or its event queue overflowed. `brief`: it only gives commands,
    and needs no runs, curves, events and devices."""

    viewer: str
    brief: bool = False


@dataclass(kw_only=True)
class Command:
    """What a viewer, the shell, Python or a rule asks; `by` is who ("key", "cli", "python", "rule NAME").

    One that comes again with the same `id` is answered as before.
    """

    op: ClassVar[str]
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    by: str = "key"
    viewer: str = ""


@dataclass
class RunCommand(Command):
    """An op on a run (`runs.OPS`)."""

    run: int


@dataclass
class Stop(RunCommand):
    """`reason` is why, where a rule asks."""

    op = "stop"
    reason: str = ""


@dataclass
class Resume(RunCommand):
    op = "resume"


@dataclass
class Clone(RunCommand):
    """`changes` maps dotted knob names to new values and `sweep` others to several each: every combination makes a
    clone.

    `warm`: from the parent's weights, now or at its committed checkpoint of step `from_step`; `continue_schedule`:
    with the parent's optimizer and schedule; `stop_parent`: which is stopped once they are accepted.
    """

    op = "clone"
    changes: dict[str, Any] = field(default_factory=dict)
    warm: bool = False
    name: str | None = None
    sweep: dict[str, list[Any]] = field(default_factory=dict)
    from_step: int | None = None
    continue_schedule: bool = False
    stop_parent: bool = False


@dataclass
class Delete(RunCommand):
    op = "delete"


@dataclass
class Undo(RunCommand):
    """Bring back a deleted run."""

    op = "undo"


@dataclass
class SetRule(Command):
    """Switch the rule `name` on or off ("on" in `changes`), or change its parameters."""

    op = "rule"
    name: str
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Finish(Command):
    """End once no run is active."""

    op = "finish"


@dataclass
class Interrupt(Command):
    """Stop every run at its next step, resumable, and end."""

    op = "interrupt"


@dataclass
class Leave(Command):
    """The viewer goes."""

    op = "leave"


RUN_COMMANDS: dict[str, type[RunCommand]] = {kind.op: kind for kind in (Stop, Resume, Clone, Delete, Undo)}
"""Op -> its command."""


# ---------------------------------------------------------------- scheduler -> viewer


@dataclass
class Event:
    """A line of the event log. `level` is "progress" (a chunk has ended), "info", "notice" (something the user should
    know) or "error"."""

    id: int
    time: float
    text: str
    run: int | None = None
    level: str = "info"


@dataclass
class Device:
    """A worker and its device. Memory in bytes; `load` in 0..1; None where it is not known. `silent`: its worker has
    not responded for a while, and may hang."""

    name: str
    state: str = "starting"  # starting, ready, lost
    pid: int | None = None
    run: int | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    load: float | None = None
    silent: bool = False


@dataclass
class Field:
    """One knob of a config as the worker described it.

    `name` is dotted; `kind` is "float", "int", "bool", "choice", "list" (of strings) or "text"; `default` is what
    trains when it is not set; `optional` says that None is a value.
    """

    name: str
    kind: str
    default: Any = None
    choices: list[str] = field(default_factory=list)
    optional: bool = False
    help: str = ""


@dataclass
class Rule:
    """A rule that presses keys, as viewers show it: `name`, what it does in one line, and its parameters by name."""

    name: str
    on: bool
    about: str
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass
class ExperimentInfo:
    """`state` is "loading", "running", "idle", "done" or "interrupted"; `waiting_for` says what loads ("" if nothing).

    `eta` is seconds to the end of all active runs, None while unknown; `pid` is the scheduler's.
    """

    name: str
    path: str
    state: str = "loading"
    waiting_for: str = ""
    pid: int = 0
    eta: float | None = None
    rows: int = 0
    steps_per_second: float | None = None
    rules: list[Rule] = field(default_factory=list)


@dataclass
class Snapshot:
    """Everything a viewer shows. `schema`: algo -> its fields. `sequence` is the number of the last update it
    includes."""

    sequence: int
    experiment: ExperimentInfo
    runs: list[Run]
    curves: Curves
    events: list[Event]
    devices: list[Device]
    schema: dict[str, list[Field]]


@dataclass
class Update:
    """What changed since update `sequence - 1`; empty parts did not change. `points`: (run, metric, step, value).

    `rewound`: run -> step; the run's points past that step are void (it goes on from an earlier checkpoint).
    `schema` is filled in the update in which it becomes known.
    """

    sequence: int
    runs: list[Run] = field(default_factory=list)
    points: list[tuple[int, str, int, float]] = field(default_factory=list)
    rewound: dict[int, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    experiment: ExperimentInfo | None = None
    schema: dict[str, list[Field]] = field(default_factory=dict)

    def brief(self) -> Update:
        """What of it goes to a viewer that only gives commands: that something changed."""
        return Update(self.sequence, experiment=self.experiment, schema=self.schema)


@dataclass
class Reply:
    """The answer to a command: `ok` and when it takes effect, or a refusal and its reason, in one line.

    `runs` are the new runs of an accepted clone, `run` the first of them. `ending`: it is refused only because this
    scheduler ends; the next one can do it.
    """

    command: str
    ok: bool
    text: str
    run: int | None = None
    ending: bool = False
    runs: list[int] = field(default_factory=list)
