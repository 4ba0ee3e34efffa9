"""What the scheduler does for a viewer, an op, a tick and a chunk end costs the same however much was logged before:
counted in steps of the database's machine, and in points that are sent."""

import pytest
from test_races import Rig

from rftui.curves import POINTS
from rftui.messages import Attach, Begun, Logged, Snapshot, Stepped, Stop, TurnEnded
from rftui.paths import create
from rftui.runs import STOPPED, Run
from rftui.store import Store
from tests.counted import steps_of

METRICS = ("loss", "grad_norm", "entropy")


@pytest.fixture
def grown(tmp_path, monkeypatch):
    """The scheduler of runs that have logged so many steps each, the last twenty of them in their second chunk."""
    made = []

    def make(runs, steps):
        experiment = create(tmp_path, f"{runs}-{steps}")
        store = Store.create(experiment.db)
        store.add_fit(num_chunks=4, chunk_size=None, seed=1, rows=60, eval_rows=0)
        for number in range(1, runs + 1):
            store.add_run(Run(0, f"r{number}", config={"training_args": {"learning_rate": 1e-4}}))
        store.close()
        made.append(Rig(experiment).ready())
        store = made[-1].registry.store
        for number in range(1, runs + 1):
            points = [(number, metric, step, 1 / step) for step in range(1, steps + 1) for metric in METRICS]
            store.add_points(points)
            for point in points:
                made[-1].registry.curves.add(*point)
            store.end_chunk(number, 1, steps - 20)
        made[-1].says(Begun(1, steps, 2 * steps, 1, 4, 0.5))
        made[-1].registry.log("all of them have begun")
        made[-1].registry.flush()
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def costs(rig, steps):
    """What each thing costs that the loop does."""

    def attach(_, brief=False):
        rig.scheduler.receive(Attach("1-viewer", brief))

    def tick(_):
        rig.says(Stepped(1, steps + 1, 1, 0.5), Logged(1, steps + 1, dict.fromkeys(METRICS, 1.0)))
        rig.registry.flush()
        rig.scheduler._printer.print()

    def chunk_end(_):
        rig.says(Stepped(1, steps + 2, 2, 0.5), TurnEnded(1, steps + 2, 2, 0.5, 1.0))
        rig.registry.flush()

    def command(_):
        rig.scheduler.receive(Stop(2))

    done = {"attach": attach, "command": command, "tick": tick, "chunk end": chunk_end}
    return {name: steps_of(rig.registry.store, do) for name, do in done.items()}


def test_nothing_that_the_loop_does_grows_with_what_was_logged(grown):
    few, many = costs(grown(4, 40), 40), costs(grown(4, 4000), 4000)
    # An end of a chunk reads the one curve by which a suggestion is made: its own run's.
    own = 4000 * 12 / 100
    assert many.pop("chunk end") <= few.pop("chunk end") + own
    assert all(many[name] <= few[name] + 5 for name in few), (few, many)


def test_a_tick_and_a_command_do_not_grow_with_the_runs(grown):
    few, many = costs(grown(4, 40), 40), costs(grown(100, 40), 40)
    assert all(many[name] <= few[name] + 5 for name in few), (few, many)


def test_a_viewer_gets_few_points_of_each_curve_and_one_that_gives_commands_none(grown):
    rig = grown(3, 2000)
    rig.scheduler.receive(Attach("1-viewer"))
    whole = rig.replies[-1]
    assert isinstance(whole, Snapshot) and len(whole.runs) == 3 and whole.events and whole.devices
    assert 3 * len(METRICS) * POINTS // 3 < sum(len(c) for of_run in whole.curves.values() for c in of_run.values())
    assert max(len(curve) for of_run in whole.curves.values() for curve in of_run.values()) <= POINTS
    rig.scheduler.receive(Attach("1-shell", brief=True))
    brief = rig.replies[-1]
    assert (brief.runs, brief.curves, brief.events, brief.devices) == ([], {}, [], [])
    assert brief.schema == whole.schema != {} and brief.experiment == whole.experiment


def test_what_was_sent_does_not_change_with_what_comes(grown):
    rig = grown(3, 100)
    rig.scheduler.receive(Attach("1-viewer"))
    sent = rig.replies[-1].curves
    before = sent.points(1, "loss")
    rig.says(Stepped(1, 101, 1, 0.5), Logged(1, 101, {"loss": 9.0}))
    assert sent.points(1, "loss") == before and rig.registry.curves.points(1, "loss")[-1] == (101, 9.0)


def test_the_curves_in_memory_are_those_of_the_store_after_ops_and_set_backs(grown):
    rig = grown(3, 100)
    run = rig.run(1)
    rig.registry.rewind(run, 50, [(step, {"loss": 7.0}) for step in range(40, 61)])
    rig.scheduler.receive(Stop(2))
    rig.registry.flush()
    assert rig.state(2) == STOPPED and run.metrics == rig.registry.store.last_values(1)
    found, kept = rig.registry.curves, rig.registry.store.curves()
    assert kept[1]["loss"][-1] == (60, 7.0) and kept[1]["loss"][39] == (40, 1 / 40)
    for number, curves in kept.items():
        assert {metric: found.points(number, metric) for metric in curves} == curves
