"""A database that cannot be written any more: everything ends where it can be taken up, and says why."""

import signal
import threading

import pytest
from fake_worker import FakeHost

from rftui import messages
from rftui.errors import UserError
from rftui.runs import DONE
from rftui.scheduler import ending, loop
from rftui.store import Store, Unwritten


class Disk:
    """What the database of the next scheduler lies on."""

    def __init__(self, monkeypatch):
        self.store = None

        def opened(path):
            self.store = Store(path)
            return self.store

        monkeypatch.setattr(loop, "Store", opened)

    def fill(self):
        """From here on the database takes no more than it has."""
        (pages,) = self.store._db.execute("PRAGMA page_count").fetchone()
        self.store._db.execute(f"PRAGMA max_page_count = {pages}")

    def clear(self):
        """There is room again."""
        self.store._db.execute("PRAGMA max_page_count = 1000000")


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


@pytest.fixture
def full(play, eyes, world, disk):
    """Each run has 900 steps, too many for the disk, which is full as run 1 is about to take its third."""
    world.per = 300
    hold = world.hold(1, 3)
    scheduler = play(viewer=True)
    hold.wait()
    seen = eyes()
    disk.fill()
    return scheduler, seen, hold


def test_it_ends_resumably_and_says_what_is_wrong(full, play, kept, world):
    scheduler, seen, hold = full
    hold.go.set()
    seen.until(lambda: seen.told("database or disk is full"))
    seen.viewer.send(messages.Interrupt())
    fault = scheduler.end()
    assert isinstance(fault, UserError) and fault.code == 130 and len(fault.lines) == 1
    assert "database or disk is full" in str(fault) and "MB free" in str(fault)
    assert str(fault).endswith("mend that, and `rftui open exp` goes on from the last checkpoints")
    assert messages.Quit(save=True) in world.asked, "the workers write their last checkpoints"
    assert {run.state for run in kept().runs()} != {DONE}
    trained = len(world.trained)
    assert play(fit=None).end() == 0
    assert {run.state for run in kept().runs()} == {DONE}
    assert len(world.trained) == 2700 and trained < 2700, "what was saved is not trained again"
    for run in (1, 2, 3):
        assert kept().curves(run)[run]["loss"] == [(step, 1 / step) for step in range(1, 901)]


def test_it_goes_on_when_there_is_room_and_nothing_is_missing(full, kept, disk, world, capsys):
    scheduler, seen, hold = full
    hold.go.set()
    seen.until(lambda: seen.told("goes on by itself when there is room"))
    assert "database or disk is full" in capsys.readouterr().out, "the reason reaches the terminal"
    disk.clear()
    for run in (1, 2, 3):
        seen.state(run, DONE)
    seen.finish()
    assert scheduler.end() == 0 and len(world.trained) == 2700
    for run in (1, 2, 3):
        assert kept().curves(run)[run]["loss"] == [(step, 1 / step) for step in range(1, 901)]
    assert [event.id for event in kept().events(1000)] == sorted({event.id for event in kept().events(1000)})


def test_ops_are_refused_with_the_reason_and_whoever_comes_still_sees_the_runs(full, eyes):
    scheduler, seen, hold = full
    seen.viewer.send(messages.Clone(1, {"training_args.learning_rate": 3e-4}, name="x" * 200_000))
    answer = seen.ask("stop", 2)
    assert not answer.ok and "database or disk is full" in answer.text
    assert set(eyes().runs) == {1, 2, 3}
    seen.viewer.send(messages.Interrupt())
    hold.go.set()
    assert "database or disk is full" in str(scheduler.end())


def test_a_database_that_was_full_before_the_start_is_told_and_nothing_is_trained(
    play, world, experiment, monkeypatch
):
    def refuse(self):
        raise Unwritten("exp cannot be written: attempt to write a readonly database", code=1)

    monkeypatch.setattr(Store, "commit", refuse)
    fault = play().end()
    assert isinstance(fault, UserError) and "readonly" in str(fault) and world.trained == []


def test_a_link_that_cannot_be_written_is_told_in_one_line(play, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loop, "Server", full)
    fault = play().end()
    assert isinstance(fault, UserError) and fault.code == 1
    assert str(fault).startswith("cannot write to ") and str(fault).endswith("/exp: No space left on device")


def test_a_worker_that_cannot_be_started_again_ends_it_resumably(play, kept, world, monkeypatch):
    world.save_chunks = True
    world.deaths[1, 4] = 1
    start = FakeHost.start

    def refuse(self, name, environment, ended):
        if world.started:
            raise OSError(11, "Resource temporarily unavailable")
        return start(self, name, environment, ended)

    monkeypatch.setattr(FakeHost, "start", refuse)
    fault = play().end()
    assert isinstance(fault, UserError) and fault.code == 130
    assert kept().meta("state") == "interrupted" and kept().run(1).step == 2


def test_signals_while_it_gives_up(experiment, world, disk):
    """The first is no more than what it does anyway; the second ends it at once."""
    held = world.hold(1, 2)

    def send():
        held.wait()
        scheduler = made[0]
        scheduler.server.inbox.put(Full())

    class Full:
        """A message whose handling cannot be kept."""

    made = []
    real = loop.Scheduler

    class Scheduler(real):
        def __init__(self, *how):
            super().__init__(*how)
            made.append(self)

        def receive(self, message):
            if isinstance(message, Full):
                for number in (signal.SIGINT, signal.SIGTERM):
                    self.server.inbox.put(number)
                raise Unwritten("exp cannot be written: full", code=1)
            super().receive(message)

    loop.Scheduler = Scheduler
    try:
        threading.Thread(target=send).start()
        with pytest.raises(UserError, match="full; mend that"):
            loop.run(experiment, 1, devices="cpu", host=FakeHost(world))
    finally:
        loop.Scheduler = real
    assert world.trained == [(1, 1)], "the worker was killed at the step that held it"


def test_what_came_while_the_disk_was_full_is_taken_in_before_what_came_later(experiment, world, monkeypatch):
    monkeypatch.setattr(ending, "HOUSEKEEPING", 0.1)
    taken = []

    class Full:
        """A message whose handling waits for room."""

    class Scheduler(loop.Scheduler):
        def __init__(self, *how):
            super().__init__(*how)
            for message in (Full(), messages.Report("x", 1, []), messages.Report("x", 2, [])):
                self.server.inbox.put(message)

        def receive(self, message):
            match message:
                case Full():
                    self.ending.wait_for_room(Unwritten("exp cannot be written: full", code=1))
                    self.server.inbox.put(messages.Report("x", 3, []))
                case messages.Report("x", number):
                    taken.append(number)
                case _:
                    super().receive(message)

    monkeypatch.setattr(loop, "Scheduler", Scheduler)
    assert loop.run(experiment, 1, devices="cpu", host=FakeHost(world)) == 0
    assert taken == [1, 2, 3]
