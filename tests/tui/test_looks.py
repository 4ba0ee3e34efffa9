"""How the screens look, as pictures. `pytest tests/tui/test_looks.py --snapshot-update` takes them anew."""

from __future__ import annotations

import time

import pytest
from fakes import FakeLaunch, FakeViewer, snapshot

from rftui.tui.app import RftuiApp

SIZES = pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=["80x24", "200x50"])


@pytest.fixture(autouse=True)
def greenwich(monkeypatch):
    """Events are told in local time."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def app(**how) -> RftuiApp:
    viewer = FakeViewer()
    viewer.give(snapshot())
    return RftuiApp(FakeLaunch(viewer), **how)  # type: ignore[arg-type]


def after(*keys: str):
    """Press the keys once the snapshot is shown, and draw all that is drawn by a clock."""

    async def run(pilot) -> None:
        while pilot.app.board.experiment is None:
            await pilot.pause(0.01)
        await pilot.pause()
        await pilot.press(*keys)
        for box in pilot.app.screen.query("Input"):
            box.cursor_blink = False
        await pilot.pause()
        pilot.app.paint()
        pilot.app.view.draw()
        await pilot.pause()

    return run


@SIZES
def test_the_table(snap_compare, size):
    assert snap_compare(app(), terminal_size=size, run_before=after("j", "space"))


@SIZES
def test_the_clone_form(snap_compare, size):
    assert snap_compare(app(), terminal_size=size, run_before=after("c"))


@SIZES
def test_a_clone_form_in_use(snap_compare, size):
    """Several values, a fault, and knobs that are looked for."""
    keys = (*"1e-4,5e-4", "down", *"8,32", "down", "comma", *["down"] * 9, *"adam", "down")
    assert snap_compare(app(), terminal_size=size, run_before=after("c", *keys))


def test_a_promotion(snap_compare):
    keys = ("p", *"bigchat", "down", "3")
    assert snap_compare(app(), terminal_size=(80, 24), run_before=after(*keys))


def test_a_suggestion(snap_compare):
    assert snap_compare(app(), terminal_size=(80, 24), run_before=after(*"jjjjj", "exclamation_mark"))


@SIZES
def test_a_run(snap_compare, size):
    assert snap_compare(app(), terminal_size=size, run_before=after("enter"))


@SIZES
def test_the_help(snap_compare, size):
    assert snap_compare(app(), terminal_size=size, run_before=after("question_mark"))


@SIZES
def test_the_rules(snap_compare, size):
    assert snap_compare(app(), terminal_size=size, run_before=after("R", "j"))


@pytest.mark.parametrize("key", ["d", "q"])
def test_a_question(snap_compare, key):
    assert snap_compare(app(), terminal_size=(80, 24), run_before=after(key))


def test_ascii(snap_compare):
    assert snap_compare(app(ascii=True), terminal_size=(80, 24), run_before=after())


def test_the_smallest(snap_compare):
    assert snap_compare(app(), terminal_size=(40, 10), run_before=after())
