"""Faults of the scheduler itself: what it can set aside ends nothing, and what it cannot loses no run."""

import shutil

import pytest

from rftui import messages
from rftui.errors import UserError
from rftui.runs import DONE, STOPPED
from rftui.scheduler import turns
from rftui.scheduler.ending import Ending
from rftui.scheduler.headless import Printer
from rftui.scheduler.registry import Registry
from rftui.scheduler.turns import Turns
from rftui.scheduler.weight_snapshots import WeightSnapshots
from rftui.scheduler.workers import Crew
from rftui.store import Store


def once(monkeypatch, owner, name, *, skip=0, times=1):
    """Have a method raise from its call number `skip` on, so often; then it works again."""
    method, calls = getattr(owner, name), []

    def failing(self, *args, **how):
        calls.append(1)
        if skip < len(calls) <= skip + times:
            raise RuntimeError(f"{name} broke")
        return method(self, *args, **how)

    monkeypatch.setattr(owner, name, failing)
    return calls


def curves(kept):
    return {run.id: kept().curves(run.id)[run.id]["loss"] for run in kept().runs()}


WHOLE = {run: [(step, 1 / step) for step in range(1, 7)] for run in (1, 2, 3)}


@pytest.mark.parametrize("skip", [0, 2])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Registry, "points"),
        (Registry, "end_chunk"),
        (Turns, "end_turn"),
        (Turns, "leave"),
        (WeightSnapshots, "stepped"),
        (WeightSnapshots, "freed"),
        (Turns, "_start"),
        (Turns, "assign"),
        (Registry, "flush"),
        (Registry, "estimate"),
        (Ending, "look"),
        (Printer, "print"),
        (Store, "end_turn"),
    ],
)
def test_what_breaks_once_costs_no_run_and_is_told_in_one_line(
    play, kept, world, experiment, monkeypatch, owner, name, skip
):
    calls = once(monkeypatch, owner, name, skip=skip)
    assert play().end() == 0
    if len(calls) <= skip:
        pytest.skip("it is not called so often")
    assert {run.state for run in kept().runs()} == {DONE} and curves(kept) == WHOLE
    told = [event.text for event in kept().events(1000) if "broke" in event.text]
    assert len(told) == 1 and "a fault of rftui" in told[0] and "\n" not in told[0]
    assert f"{name} broke" in (experiment.logs / "scheduler.txt").read_text()


def test_a_report_that_never_can_be_taken_in_stops_its_run_and_no_other(play, kept, eyes, world, monkeypatch):
    end_chunk = Registry.end_chunk

    def failing(self, run):
        if run.id == 2 and run.chunk:
            raise RuntimeError("it broke")
        end_chunk(self, run)

    monkeypatch.setattr(Registry, "end_chunk", failing)
    hold = world.hold(1, 1)
    scheduler = play(viewer=True)
    hold.wait()
    seen = eyes()
    hold.go.set()
    seen.state(2, STOPPED)
    assert "resume tries again" in seen.runs[2].error
    seen.state(1, DONE)
    seen.state(3, DONE)
    monkeypatch.setattr(Registry, "end_chunk", end_chunk)
    assert seen.ask("resume", 2).ok and seen.state(2, DONE).error is None
    seen.finish()
    assert scheduler.end() == 0 and curves(kept) == WHOLE


@pytest.mark.parametrize("report", [messages.Ready, messages.Schema, messages.Checked])
def test_a_worker_whose_first_words_are_lost_is_started_anew(play, kept, world, monkeypatch, report):
    hear, lost = Crew.hear, []

    def failing(self, worker, said):
        if isinstance(said, report) and not lost:
            lost.append(said)
            raise RuntimeError("it broke")
        hear(self, worker, said)

    monkeypatch.setattr(Crew, "hear", failing)
    assert play().end() == 0
    assert lost and curves(kept) == WHOLE


@pytest.mark.parametrize("name", ["flush", "assign", "look"])
def test_what_fails_again_and_again_ends_it_with_every_run_saved(play, kept, world, monkeypatch, name):
    owner = {"flush": Registry, "assign": Turns, "look": Ending}[name]
    with monkeypatch.context() as broken:
        once(broken, owner, name, skip=9, times=10**6)
        trouble = play().end()
    assert isinstance(trouble, UserError) and trouble.code == 130 and len(trouble.lines) == 1
    assert f"{name} broke" in str(trouble) and "`rftui open exp` goes on" in str(trouble)
    assert messages.Quit(save=True) in world.asked
    assert play(fit=None).end() == 0 and curves(kept) == WHOLE


def test_a_run_whose_files_cannot_be_read_is_stopped_and_the_others_train(play, kept, eyes, world, monkeypatch):
    world.save_chunks = True
    hold = world.hold(2, 3)
    first = play(viewer=True)
    hold.wait()
    seen = eyes()
    seen.ask("interrupt")
    hold.go.set()
    first.end()
    other = world.hold(1, 5)
    with monkeypatch.context() as broken:
        reposition = turns.reposition

        def failing(registry, run):
            if run.id == 2:
                raise ValueError("not JSON")
            reposition(registry, run)

        broken.setattr(turns, "reposition", failing)
        again = play(fit=None, viewer=True)
        other.wait()
        later = eyes()
        later.state(2, STOPPED)
        assert "cannot be read: ValueError: not JSON" in later.runs[2].error
        answer = later.ask("resume", 2)
        assert not answer.ok and "not JSON" in answer.text
        other.go.set()
        later.state(1, DONE)
        later.state(3, DONE)
    assert later.ask("resume", 2).ok
    later.state(2, DONE)
    later.finish()
    assert again.end() == 0 and curves(kept) == WHOLE


def test_an_op_that_breaks_is_refused_and_nothing_else_suffers(play, kept, eyes, world, monkeypatch):
    hold = world.hold(1, 2)
    scheduler = play(viewer=True)
    hold.wait()
    seen = eyes()
    with monkeypatch.context() as broken:
        once(broken, Store, "journal")
        answer = seen.ask("stop", 2)
    assert not answer.ok and "journal broke" in answer.text
    hold.go.set()
    for run in (1, 2, 3):
        seen.state(run, DONE)
    seen.finish()
    assert scheduler.end() == 0 and curves(kept) == WHOLE


def test_a_run_directory_that_is_gone_is_no_end(play, kept, world, experiment):
    world.save_chunks = True
    hold = world.hold(3, 3)
    scheduler = play()
    hold.wait()
    shutil.rmtree(experiment.run(1).path, ignore_errors=True)
    hold.go.set()
    assert scheduler.end() in (0, 1)
    assert {run.id for run in kept().runs() if run.state == DONE} >= {2, 3}
