"""Whatever happens in whatever order: turns are fair, nobody starves, and what a killed scheduler left is taken up."""

import copy
import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated import RATE, Simulated, copied, experiment
from test_races import Quiet

from rftui.checkpoints import checkpoint_marker, newest_checkpoint
from rftui.runs import DELETED, DONE, FAILED, QUEUED, RUNNING, STOPPED, STOPPING
from rftui.scheduler import loop
from rftui.store import Store

EXPECTED_FAILURES = ("its worker died twice", "weights to start from")

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where what is synced for thousands of commits costs nothing."""

WHERE_IT_STANDS = (
    *("state", "step", "epoch", "chunk", "device", "checkpoint", "checkpoints", "metrics", "error", "final"),
)

OPS = ("stop", "resume", "clone", "warm", "sweep", "earlier", "delete", "undo")

events = st.one_of(
    st.tuples(st.sampled_from(["work", "hear", "both", "both", "round", "die"]), st.integers(0, 2)),
    st.tuples(st.sampled_from(OPS), st.integers(1, 6)),
)
histories = st.lists(events, min_size=10, max_size=80)
thorough = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """A scheduler without processes of its own."""
    monkeypatch.setattr(loop, "start_tracking", lambda experiment: Quiet())


def happens(simulated, event):
    what, which = event
    worker = list(simulated.workers)[which % len(simulated.workers)]
    if what in ("work", "hear", "die"):
        getattr(simulated, what)(worker)
        return
    if what in ("both", "round"):
        for name in [worker] if what == "both" else list(simulated.workers):
            simulated.work(name)
            simulated.hear(name)
        return
    in_force = simulated.in_force(1).values()
    answer = asked(simulated, what, which)
    if answer.ok and what in ("resume", "clone", "warm"):
        joined = simulated.runs[answer.run or which]
        assert joined.turns - (joined.state == RUNNING) == min(in_force, default=0), "it joins with another count"


def asked(simulated, what, which):
    """Ask for one of `OPS`."""
    if what == "warm":
        return simulated.ask("clone", which, warm=True)
    if what == "sweep":
        return simulated.ask("clone", which, sweep={RATE: [2e-4, 2e-5]}, warm=which % 2 == 0)
    if what == "earlier":
        run = simulated.runs.get(which)
        return simulated.ask("clone", which, warm=True, from_step=run.checkpoints[0] if run and run.checkpoints else 1)
    return simulated.ask(what, which)


@given(st.integers(1, 4), st.sampled_from(["cpu", "cpu:2", "cpu:3"]), histories)
@thorough
def test_turns_stay_fair_and_nobody_starves(runs, devices, history):
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        simulated = Simulated(experiment(Path(folder), runs), devices).ready()
        try:
            for event in history:
                happens(simulated, event)
            simulated.rest()
            all_is_well(simulated)
        finally:
            simulated.kill()


@given(st.integers(1, 4), st.sampled_from(["cpu", "cpu:2"]), st.lists(histories, min_size=1, max_size=3))
@thorough
def test_what_a_killed_scheduler_left_is_taken_up_the_same_way_each_time(runs, devices, histories):
    """After each history the scheduler is killed, and the next one goes on with what it left."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        simulated = Simulated(experiment(Path(folder), runs), devices).ready()
        try:
            asked = 0
            for number, history in enumerate(histories):
                for event in history:
                    happens(simulated, event)
                    asked += event[0] in OPS
                answered = {run.id: run.state for run in simulated.runs.values()}
                left = copied(simulated.directory, Path(folder) / f"left{number}")
                simulated.kill()
                simulated = Simulated(simulated.directory, devices, fit=None)
                taken_up(left, answered, asked, simulated)
                if number % 2:  # else it is killed before it has kept what it took up
                    simulated.rig.registry.flush()
                once = copy.deepcopy(simulated.runs), simulated.curves()
                simulated.kill()
                simulated = Simulated(simulated.directory, devices, fit=None)
                assert (simulated.runs, simulated.curves()) == once
                simulated.ready()
            simulated.rest()
            all_is_well(simulated)
        finally:
            simulated.kill()


def all_is_well(simulated):
    for run in simulated.runs.values():
        assert run.state != FAILED or any(why in run.error for why in EXPECTED_FAILURES), run.error
        if run.state == DONE:
            assert simulated.curves()[run.id]["loss"] == [(step, 1 / step) for step in range(1, 7)]


def taken_up(left, answered, asked, simulated):
    """Each run stands where the directory that was `left` says, whatever the killed scheduler still had in mind."""
    store = Store.read(left.db)
    before, curves = {run.id: run for run in store.runs()}, store.curves()
    then, now = str(left.path), str(simulated.directory.path)
    for run in before.values():  # whose paths are those of the directory that was left
        run.checkpoint, run.final = (path and path.replace(then, now) for path in (run.checkpoint, run.final))
    store.close()
    with closing(sqlite3.connect(left.db)) as db:
        journal = db.execute("SELECT count(*), count(ok), count(reply) FROM journal").fetchone()
    assert journal == (asked, asked, asked)
    assert before.keys() == answered.keys() == simulated.runs.keys(), "a clone that was answered is not there"
    for number, old in before.items():
        new, points = simulated.runs[number], curves.get(number, {})
        assert old.active or old.state == answered[number]
        if old.active or old.state == STOPPED:
            newest = newest_checkpoint(left.run(number).checkpoints)
            step = checkpoint_marker(newest)["step"] if newest else 0
            stopped = old.state in (STOPPED, STOPPING)
            expected = DONE if checkpoint_marker(left.run(number).final) else STOPPED if stopped else QUEUED
            if old.warm and not old.start_step:
                expected = pinned(left, before, old, new) or expected
            assert new.state == expected
            assert (new.step, new.device) == (step, None)
            assert (new.checkpoint or "").rpartition("/")[2] == (newest.name if newest else "")
            points = {"loss": [(at, 1 / at) for at in range(1, step + 1)]} if step else {}
            for field in WHERE_IT_STANDS:
                setattr(old, field, getattr(new, field))
        if old.state == DELETED:
            old.before = ""  # its files are gone
        assert new == old
        assert simulated.curves().get(number, {}) == points
        assert new.metrics == {name: curve[-1][1] for name, curve in points.items()}


def pinned(left, before, old, new):
    """Check where a warm clone starts that had no weights yet; FAILED where it can get none."""
    parent = before[old.parent]
    own, newest = checkpoint_marker(left.run(old.id).start), newest_checkpoint(left.run(parent.id).checkpoints)
    start = own or (newest and checkpoint_marker(newest))
    if not start:
        return None if parent.active else FAILED
    assert new.start_step == before[parent.id].start_step + start["step"] and new.start_row == start["row"]
    old.start_step, old.start_epoch, old.start_row = new.start_step, new.start_epoch, new.start_row
    old.turns = new.turns
    return None
