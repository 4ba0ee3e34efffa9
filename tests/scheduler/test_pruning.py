"""Rules that stop runs while fake workers train; how they are switched, and how their runs come back."""

import json

import pytest
from simulated import journal, set_rules

from rftui import messages
from rftui.automl import RFEarlyStopping, RFMedianStopping, RFSuccessiveHalving, rules
from rftui.messages import Interrupt
from rftui.runs import DONE, STOPPED, WAITING

WHY = "loss 3 after chunk 1 of 3 is 3rd of 3; 2 go on"


@pytest.fixture
def halved(experiment, world):
    """Three runs with the losses 1, 2 and 3, and successive halving switched on."""
    set_rules(experiment, RFSuccessiveHalving())
    world.losses = {1: 1.0, 2: 2.0, 3: 3.0}
    return world


def finished(seen):
    seen.until(lambda: seen.experiment.state == "idle")


def rule(seen, name):
    return next(rule for rule in seen.experiment.rules if rule.name == name)


def test_a_run_is_stopped_like_by_its_key_with_the_reason_in_journal_and_log(halved, play, eyes, kept):
    first = halved.hold(1, 1)
    play(viewer=True)
    first.wait()
    seen = eyes()
    first.go.set()
    run = seen.state(3, STOPPED)
    assert (run.step, run.stopped_by, run.exempt) == (2, f"rule halving: {WHY}", False)
    assert run.checkpoint.endswith("step-2") and messages.Halt(3) in halved.asked
    assert seen.told(f"Run 3 stops at its next step (by rule halving: {WHY})")
    finished(seen)
    assert [seen.runs[n].state for n in (1, 2, 3)] == [DONE, STOPPED, STOPPED]
    assert seen.runs[2].stopped_by == "rule halving: loss 2 after chunk 2 of 3 is 2nd of 2; 1 goes on"
    entries = journal(kept())
    assert [(command["op"], command["run"], command["by"], ok) for command, ok, _ in entries] == [
        ("stop", 3, "rule halving", 1),
        ("stop", 2, "rule halving", 1),
    ]
    assert entries[0][0]["reason"] == WHY and json.loads(entries[0][2])["text"] == "Run 3 stops at its next step"
    assert sorted(step for run, step in halved.trained if run == 3) == [1, 2]


def test_a_run_that_is_brought_back_is_left_alone_from_then_on(halved, play, eyes):
    halved.chunks = 5
    hold = halved.hold(1, 3)
    play(viewer=True)
    hold.wait()
    seen = eyes()
    seen.state(3, STOPPED)
    answer = seen.ask("resume", 3)
    assert answer.ok and answer.text.endswith("; rules leave it alone from now on")
    assert seen.told("Run 3 resumes from step 2 with the next free turn; rules leave it alone from now on (by key)")
    hold.go.set()
    finished(seen)
    run = seen.runs[3]
    assert (run.state, run.exempt, run.stopped_by) == (DONE, True, None)
    assert seen.runs[2].state == STOPPED, "the others are judged as before"


def test_one_that_its_user_stopped_and_resumed_is_not_exempt(halved, play, eyes):
    hold = halved.hold(1, 1)
    play(viewer=True)
    hold.wait()
    seen = eyes()
    assert seen.ask("stop", 3).ok and seen.ask("resume", 3).ok
    hold.go.set()
    assert seen.state(3, STOPPED).stopped_by and not seen.runs[3].exempt


def test_a_rung_is_decided_once_the_run_that_it_waited_for_is_stopped(halved, play, eyes):
    halved.chunks = 2
    hold = halved.hold(2, 1)
    play(viewer=True)
    hold.wait()
    seen = eyes()
    assert seen.ask("stop", 3).ok and seen.runs[1].state == WAITING
    assert seen.ask("stop", 2).ok
    halved.came("cpu")
    hold.go.set()
    finished(seen)
    assert [seen.runs[n].state for n in (1, 2, 3)] == [DONE, STOPPED, STOPPED]
    assert seen.runs[2].stopped_by is None and not seen.told("by rule")


def test_a_rule_is_switched_on_and_off_while_it_trains(halved, play, eyes, experiment, kept):
    set_rules(experiment)
    halved.chunks = 8
    hold = halved.hold(1, 3)
    play(viewer=True)
    hold.wait()
    seen = eyes()
    assert [each.on for each in seen.experiment.rules] == [False, False, False]
    answer = seen.ask("rule", changes={"on": True}, name="halving")
    assert (answer.ok, answer.text) == (
        True, "Rule halving is on: it judges after chunk 2, then 4 (reduction_factor 2, min_chunks 1)",
    )  # fmt: skip
    seen.until(lambda: rule(seen, "halving").on)
    assert seen.told(f"{answer.text} (by key)")
    answer = seen.ask("rule", changes={"on": False}, name="halving", by="cli")
    assert answer.text == "Rule halving is off" and seen.told("Rule halving is off (from the shell)")
    changes = {"on": True, "reduction_factor": 3, "min_chunks": 2}
    answer = seen.ask("rule", changes=changes, name="halving", by="python")
    assert "it judges after chunk 2, then 6" in answer.text
    seen.until(lambda: rule(seen, "halving").parameters["reduction_factor"] == 3)
    assert rule(seen, "halving").about.startswith("after chunk 2, 6, 18")
    refused = seen.ask("rule", changes={"on": True, "reduction_factor": 0}, name="halving")
    assert not refused.ok and "2 or more, not 0" in refused.text
    assert not seen.ask("rule", changes={"on": True}, name="halfing").ok
    assert rules.read(kept().meta("rules"))["halving"].rule == RFSuccessiveHalving(3, 2)
    hold.go.set()
    finished(seen)
    assert [seen.runs[n].state for n in (1, 2, 3)] == [DONE, STOPPED, STOPPED]
    assert [seen.runs[n].chunk for n in (2, 3)] == [6, 2], "chunk 1 is not judged any more"


def test_a_rule_that_comes_too_late_says_so(halved, play, eyes, experiment):
    set_rules(experiment)
    hold = halved.hold(3, 6)
    play(viewer=True)
    hold.wait()
    seen = eyes()
    answer = seen.ask("rule", changes={"on": True}, name="halving")
    assert "it has nothing left to judge: its next would be after chunk 4 of 3" in answer.text
    answer = seen.ask("rule", changes={"on": True}, name="early")
    assert answer.text == "Rule early is on: it judges each run from its next chunk end on (patience 3, min_delta 0)"
    hold.go.set()
    finished(seen)
    answer = seen.ask("rule", changes={"on": True}, name="median")
    assert answer.text.startswith("Rule median is on: no run is active now")
    assert [run.state for run in seen.runs.values()] == [DONE] * 3


@pytest.mark.parametrize("given", [RFEarlyStopping(2), RFMedianStopping(min_chunks=2, min_runs=2)])
def test_the_other_rules_press_too(halved, play, eyes, experiment, given):
    set_rules(experiment, given)
    halved.chunks = 6
    hold = halved.hold(1, 1)
    play(viewer=True)
    hold.wait()
    seen = eyes()
    hold.go.set()
    finished(seen)
    assert seen.runs[3].state == STOPPED and seen.runs[3].stopped_by.startswith(f"rule {given.name}: ")
    assert seen.runs[3].chunk == (3 if given.name == "early" else 2)


def test_what_the_rules_were_set_to_goes_on_when_it_is_opened_again(halved, play, eyes, kept):
    hold = halved.hold(3, 2)
    first = play()
    hold.wait()
    eyes().viewer.send(Interrupt())
    halved.came("cpu")
    hold.go.set()
    assert first.end() == 130 and kept().decisions("halving") == {}
    assert play(fit=None).end() == 0
    states = {run.id: (run.state, run.stopped_by) for run in kept().runs()}
    assert states[1] == (DONE, None) and states[3] == (STOPPED, f"rule halving: {WHY}")
