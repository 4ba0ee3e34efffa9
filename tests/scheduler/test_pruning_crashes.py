"""Rules that stop runs through crashes: what is decided is decided once, and what was stopped stays so."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import Simulated, experiment, journal, set_rules
from test_histories import MEMORY, happens, histories, thorough
from test_races import Quiet

from rftui import messages
from rftui.automl import RFEarlyStopping, RFMedianStopping, RFSuccessiveHalving
from rftui.runs import DELETED, DONE, STOPPED, STOPPING
from rftui.scheduler import loop


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """A scheduler without processes of its own."""
    monkeypatch.setattr(loop, "start_tracking", lambda experiment: Quiet())


@pytest.fixture
def simulated():
    """A scheduler of four runs with the losses 1 to 4, halved, whose workers are played by hand."""
    made = []
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        directory = experiment(Path(folder), 4)
        set_rules(directory, RFSuccessiveHalving())

        def start(fit=1):
            made.append(Simulated(directory, "cpu", fit))
            made[-1].losses = {run: float(run) for run in range(1, 5)}
            return made[-1].ready() if fit else made[-1]

        yield start
        for each in made:
            if not each.rig.closed:
                each.kill()


def until_run_4_has_ended_its_first_chunk(simulated):
    """The worker has reported it, and the scheduler has not heard it yet."""
    while simulated.workers["cpu"].steps.get(4) != 2:
        simulated.hear("cpu")
        simulated.work("cpu")
    assert all(run.state in ("running", "waiting") for run in simulated.runs.values())


def decided(simulated):
    return simulated.rig.registry.store.decisions("halving")


HALVED = {(1, 1): "keep", (2, 1): "keep", (3, 1): "stop", (4, 1): "stop"}


def test_a_scheduler_that_dies_once_a_stop_is_decided_leaves_the_run_stopped(simulated):
    first = simulated()
    until_run_4_has_ended_its_first_chunk(first)
    first.hear("cpu")
    assert [first.runs[n].state for n in (3, 4)] == [STOPPING, STOPPING] and decided(first) == HALVED
    first.kill()
    second = simulated(fit=None)
    assert [second.runs[n].state for n in (3, 4)] == [STOPPED, STOPPED]
    assert second.runs[4].stopped_by.startswith("rule halving: loss 4 after chunk 1 of 3 is 4th of 4; 2 go on")
    second.ready()
    second.rest()
    assert {key: outcome for key, outcome in decided(second).items() if key[1] == 1} == HALVED
    assert [second.runs[n].state for n in (1, 2, 3, 4)] == [DONE, STOPPED, STOPPED, STOPPED]
    stops = [command["run"] for command, _, _ in journal(second.rig.registry.store)]
    assert stops == [3, 4, 2], "each was pressed once"


def test_a_scheduler_that_dies_before_it_kept_a_decision_decides_the_same_again(simulated):
    first = simulated()
    until_run_4_has_ended_its_first_chunk(first)
    first.rig.registry.due = lambda: None
    first.hear("cpu")
    assert first.runs[4].state == STOPPING
    first.kill()
    second = simulated(fit=None).ready()
    assert decided(second) == {}
    second.rest()
    assert {key: outcome for key, outcome in decided(second).items() if key[1] == 1} == HALVED
    assert [second.runs[n].state for n in (1, 2, 3, 4)] == [DONE, STOPPED, STOPPED, STOPPED]


def test_a_worker_that_dies_before_it_can_stop_a_run_leaves_it_stopped(simulated):
    made = simulated()
    until_run_4_has_ended_its_first_chunk(made)
    made.hear("cpu")
    made.die("cpu")
    assert [made.runs[n].state for n in (3, 4)] == [STOPPED, STOPPED] and made.runs[4].stopped_by
    made.rest()
    assert {key: outcome for key, outcome in decided(made).items() if key[1] == 1} == HALVED


def test_a_run_that_goes_back_past_a_rung_is_not_judged_there_again(simulated):
    made = simulated()
    until_run_4_has_ended_its_first_chunk(made)
    made.hear("cpu")
    made.die("cpu")  # run 2 was never saved: it trains its first chunk again
    assert made.runs[2].step == 0 and 2 not in made.rig.registry.store.chunk_ends()
    made.losses[2] = 99.0
    made.rest()
    assert decided(made)[2, 1] == "keep" and decided(made)[2, 2] == "stop"


def test_nothing_is_decided_while_the_scheduler_ends(simulated):
    made = simulated()
    until_run_4_has_ended_its_first_chunk(made)
    made.rig.scheduler.ending.interrupt()
    made.rig.scheduler.receive(messages.Report("cpu", 1, list(made.workers["cpu"].outbox)))
    assert decided(made) == {} and not any(run.stopped_by for run in made.runs.values())


given_rules = st.lists(
    st.sampled_from([RFSuccessiveHalving(), RFMedianStopping(min_runs=1), RFEarlyStopping(1)]),
    min_size=1, max_size=3, unique_by=lambda rule: rule.name,
)  # fmt: skip


@given(st.integers(2, 5), st.sampled_from(["cpu", "cpu:2"]), given_rules, st.lists(histories, min_size=1, max_size=2))
@thorough
def test_whatever_happens_a_rule_stops_a_run_once_and_never_one_that_came_back(runs, devices, rules, histories):
    """After each history the scheduler is killed, and the next one goes on with what it left."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        directory = experiment(Path(folder), runs)
        set_rules(directory, *rules)
        simulated = Simulated(directory, devices)
        try:
            for history in histories:
                simulated.losses = {run: float(run) for run in range(1, 100)}
                simulated.ready()
                for event in history:
                    happens(simulated, event)
                simulated.kill()
                simulated = Simulated(directory, devices, fit=None)
            simulated.losses = {run: float(run) for run in range(1, 100)}
            simulated.ready().rest()
            stops = [c for c, ok, _ in journal(simulated.rig.registry.store) if c["by"].startswith("rule") and ok]
            stopped = [command["run"] for command in stops]
            assert len(stopped) == len(set(stopped))
            for run in simulated.runs.values():
                assert not run.stopped_by or run.state in (STOPPED, DELETED)
                assert not (run.stopped_by and run.exempt)
                assert bool(run.stopped_by or run.exempt) == (run.id in stopped)
        finally:
            simulated.kill()
