"""What is suggested for each run, the same for screen, shell and Python: by the whole curves that the store has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rftui.automl.suggest import suggestion
from rftui.metrics import Metrics
from rftui.runs import DELETED, DONE, FAILED, Run, flatten


class Advice:
    """Keeps `Run.suggestion` true. It is found anew where a chunk of the run has ended, or the run, where its
    checkpoints are others, its points were taken back, or a clone of it was made."""

    def __init__(self, metrics: Metrics, runs: Mapping[int, Run]) -> None:
        self._metrics = metrics
        self._children: dict[int, list[Run]] = {}
        self._taken_back: Counter[int] = Counter()
        for run in runs.values():
            self.meet(run)
        # What an earlier scheduler kept was committed with the run, and holds.
        self._seen = {run.id: self._basis(run) for run in runs.values()}

    def meet(self, run: Run) -> None:
        """A new run, which may be a clone that tries what was suggested."""
        if run.parent is not None:
            self._children.setdefault(run.parent, []).append(run)

    def outdated(self, run: Run) -> None:
        """Points of the run were taken back or came late."""
        self._taken_back[run.id] += 1

    def renew(self, run: Run) -> str | None:
        """Bring the run's suggestion up to date; a line for the event log where there is another to try."""
        basis = self._basis(run)
        if self._seen.get(run.id) == basis:
            return None
        self._seen[run.id] = basis
        before, found = run.suggestion, suggestion(run, lambda metric: self._metrics.curve(run.id, metric))
        clones = (flatten(clone.config) for clone in self._children.get(run.id, ()))
        if found and any(clone | found.changes == clone for clone in clones):
            found = None
        run.suggestion = found
        if found is None or (before and before.changes == found.changes):
            return None
        return f"run {run.id}: {found.reason}; `rftui clone --suggested`, or ! on the screen, tries it"

    def _basis(self, run: Run) -> object:
        """It changes with whatever a suggestion rests on."""
        ended = run.state if run.state in (DELETED, DONE, FAILED) else ""
        clones = len(self._children.get(run.id, ()))
        return ended, run.chunk, run.error, tuple(run.checkpoints), self._taken_back[run.id], clones
