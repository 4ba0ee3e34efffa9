"""The app without a terminal, over a scheduler that is not there."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import asynccontextmanager

import pytest
from alone import visible
from fakes import FakeLaunch, FakeViewer, snapshot
from textual import _wait
from textual import screen as textual_screen
from textual.pilot import Pilot

from rftui.messages import Command, Snapshot
from rftui.tui.app import RftuiApp


class Shown:
    """The app under test, what it sent, and what stands on its screen."""

    def __init__(self, app: RftuiApp, pilot: Pilot[int], viewer: FakeViewer, launch: FakeLaunch) -> None:
        self.app, self.pilot, self.viewer, self.launch = app, pilot, viewer, launch

    @property
    def sent(self) -> list[Command]:
        return self.viewer.sent

    def asked(self) -> list[tuple[str, int]]:
        return [(command.op, getattr(command, "run", 0)) for command in self.viewer.sent]

    def lines(self) -> list[str]:
        return visible(self.app).split("\n")

    def text(self) -> str:
        return "\n".join(self.lines())

    def message(self) -> str:
        return self.app.query_one("#message").render().plain.strip()

    def row(self, run: int) -> str:
        """The run's row in the table."""
        return next(line for line in self.lines() if re.match(rf"\W*{run} (?!Runs)", line))

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, true: Callable[[], object], what: str = "") -> None:
        end = time.monotonic() + 10
        while not true():
            assert time.monotonic() < end, f"{what or 'this never came'}:\n{self.text()}"
            await self.pilot.pause(0.01)

    async def give(self, *messages: object) -> None:
        """Have the scheduler send these, and wait until the screen shows them."""
        self.viewer.give(*messages)  # type: ignore[arg-type]
        await self.until(lambda: self.viewer.drained)
        await self.pilot.pause()
        self.app.paint()
        await self.pilot.pause()


@pytest.fixture(scope="session", autouse=True)
def short_waits():
    """Textual's pilot waits three times a key until the process has done next to nothing for 20 ms, a little longer
    than until the screen is painted. Here both are a tenth as long."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_wait, "SLEEP_GRANULARITY", _wait.SLEEP_GRANULARITY / 10)
        patched.setattr(textual_screen, "UPDATE_PERIOD", textual_screen.UPDATE_PERIOD / 10)
        yield


@pytest.fixture
def show():
    """Run the app in a terminal of this size; without `first`, before its script serves."""

    @asynccontextmanager
    async def run(first: Snapshot | None | bool = True, size=(80, 24), **how):
        viewer, launch = FakeViewer(), FakeLaunch()
        if first is not None:
            viewer.give(snapshot() if first is True else first)
            launch.viewer = viewer
        app = RftuiApp(launch, **how)  # type: ignore[arg-type]
        async with app.run_test(size=size) as pilot:
            shown = Shown(app, pilot, viewer, launch)
            if first is not None:
                await shown.until(lambda: app.board.experiment, "the snapshot")
                await pilot.pause()
            yield shown

    return run
