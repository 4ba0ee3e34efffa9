"""An experiment as it is seen without a link to its scheduler, by what its database says."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

from rftui.automl.ranking import best
from rftui.errors import FAILED, UserError
from rftui.formatting import clean
from rftui.paths import ExperimentDir
from rftui.runs import QUEUED, RUNNING, STOPPED, STOPPING, WAITING, Run
from rftui.store import Store


@dataclass
class View:
    """An experiment as the shell shows it."""

    experiment: ExperimentDir
    state: str
    runs: list[Run]

    @property
    def incomplete(self) -> str:
        """That it has no runs to show or train, and what to do; "" where it has some, or gets them just now."""
        if self.runs or self.state != "interrupted":
            return ""
        name = clean(self.experiment.name, 60)
        what = f"{name} was interrupted before its runs were written"
        return f"{what}: run its script again, and remove {self.experiment.path}"


def view(experiment: ExperimentDir) -> View:
    """What the database says; without a scheduler, what the next one will make of it. Raises UserError."""
    alive = experiment.alive()
    with closing(Store.read(experiment.db)) as store:
        runs = store.runs()
    if alive:
        begun = any(run.state != QUEUED for run in runs)
        busy = any(run.active for run in runs)
        return View(experiment, ("running" if busy else "idle") if begun else "loading", runs)
    left = {RUNNING: WAITING, STOPPING: STOPPED}
    runs = [replace(run, state=left.get(run.state, run.state), device=None) for run in runs]
    return View(experiment, "interrupted" if not runs or any(run.active for run in runs) else "done", runs)


def find_run(runs: list[Run], wanted: str) -> Run:
    """The run with this number, else with this name. Raises UserError (exit code 1)."""
    found = [run for run in runs if str(run.id) == wanted] or [run for run in runs if run.name == wanted]
    if len(found) > 1:
        raise UserError(f"several runs are called {wanted!r}: {', '.join(str(run.id) for run in found)}", code=FAILED)
    if not found:
        known = ", ".join(str(run.id) for run in runs) or "none yet"
        raise UserError(f"no run {wanted!r}; there are: {known}", code=FAILED)
    return found[0]


def find_runs(runs: list[Run], wanted: str) -> list[Run]:
    """Like `find_run`; "best" and "best:K" are the run, and the K runs, with the best last values. Raises
    UserError."""
    word, colon, count = wanted.partition(":")
    if word != "best" or any(run.name == wanted for run in runs):
        return [find_run(runs, wanted)]
    if colon and not (count.isdecimal() and int(count)):
        raise UserError(f"{wanted!r}: write best or best:K, such as best:3")
    found = best(runs, None, int(count or 1))
    if not found:
        raise UserError("there is no best run yet: none has a loss", code=FAILED)
    return found
