"""A scheduler with fake workers and no tracking, and a viewer that watches it."""

import threading
from itertools import count

import pytest
from fake_worker import FakeHost, World, command_of

from rftui import link_server
from rftui.launching import attach
from rftui.messages import Finish, Reply, Snapshot, Update
from rftui.paths import create
from rftui.runs import Run
from rftui.scheduler import ending, loop
from rftui.store import Store


class NoTracking:
    def wake(self): ...

    def notices(self):
        return []

    def close(self, timeout):
        return True


class Eyes:
    """A viewer that keeps what it is told."""

    def __init__(self, experiment):
        for _ in range(2000):  # a scheduler that was started just now holds the experiment in a moment
            if experiment.alive():
                break
            threading.Event().wait(0.01)
        self.viewer = attach(experiment).wait(20)
        self.runs, self.experiment, self.events, self.updates, self.replies = {}, None, [], [], {}
        self.snapshot, self.points, self.rewound, self.devices, self.schema = None, [], [], {}, {}
        self._ids = count(1)
        self.until(lambda: self.snapshot)

    def until(self, true):
        """Take messages until `true()`."""
        for _ in range(400):
            if true():
                return
            for message in self.viewer.poll(0.05):
                self._take(message)
        raise AssertionError(f"it never came: {[event.text for event in self.events]}")

    def _take(self, message):
        match message:
            case Snapshot():
                self.snapshot, self.events = message, list(message.events)
            case Update():
                self.updates.append(message)
                self.events += message.events
                self.points += message.points
                self.rewound.append(message.rewound)
            case Reply():
                self.replies[message.command] = message
                return
        self.runs |= {run.id: run for run in message.runs}
        self.devices |= {device.name: device for device in message.devices}
        self.schema |= message.schema
        self.experiment = message.experiment or self.experiment

    def ask(self, op, run=0, changes=None, **how):
        """The answer to a command."""
        command = command_of(op, run, changes, id=f"{self.viewer.name}-{next(self._ids)}", **how)
        self.viewer.send(command)
        self.until(lambda: command.id in self.replies)
        return self.replies[command.id]

    def finish(self):
        """Say so; the scheduler may end before its answer can be read."""
        self.viewer.send(Finish())

    def state(self, run, *states):
        self.until(lambda: self.runs[run].state in states)
        return self.runs[run]

    def told(self, text):
        return any(text in event.text for event in self.events)


class Play(threading.Thread):
    """`loop.run` in a thread."""

    def __init__(self, experiment, **how):
        super().__init__(daemon=True)
        self.experiment, self.how, self.outcome = experiment, how, None
        self.start()

    def run(self):
        try:
            self.outcome = loop.run(self.experiment, **self.how)
        except BaseException as error:
            self.outcome = error

    def end(self):
        """The exit code, or what was raised."""
        self.join(30)
        assert not self.is_alive(), "the scheduler did not end"
        return self.outcome


@pytest.fixture
def world(monkeypatch):
    world = World()
    monkeypatch.setattr(loop, "start_tracking", lambda experiment: NoTracking())
    monkeypatch.setattr(loop, "HOUSEKEEPING", 0.1)
    monkeypatch.setattr(ending, "_LINGER", 0.3)
    monkeypatch.setattr(link_server, "_LAST_WORDS", 0.1)  # most viewers here do not watch to the end
    yield world
    world.let_go()


@pytest.fixture
def experiment(tmp_path):
    """An experiment of one fit with three queued runs."""
    experiment = create(tmp_path, "exp")
    store = Store.create(experiment.db)
    store.add_fit(num_chunks=3, chunk_size=None, seed=1, rows=60, eval_rows=0)
    for number in range(1, 4):
        run = Run(0, f"r{number}", config_index=number - 1, config={"training_args": {"learning_rate": 1e-4}})
        store.add_run(run)
    store.close()
    return experiment


@pytest.fixture
def play(experiment, world):
    """Start a scheduler; it ends with the test."""
    plays = []

    def start(at=experiment, **how):
        play = Play(at, **{"fit": 1, "devices": "cpu", "host": FakeHost(world), **how})
        plays.append(play)
        return play

    start.plays = plays
    yield start
    world.let_go()
    for play in plays:
        play.join(20)


@pytest.fixture
def eyes(experiment, play):
    """Attach a viewer."""
    attached = []

    def watch(at=experiment):
        attached.append(Eyes(at))
        return attached[-1]

    yield watch
    for each in attached:
        each.viewer.close()


@pytest.fixture
def kept(experiment):
    """The store, for reading."""
    return lambda: Store.read(experiment.db)
