"""A screen alone over an empty app, driven by keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fakes import FIELDS
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input

from rftui.messages import Field
from rftui.runs import Run
from rftui.tui.screens.clone import CloneScreen
from rftui.tui.screens.clone_draft import CloneRequest
from rftui.tui.screens.clone_fields import Choice

OPEN = object()
LR, R, TARGETS = "training_args.learning_rate", "peft_config.r", "peft_config.target_modules"
SCHED, EPOCHS = "training_args.lr_scheduler_type", "training_args.num_train_epochs"
SIZES = [(80, 24), (60, 20)]
MARKUP = ["lr=[1e-4", "[/b]", "[red]x[/]", "a[b"]


class Over(App[None]):
    """Keeps what the screen was closed with."""

    ENABLE_COMMAND_PALETTE = False

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__()
        self._first = screen
        self.answer: Any = OPEN

    def on_mount(self) -> None:
        self.push_screen(self._first, self._keep)

    def _keep(self, answer: Any) -> None:
        self.answer = answer


@asynccontextmanager
async def shown_over(screen: Screen[Any], size: tuple[int, int] = (80, 24)) -> AsyncIterator[tuple[Over, Pilot[None]]]:
    app = Over(screen)
    async with app.run_test(size=size) as pilot:
        await settled(app, pilot)
        yield app, pilot


async def settled(app: Over, pilot: Pilot[None]) -> None:
    """What was done is seen: it takes several rounds until all rows have their places."""
    seen: list[str] = []
    while len(seen) < 3 or len(set(seen[-3:])) > 1:
        await pilot.pause()
        seen.append(visible(app))


def form(
    parent: Run, *, fields: list[Field] = FIELDS, runs: list[Run] | None = None, ascii: bool = True
) -> CloneScreen:
    return CloneScreen(parent, runs or [parent], fields, ascii=ascii)


def knobs(app: Over) -> dict[str, Any]:
    screen = app.screen
    assert isinstance(screen, CloneScreen)
    return screen._knobs


def box(app: Over, name: str) -> Input | Choice:
    return knobs(app)[name].box


async def write(app: Over, pilot: Pilot[None], name: str, text: str) -> None:
    """Put `text` in the place of what the knob's field holds, by keys."""
    field = box(app, name)
    field.focus()
    await pilot.press("end", "ctrl+u", *text)
    await settled(app, pilot)


def visible(app: App[Any]) -> str:
    """What stands on the screen."""
    lines = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in line) for line in lines)


def flat(app: Over) -> str:
    """The screen's words without its line breaks and borders."""
    return " ".join(visible(app).replace("|", " ").split())


def under(app: Over, name: str) -> str:
    """The fault that is shown under a knob's field."""
    return knobs(app)[name].fault


def request(changes: dict[str, Any], warm: bool = True, **more: Any) -> CloneRequest:
    return CloneRequest(changes, warm, **({"parents": [7]} | more))
