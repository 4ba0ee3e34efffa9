"""Between the scheduler and its workers. What is asked: `Describe` to `Quit`; the rest is what workers report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rftui.messages.of_viewers import Field
from rftui.runs import Run

# ---------------------------------------------------------------- scheduler -> worker


@dataclass
class Describe:
    """Describe the fields of these algos' configs."""

    algos: list[str]


@dataclass
class Check:
    """Check these runs' configs of one fit, without loading a model where that is possible."""

    fit: int
    runs: list[Run]


@dataclass
class Turn:
    """Take the run to its next chunk end. One that is not resident is built, from `resume` (a checkpoint) if given."""

    run: Run
    resume: str | None = None


@dataclass
class Halt:
    """Checkpoint the run at its next step end and free it. `save=False` throws its work away (delete)."""

    run: int
    save: bool = True


@dataclass
class SnapshotWeights:
    """Checkpoint the run at its next step end and hard-link the checkpoint into `start/` of each run in `clones`."""

    run: int
    clones: list[int]


@dataclass
class Retry:
    """Save the run that could not be saved (`Unsaved`) once more."""

    run: int


@dataclass
class Quit:
    """End. `save` first takes every resident run to a checkpoint at its next step end."""

    save: bool = True


# ---------------------------------------------------------------- worker -> scheduler


@dataclass
class Ready:
    pid: int


@dataclass
class Schema:
    """algo -> its fields."""

    fields: dict[str, list[Field]]


@dataclass
class Checked:
    """The answer to `Check`: faults and notices, each (run id or None, one line)."""

    fit: int
    faults: list[tuple[int | None, str]]
    notices: list[tuple[int | None, str]]


@dataclass
class Begun:
    """The run's trainer stands: how long it is, where it starts, and how it is cut (as `chunks.Grid` takes it)."""

    run: int
    step: int
    total_steps: int
    chunk: int
    chunks: int
    epoch: float
    grid: dict[str, Any] = field(default_factory=dict)


@dataclass
class Stepped:
    run: int
    step: int
    chunk: int
    epoch: float


@dataclass
class Logged:
    """What the trainer logged at `step`: metric -> value."""

    run: int
    step: int
    values: dict[str, float]


@dataclass
class Saved:
    """A checkpoint is committed; `seconds` and `size` (bytes) are what it cost."""

    run: int
    step: int
    path: str
    seconds: float = 0.0
    size: int = 0


@dataclass
class TurnEnded:
    """`seconds`: the time the run held the device in this turn."""

    run: int
    step: int
    chunk: int
    epoch: float
    seconds: float


@dataclass
class Halted:
    """The run was halted and freed; `path` is its checkpoint, None if it has none (no step yet, or deleted)."""

    run: int
    step: int
    path: str | None


@dataclass
class WeightsReady:
    """The parent's checkpoint lies in `start/` of the clones; its marker tells its position."""

    run: int
    clones: list[int]


@dataclass
class Finished:
    run: int
    step: int
    final: str
    path: str | None
    seconds: float


@dataclass
class Unsaved:
    """The disk is too full to save the run, which keeps its last checkpoint and waits for `Retry`.

    `needed`: bytes that should be free first; `seconds` as in `TurnEnded`: its turn is over.
    """

    run: int
    error: str
    needed: int
    seconds: float


@dataclass
class Failed:
    """`cause`: "memory" (it ran out of it), "child" (one of its own processes died), "device" (which is broken: the
    worker ends itself), "diverged" (its loss or gradient is not finite), "directory" (that of its script is not
    there), "" for any other. After the first three it may go on from its last checkpoint, once; after "directory" it
    is stopped."""

    run: int
    error: str
    traceback: str
    seconds: float = 0.0
    cause: str = ""


@dataclass
class Adapted:
    """The run was fitted to its base model or device: these dotted knobs have other values than were asked for."""

    run: int
    changes: dict[str, Any]


@dataclass
class Note:
    """Something for the event log."""

    text: str
    run: int | None = None
    level: str = "notice"


@dataclass
class Gauge:
    """The state of a device, sent every two seconds. Memory in bytes, `load` in 0..1."""

    memory_used: int | None
    memory_total: int | None
    load: float | None


@dataclass
class Gone:
    """A worker's process ended (said by the scheduler's own watcher) with this exit status."""

    status: int


@dataclass
class Report:
    """Messages of one worker incarnation, in order."""

    worker: str
    incarnation: int
    messages: list[Any]
