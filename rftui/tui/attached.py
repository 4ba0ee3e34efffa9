"""The viewer's tie to a scheduler: it follows the one that was started or found, and the one that is started next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rftui.errors import UserError
from rftui.launching import Launch
from rftui.link import LinkLost, Viewer
from rftui.paths import ExperimentDir

if TYPE_CHECKING:
    from rftui.tui.app import RftuiApp

Reopen = Callable[[ExperimentDir], Launch]
"""Starts a scheduler for an experiment that has none."""


class Attached:
    """`viewer` is None until a scheduler serves; `lost`: it has ended, and the app knows.

    `follow` and `reopen` run in a thread that touches no widget and waits for none.
    """

    def __init__(self, app: RftuiApp, launch: Launch, reopen: Reopen | None) -> None:
        self.launch = launch
        self.viewer: Viewer | None = None
        self.lost = False
        self._app = app
        self._reopen = reopen
        self._left = threading.Event()

    @property
    def can_reopen(self) -> bool:
        return self._reopen is not None

    def leave(self) -> None:
        self._left.set()
        if self.viewer:
            self.viewer.close()

    def follow(self) -> None:
        """Until the scheduler or the viewer ends."""
        while not self._left.is_set():
            status = self.launch.exit_status
            viewer = self.launch.poll()
            if viewer is None and status is None:
                self._app.call_later(self._app.show_launch, self.launch.tail(8))
                self._left.wait(0.1)
            elif viewer is None:
                self._app.call_later(self._app.ended_unseen, status or 0)
                return
            elif self._listen(viewer):
                return

    def _listen(self, viewer: Viewer) -> bool:
        """Take messages to the end; False where there was none."""
        self.viewer = viewer
        try:
            while not self._left.is_set():
                if messages := viewer.poll(0.5):
                    self._app.call_later(self._app.receive, messages)
        except LinkLost:
            if not viewer.answered:  # it was just ending; how is for the launch to say
                self.viewer = None
                return False
            self._app.call_later(self._app.link_lost)
        return True

    def reopen(self, experiment: Path) -> None:
        """Follow a new scheduler, which is started once the one before has ended altogether."""
        assert self._reopen
        while ExperimentDir(experiment).alive():
            if self._left.wait(0.05):
                return
        try:
            self.launch = self._reopen(ExperimentDir(experiment))
        except UserError as fault:
            self._app.call_later(self._app.not_reopened, str(fault))
            return
        self.follow()
