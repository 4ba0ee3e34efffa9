"""Where the runs of a fit come from: today a grid, all of it at once; a search that goes on is one, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from rftui.automl.grid import RFGridSearch
from rftui.config.spec import RunConfig
from rftui.runs import Run


@runtime_checkable
class RunSource(Protocol):
    """What proposes runs."""

    def propose(self, runs: Sequence[Run]) -> list[RunConfig]:
        """The configs to try next, given all the fit's runs so far (none as it begins); empty where there is nothing
        more to try. Raises one UserError for all that is wrong."""


def source(group: Any) -> RunSource:
    """What `run_fit` was given as its config group: a source itself, or what a grid is made of."""
    return group if isinstance(group, RunSource) else RFGridSearch([] if group is None else group)
