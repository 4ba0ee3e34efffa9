"""Clones in full, and deletions undone, given by a viewer while fake workers train."""

import pytest

from rftui import messages
from rftui.checkpoints import checkpoint_marker
from rftui.runs import DELETED, DONE, FAILED, QUEUED, RUNNING, STOPPED, STOPPING, WAITING
from rftui.scheduler import cloning, ending

RATE = "training_args.learning_rate"


@pytest.fixture
def begun(play, eyes, world):
    """A scheduler whose only worker is about to take run 1's fourth step, that hold, and a viewer."""
    world.save_chunks = True
    hold = world.hold(1, 4)
    play(viewer=True)
    hold.wait()
    seen = eyes()
    seen.until(lambda: seen.runs[1].step == 3)
    return seen, hold


def finished(seen):
    seen.until(lambda: seen.experiment.state == "idle")


def stopped(seen, hold, world):
    assert seen.ask("stop", 1).ok
    world.came("cpu")
    hold.go.set()
    seen.state(1, STOPPED)


def test_a_sweep_makes_a_clone_for_each_combination_of_its_values(begun, world):
    seen, hold = begun
    world.schema["SFT"].append(messages.Field("training_args.seed", "int"))
    sweep = {RATE: [3e-4, 3e-5]}
    answer = seen.ask("clone", 1, {}, sweep=sweep)
    assert answer.ok and (answer.run, answer.runs) == (4, [4, 5]) and "Runs 4 lr3e-4, 5 lr3e-5" in answer.text
    assert [seen.runs[number].changes for number in answer.runs] == [{RATE: 3e-4}, {RATE: 3e-5}]
    assert all(seen.runs[number].parent == 1 for number in answer.runs)
    hold.go.set()
    finished(seen)
    assert {seen.runs[number].state for number in answer.runs} == {DONE}


def test_a_warm_sweep_starts_all_its_clones_from_one_step(begun, world, experiment):
    seen, hold = begun
    answer = seen.ask("clone", 1, {}, sweep={RATE: [3e-4, 3e-5, 3e-6]}, warm=True)
    assert answer.ok and "after its next step" in answer.text
    world.came("cpu")
    hold.go.set()
    finished(seen)
    assert [task for task in world.asked if isinstance(task, messages.SnapshotWeights)] == [
        messages.SnapshotWeights(1, answer.runs)
    ]
    assert {seen.runs[number].start_step for number in answer.runs} == {3}


def test_a_sweep_with_one_bad_value_makes_no_clone_at_all(begun):
    seen, _ = begun
    answer = seen.ask("clone", 1, {}, sweep={RATE: [3e-4, -1.0]})
    assert not answer.ok and "greater than 0" in answer.text and "-1" in answer.text and len(seen.runs) == 3
    many = seen.ask("clone", 1, {}, sweep={RATE: [number * 1e-6 for number in range(1, 100)]})
    assert not many.ok and "99" in many.text and len(seen.runs) == 3


def test_a_clone_from_an_earlier_checkpoint_while_its_parent_trains(begun, world, experiment):
    seen, hold = begun
    assert seen.runs[1].checkpoints == [2]
    answer = seen.ask("clone", 1, {RATE: 1e-5}, warm=True, from_step=2)
    assert answer.ok and "cloned warm from step 2 of run 1" in answer.text
    assert (seen.runs[4].start_step, seen.runs[4].start_row) == (2, 20)
    assert not [task for task in world.asked if isinstance(task, messages.SnapshotWeights)]
    missing = seen.ask("clone", 1, {RATE: 1e-5}, warm=True, from_step=1)
    assert not missing.ok and "no checkpoint at step 1" in missing.text and "2" in missing.text
    cold = seen.ask("clone", 1, {RATE: 1e-5}, from_step=2)
    assert not cold.ok and "warm" in cold.text and len(seen.runs) == 4
    hold.go.set()
    finished(seen)


def test_the_parent_stops_with_the_command_that_clones_it_and_not_where_that_is_refused(begun, world):
    seen, hold = begun
    refused = seen.ask("clone", 1, {RATE: -1.0}, warm=True, stop_parent=True)
    assert not refused.ok and seen.runs[1].state == RUNNING
    answer = seen.ask("clone", 1, {RATE: 1e-5}, warm=True, stop_parent=True)
    assert answer.ok and answer.text.endswith("after its next step; run 1 stops at its next step")
    world.came("cpu")
    hold.go.set()
    assert seen.state(1, STOPPED).step == 3
    finished(seen)
    assert (seen.runs[4].state, seen.runs[4].start_step) == (DONE, 3)
    assert seen.ask("clone", 1, {RATE: 1e-6}, warm=True, stop_parent=True).ok, "it is stopped already"


def test_a_continued_schedule_is_kept_with_the_clone_and_refused_where_it_cannot_be(begun):
    seen, hold = begun
    answer = seen.ask("clone", 1, {RATE: 1e-5}, warm=True, continue_schedule=True)
    assert answer.ok and seen.runs[4].continue_schedule
    cold = seen.ask("clone", 1, {RATE: 1e-5}, continue_schedule=True)
    assert not cold.ok and "warm" in cold.text
    hold.go.set()
    finished(seen)


def test_a_run_that_waits_for_its_turn_after_a_resume_can_be_cloned_warm(begun, world):
    seen, hold = begun
    held = world.hold(2, 5)
    stopped(seen, hold, world)
    held.wait()
    assert seen.ask("resume", 1).ok and seen.runs[1].state == QUEUED
    answer = seen.ask("clone", 1, {RATE: 1e-5}, warm=True)
    assert answer.ok and "cloned warm from step 3 of run 1" in answer.text
    held.go.set()
    finished(seen)


def test_a_name_that_cannot_be_written_is_made_one_that_can(begun):
    seen, hold = begun
    answer = seen.ask("clone", 1, {RATE: 1e-5}, name="caf\udce9 ")
    assert answer.ok and seen.runs[4].name == "caf?"
    hold.go.set()
    finished(seen)


def test_a_fault_of_an_op_ends_nothing(begun, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("by 0")

    seen, hold = begun
    huge = seen.ask("clone", 1, {RATE: 10**400})
    assert not huge.ok and "must be a number" in huge.text
    monkeypatch.setattr(cloning, "run_name", broken)
    answer = seen.ask("clone", 1, {RATE: 1e-5})
    assert not answer.ok and "a fault of rftui: ZeroDivisionError: by 0" in answer.text and seen.told("by 0")
    hold.go.set()
    finished(seen)
    assert [run.state for run in seen.runs.values()] == [DONE] * 3


def test_a_clone_of_a_clone_of_a_deleted_run(begun, world, experiment):
    """All asked before the first of the weights have come."""
    seen, hold = begun
    first = seen.ask("clone", 1, {RATE: 1e-5}, warm=True).run
    assert seen.ask("delete", 1).ok
    second = seen.ask("clone", first, {RATE: 1e-6}).run
    refused = seen.ask("clone", first, {RATE: 1e-6}, warm=True)
    assert not refused.ok and "not trained a step yet" in refused.text
    world.came("cpu")
    hold.go.set()
    finished(seen)
    assert (seen.runs[first].state, seen.runs[first].start_step) == (DONE, 3)
    assert seen.runs[second].state == DONE and seen.runs[second].parent == first
    third = seen.ask("clone", first, {"training_args.seed": 3}, warm=True)
    assert not third.ok and "not a known setting" in third.text


def test_a_run_that_was_fitted_to_its_model_shows_it(begun, world):
    seen, hold = begun
    world.adapted[4] = {"peft_config.target_modules": ["c_attn"]}
    answer = seen.ask("clone", 1, {RATE: 1e-5})
    hold.go.set()
    finished(seen)
    run = seen.runs[answer.run]
    assert run.changes["peft_config.target_modules"] == ["c_attn"] == run.config["peft_config"]["target_modules"]


# ------------------------------------------------------------ deletions undone


@pytest.mark.parametrize("freed", [False, True])
def test_a_run_that_trained_goes_on_from_its_step_when_its_deletion_is_undone(begun, world, experiment, freed):
    """Before its worker has freed it, and after."""
    seen, hold = begun
    assert seen.ask("delete", 1).ok and seen.runs[1].before == "running"
    if freed:
        world.came("cpu")
        hold.go.set()
        finished(seen)
        assert seen.runs[1].state == DELETED and seen.runs[1].checkpoints == [2, 3]
    answer = seen.ask("undo", 1)
    assert answer.ok and "Run 1 restored (resumes from step 3 with the next free turn)" in answer.text
    hold.go.set()
    assert not seen.state(1, DONE).before
    finished(seen)
    assert [step for run, step in world.trained if run == 1] == [1, 2, 3, 4, 5, 6], "nothing was trained twice"


def test_undo_brings_a_run_back_as_it_was(begun, world):
    seen, hold = begun
    stopped(seen, hold, world)
    finished(seen)
    for run, state in ((1, STOPPED), (2, DONE)):
        assert seen.runs[run].state == state
        assert seen.ask("delete", run).ok and seen.state(run, DELETED)
        assert seen.ask("undo", run).ok and seen.state(run, state)
    assert seen.runs[1].step == 3
    assert seen.ask("resume", 1).ok and seen.state(1, DONE)


def test_a_run_that_was_to_stop_is_stopped_when_its_deletion_is_undone(begun, world):
    seen, hold = begun
    assert seen.ask("stop", 1).ok and seen.ask("delete", 1).ok and seen.ask("undo", 1).ok
    assert seen.runs[1].state == STOPPING
    hold.go.set()
    assert seen.state(1, STOPPED).step == 3
    finished(seen)


def test_a_run_that_failed_while_it_was_deleted_is_failed_when_that_is_undone(begun, world):
    seen, hold = begun
    world.failures[1, 4] = "it broke"
    world.ignored = (messages.Halt,)
    assert seen.ask("delete", 1).ok
    hold.go.set()
    seen.until(lambda: seen.runs[1].before == FAILED)
    answer = seen.ask("undo", 1)
    assert answer.ok and seen.runs[1].state == FAILED and seen.runs[1].error == "it broke"


def test_a_warm_clone_that_was_deleted_before_its_weights_came_gets_them_when_it_is_back(begun, world):
    seen, hold = begun
    number = seen.ask("clone", 1, {RATE: 1e-5}, warm=True).run
    assert seen.ask("delete", number).ok and seen.ask("undo", number).ok
    assert seen.runs[number].state in (QUEUED, WAITING)
    world.came("cpu")
    hold.go.set()
    finished(seen)
    assert seen.runs[number].state == DONE and seen.runs[number].start_step in (2, 3)


def test_nothing_is_brought_back_once_the_files_are_gone(begun, play, world, experiment, eyes, monkeypatch):
    seen, hold = begun
    monkeypatch.setattr(ending, "_LINGER", 20.0)
    assert seen.ask("delete", 3).ok
    hold.go.set()
    finished(seen)
    seen.finish()
    assert play.plays[0].end() == 0 and not experiment.run(3).path.exists()
    world.begun.clear()
    play(viewer=True, fit=None)
    assert world.begun.wait(20), "no worker was started"
    again = eyes()
    answer = again.ask("undo", 3)
    assert not answer.ok and answer.text.endswith("its files are gone: the scheduler that deleted it has ended")
    assert checkpoint_marker(experiment.run(1).final)
    again.finish()
