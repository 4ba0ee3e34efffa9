"""What the user hears of a tracker that is slow or dead, and of a tracking process that fails."""

import os
import queue
import threading

import pytest
from test_sender import Recorder

from rftui.tracking import service as tracking_service
from rftui.tracking.service import Service


class Target:
    """A tracker called Dummy."""

    secrets = {"hunter22"}

    def __init__(self, tracker):
        self.tracker = tracker

    def __str__(self):
        return "Dummy at host"

    def connect(self, experiment):
        return self.tracker


class Slow(Recorder):
    """It answers once it is let."""

    def __init__(self):
        super().__init__()
        self.asked, self.may = threading.Event(), threading.Event()

    def log_points(self, tracker_run, points):
        self.asked.set()
        assert self.may.wait(60)
        super().log_points(tracker_run, points)


class Running:
    """A service in a thread; what it says; the end of its wake-ups."""

    def __init__(self, database, tracker, **times):
        self.said, self.error = queue.Queue(), None
        wakes, self._wakes = os.pipe()
        service = Service(database.experiment, Target(tracker), self.said.put, **times)
        self._thread = threading.Thread(target=self._run, args=(service, wakes), daemon=True)
        self._thread.start()

    def _run(self, service, wakes):
        try:
            service.run(wakes)
        except BaseException as error:
            self.error = error
        os.close(wakes)

    def hears(self):
        return self.said.get(timeout=60)

    def end(self):
        """What was said until it ended."""
        if self._wakes is not None:
            os.close(self._wakes)
        self._wakes = None
        self._thread.join(60)
        assert not self._thread.is_alive()
        return list(self.said.queue)


@pytest.fixture
def trained(database):
    database.run(1, state="done")
    database.points(1, "loss", [1, 2, 3])
    return database


def test_a_tracker_that_is_slow_is_told_with_what_is_missing_and_so_is_its_return(trained):
    slow = Slow()
    running = Running(trained, slow, slow=0.0)
    assert running.hears().startswith("Dummy at host is slow: 3 points are not there yet")
    slow.may.set()
    assert running.hears() == "Dummy at host has everything again"
    assert running.end() == []


def test_the_last_word_says_what_is_unsent_and_how_to_send_it(trained):
    slow = Slow()
    running = Running(trained, slow, last_tries=0.0)
    assert slow.asked.wait(60)
    how = f"rftui open exp --home {trained.experiment.home}"
    assert running.end() == [f"Dummy at host did not take everything: 3 points are not there; `{how}` sends the rest"]
    slow.may.set()


def test_a_tracker_that_is_dead_until_the_end_is_told_once_and_at_the_end(trained):
    class Dead(Recorder):
        def open(self):
            raise OSError("no hunter22 at\nhttp://me:hunter22@host/?token=hunter22")

    running = Running(trained, Dead(), last_tries=0.0)
    first = running.hears()
    assert first.startswith("Dummy at host says no [redacted] at http://host/?[redacted]; what is missing there is")
    [last] = running.end()
    assert last.startswith("Dummy at host did not take everything: 3 points are not there")


def test_what_the_sending_thread_dies_of_ends_the_process(trained):
    class Broken(Recorder):
        def open(self):
            raise SystemExit("a bug")

    running = Running(trained, Broken())
    assert running.end() == []
    assert isinstance(running.error, SystemExit)


def test_a_count_that_fails_is_told_too(trained, monkeypatch):
    def fails(*_):
        raise OSError

    monkeypatch.setattr(tracking_service, "count_unsent", fails)
    slow = Slow()
    running = Running(trained, slow, slow=0.0)
    assert "an unknown number of points (OSError) is not there yet" in running.hears()
    slow.may.set()
    running.end()
