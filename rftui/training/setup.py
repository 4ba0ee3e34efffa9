"""What a fit's `setup_fn` does to the process of a worker: once, before anything else of the fit is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rftui.config.spec import Spec
from rftui.errors import UserError
from rftui.training import failures
from rftui.training.process_state import work_in


class Setup:
    """Loads specs for one process, which is set up by the first of them for good."""

    def __init__(self) -> None:
        self._ran: list[Any] = []
        self._fault: UserError | None = None
        self._known: dict[str, Any] = {}

    def load(self, path: Path) -> Spec:
        """The spec, made anew but for the classes that its `setup_fn` has registered, and the process in the
        directory from which the relative paths of its configs and functions are meant. Raises UserError where that is
        not there, where `setup_fn` raised, or where another fit has set the process up otherwise: none would train as
        it would alone."""
        spec = Spec.load(path, self._known)
        work_in(spec.cwd)
        if self._ran and self._ran != [spec.setup_fn]:
            raise UserError(
                "another run_fit has set this worker up with another setup_fn: reopen the experiment when the runs of "
                "that one have ended, and clone this run there"
            )
        if not self._ran:
            self._ran = [spec.setup_fn]
            if spec.setup_fn:
                self._run(spec)
                spec = Spec.load(path, self._known)
        if self._fault:
            raise self._fault
        return spec

    def _run(self, spec: Spec) -> None:
        try:
            function, self._known = spec.setup()
            function()
        except Exception as error:
            self._fault = UserError(f"setup_fn raised {failures.line(error)}")
