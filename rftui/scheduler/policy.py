"""The fair rule of turns. Pure.

Among the active runs of one fit a run may start a turn once every other has started at least as many. Waiting until
all have finished theirs would leave devices idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rftui.runs import QUEUED, RUNNING, WAITING, Run

_IN_FORCE = (QUEUED, RUNNING, WAITING)
"""States whose turns count. A run that is stopping holds nobody back, so that the others may be well past it."""


@dataclass(frozen=True)
class Start:
    """Give `run` a turn on `worker`."""

    run: int
    worker: str


@dataclass(frozen=True)
class Move:
    """Free `run` from the worker that holds it, so that an idle one can take it."""

    run: int


def choose(
    runs: Iterable[Run],
    idle: Iterable[str],
    resident: Mapping[int, str],
    *,
    blocked: Collection[int] = (),
    moving: Collection[int] = (),
    worth_moving: Collection[int] = (),
    since: Mapping[int, int] | None = None,
) -> list[Start | Move]:
    """What to do with the `idle` workers. `resident`: run -> the worker that holds its state.

    A worker takes a run that it holds, else one that nobody holds, else has one moved that a busy worker holds: if
    that one holds at least two more than it, or if the run's turns are long enough to be `worth_moving`. Among equals
    the smallest id goes first. `blocked` runs cannot start (a clone whose parent is not pinned yet) and do not hold
    the others back. `moving` runs are being freed: they cannot start yet, but their turn is kept, and an idle worker
    for each of them.
    """
    active = [run for run in runs if run.state in _IN_FORCE and run.id not in blocked]
    turns = {run.id: run.turns for run in active}
    fits = {run.id: run.fit for run in active}
    ready = {run.id for run in active if run.state in (QUEUED, WAITING) and run.id not in moving}
    free, coming = sorted(idle), len(moving)
    decided: list[Start | Move] = []
    while free and ready:
        lowest = {fit: min(turns[run] for run in turns if fits[run] == fit) for fit in set(fits.values())}
        eligible = sorted(run for run in ready if turns[run] == lowest[fits[run]])
        step = _best(eligible, free, resident, turns, worth_moving, since or {})
        if step is None or (isinstance(step, Move) and coming >= len(free)):
            break
        decided.append(step)
        ready.discard(step.run)
        if isinstance(step, Start):
            turns[step.run] += 1
            free.remove(step.worker)
        else:
            coming += 1
    return decided


def _best(
    eligible: list[int],
    free: list[str],
    resident: Mapping[int, str],
    active: Collection[int],
    worth_moving: Collection[int],
    since: Mapping[int, int],
) -> Start | Move | None:
    able = [run for run in eligible if run not in resident or resident[run] in free]
    if able:
        first = min(able, key=lambda run: (since.get(run, 0), run not in resident, run))
        return Start(first, resident.get(first, free[0]))
    held = Counter(resident[run] for run in active if run in resident)
    least = min(held[worker] for worker in free)
    balances = {run for run in eligible if held[resident[run]] > least + 1}
    return next((Move(run) for run in eligible if run in balances or run in worth_moving), None)


def entry_turns(runs: Iterable[Run], fit: int, blocked: Collection[int] = ()) -> int:
    """The count of turns with which a late joiner enters a fit: the smallest in force, which no `blocked` run's is."""
    in_force = (run for run in runs if run.fit == fit and run.state in _IN_FORCE and run.id not in blocked)
    return min((run.turns for run in in_force), default=0)
