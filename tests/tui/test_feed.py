"""What the scheduler sends while the app is busy, as behind an open editor: bounded, and nothing stale is shown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from fakes import FakeLaunch, FakeViewer, made, snapshot

from rftui.errors import UserError
from rftui.messages import Reply, Snapshot, Update
from rftui.session import Session
from rftui.tui.editor import edit
from rftui.tui.feed import MOST, Feed


class Busy:
    """An app that does what it was called for when its test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.received: list[Any] = []
        self.ended = 0

    def call_later(self, callback: Callable[[], None]) -> None:
        self.calls.append(callback)

    def receive(self, messages: list[Any]) -> None:
        self.received += messages

    def show_launch(self, tail: list[str]) -> None: ...

    def link_lost(self) -> None:
        self.ended += 1

    def not_served(self, fault: UserError) -> None: ...

    def work(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class Fed:
    def __init__(self) -> None:
        self.app, self.viewer = Busy(), FakeViewer()
        self.session = Session(FakeLaunch(self.viewer))  # type: ignore[arg-type]
        self.feed = Feed(self.app, self.session)

    def run(self) -> None:
        """Everything that was given, to the end of the link."""
        self.viewer.lose()
        thread = threading.Thread(target=self.feed.follow)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()


def test_an_app_that_is_busy_has_one_call_and_a_bounded_number_of_messages_waiting() -> None:
    fed = Fed()
    fed.viewer.give(snapshot())
    for number in range(3 * MOST):
        fed.viewer.give(Update(number, runs=[made(1, step=number)]))
    fed.viewer.give(Reply("a", True, "an answer is kept"))
    fed.run()
    assert len(fed.app.calls) == 1 and fed.feed.waiting <= MOST
    fed.app.work()
    assert fed.app.received == [Reply("a", True, "an answer is kept")], "no update without what came before it"
    assert fed.viewer.refreshed == 0 and fed.app.ended == 1


def test_a_fresh_snapshot_stands_for_what_was_dropped() -> None:
    fed = Fed()
    fed.viewer.give(snapshot())
    thread = threading.Thread(target=fed.feed.follow)
    for number in range(MOST + 1):
        fed.viewer.give(Update(number))
    taken = threading.Event()
    fed.viewer.on_refresh = lambda: (fed.viewer.give(Update(7), snapshot(), Update(8)), fed.viewer.lose(), taken.set())
    thread.start()
    while not fed.viewer.drained:
        thread.join(0.01)
    fed.app.work()
    assert taken.is_set() and fed.app.received == [] and fed.viewer.refreshed == 1
    thread.join(30)
    fed.app.work()
    first, last = fed.app.received
    assert isinstance(first, Snapshot) and last == Update(8)


async def test_what_comes_behind_an_open_editor_is_shown_when_it_closes(show, monkeypatch, tmp_path) -> None:
    written = tmp_path / "written"
    monkeypatch.setenv("EDITOR", f"sh -c 'until test -e {written}; do sleep 0.01; done'")
    monkeypatch.delenv("VISUAL", raising=False)
    async with show() as shown:
        calls: list[object] = []
        call_later = shown.app.call_later
        monkeypatch.setattr(shown.app, "call_later", lambda *call: calls.append(call) or call_later(*call))
        monkeypatch.setattr(type(shown.app), "suspend", lambda app: pytest.MonkeyPatch().context())

        def pour() -> None:
            for number in range(MOST + 100):
                shown.viewer.give(Update(number, runs=[made(1, step=number % 400)]))
            while not shown.viewer.drained:
                taken.wait(0.01)
            written.touch()

        taken = threading.Event()
        shown.viewer.on_refresh = lambda: shown.viewer.give(snapshot([made(1, step=350)]))
        thread = threading.Thread(target=pour)
        thread.start()
        edit(shown.app, "x", ".yaml")
        thread.join(30)
        assert len(calls) == 1
        await shown.until(lambda: shown.app.board.runs[1].step == 350)
        assert shown.viewer.refreshed == 1
