"""The ops, given by a viewer while fake workers train."""

import json
import shutil
import sqlite3

import pytest

from rftui import messages
from rftui.checkpoints import checkpoint_marker
from rftui.runs import DELETED, DONE, FAILED, QUEUED, RUNNING, STOPPED, STOPPING
from rftui.scheduler import weight_snapshots

RATE = "training_args.learning_rate"


@pytest.fixture
def begun(play, eyes, world):
    """A scheduler whose only worker is about to take run 1's second step, that hold, and a viewer."""
    hold = world.hold(1, 2)
    play(viewer=True)
    hold.wait()
    seen = eyes()
    seen.until(lambda: seen.runs[1].step == 1)
    return seen, hold


def finished(seen):
    seen.until(lambda: seen.experiment.state == "idle")


def test_stop_acts_at_the_next_step_and_resume_goes_on_there(begun, world, kept):
    seen, hold = begun
    answer = seen.ask("stop", 1)
    assert (answer.ok, answer.text) == (True, "Run 1 stops at its next step")
    assert seen.state(1, STOPPING)
    world.came("cpu")
    hold.go.set()
    run = seen.state(1, STOPPED)
    assert (run.step, run.device) == (1, None) and run.checkpoint.endswith("step-1")
    finished(seen)
    assert {seen.runs[2].state, seen.runs[3].state} == {DONE}
    answer = seen.ask("resume", 1)
    assert answer.ok and "from step 1" in answer.text
    assert seen.state(1, DONE).step == 6
    assert world.turns(1)[-3].resume.endswith("step-1")
    assert sorted(step for run, step in world.trained if run == 1) == [1, 2, 3, 4, 5, 6]


def test_a_second_press_is_refused_and_changes_nothing(begun, world):
    seen, hold = begun
    assert seen.ask("stop", 1).ok
    again = seen.ask("stop", 1)
    assert not again.ok and again.text == "Can't stop run 1 r1: already stopping"
    world.came("cpu")
    hold.go.set()
    seen.state(1, STOPPED)
    finished(seen)
    assert world.asked.count(messages.Halt(1)) == 1


def test_a_queued_run_is_stopped_without_a_worker(begun, world):
    seen, hold = begun
    assert seen.ask("stop", 3).text == "Run 3 stopped"
    assert seen.state(3, STOPPED)
    hold.go.set()
    finished(seen)
    assert world.turns(3) == [] and seen.runs[3].state == STOPPED


def test_a_parked_run_is_halted_in_the_middle_of_anothers_turn(play, eyes, world):
    hold = world.hold(2, 1)
    play(viewer=True)
    hold.wait()
    seen = eyes()
    assert seen.ask("stop", 1).ok
    world.came("cpu")
    hold.go.set()
    assert seen.state(1, STOPPED).step == 2
    finished(seen)
    assert seen.runs[2].state == DONE


def test_a_resumed_run_enters_with_the_smallest_count_in_force(play, eyes, world):
    world.chunks = 5
    hold = world.hold(1, 7)
    play(viewer=True)
    seen_late = world.hold(3, 1)
    seen_late.wait()
    seen = eyes()
    assert seen.ask("stop", 3).ok
    world.came("cpu")
    seen_late.go.set()
    seen.state(3, STOPPED)
    hold.wait()  # run 1 begins its fourth turn
    assert seen.ask("resume", 3).ok
    assert seen.runs[3].turns == seen.runs[2].turns == 3
    hold.go.set()
    finished(seen)


def test_resume_falls_back_to_the_newest_whole_checkpoint(begun, world, experiment):
    seen, hold = begun
    assert seen.ask("stop", 1).ok
    world.came("cpu")
    hold.go.set()
    run = seen.state(1, STOPPED)
    finished(seen)
    shutil.rmtree(run.checkpoint)
    answer = seen.ask("resume", 1)
    assert answer.ok and "from step 0" in answer.text
    assert seen.state(1, DONE)
    assert seen.told("Run 1: rolled back to the checkpoint at step 0")


def test_a_cold_clone_starts_from_the_beginning_with_what_was_changed(begun, world, kept):
    seen, hold = begun
    answer = seen.ask("clone", 1, {RATE: 3e-4})
    assert answer.ok and answer.run == 4 and "cloned cold from run 1" in answer.text
    clone = seen.runs[4]
    assert (clone.config_index, clone.parent, clone.warm, clone.state, clone.turns) == (0, 1, False, QUEUED, 0)
    assert clone.changes == clone.knobs == {RATE: 3e-4} and clone.config["training_args"] == {"learning_rate": 3e-4}
    assert seen.runs[1].config["training_args"] == {"learning_rate": 1e-4}
    second = seen.ask("clone", 4, {RATE: 3e-5}, name="r1")
    assert seen.runs[second.run].name == "r1 2" and seen.runs[second.run].changes == {RATE: 3e-5}
    hold.go.set()
    finished(seen)
    assert seen.runs[4].state == DONE and world.turns(4)[0].resume is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({RATE: "fast"}, "must be a number"),
        ({"training_args.learning_rat": 1}, "not a known setting"),
        ({}, "no changes"),
    ],
)
def test_a_clone_that_cannot_be_made_is_refused_with_the_reason(begun, kept, changes, why):
    seen, _ = begun
    answer = seen.ask("clone", 1, changes)
    assert not answer.ok and why in answer.text and len(seen.runs) == 3


def test_a_warm_clone_waits_for_its_parents_weights(begun, world, experiment):
    seen, hold = begun
    answer = seen.ask("clone", 1, {RATE: 1e-5}, warm=True)
    assert answer.ok and "after its next step" in answer.text and seen.runs[4].state == QUEUED
    world.came("cpu")
    hold.go.set()
    finished(seen)
    clone = seen.runs[4]
    assert (clone.state, clone.start_step, clone.start_epoch, clone.start_row) == (DONE, 1, 0.5, 10)
    assert world.turns(4)[0].run.start_row == 10 and world.turns(4)[0].resume is None
    shutil.rmtree(experiment.run(1).path)
    assert checkpoint_marker(experiment.run(4).start)


def test_a_warm_clone_of_a_run_that_has_ended_starts_from_its_checkpoint(begun, world, experiment):
    seen, hold = begun
    assert seen.ask("stop", 1).ok
    world.came("cpu")
    hold.go.set()
    seen.state(1, STOPPED)
    finished(seen)
    answer = seen.ask("clone", 1, {RATE: 1e-5}, warm=True)
    assert answer.ok and "cloned warm from step 1 of run 1" in answer.text
    start = experiment.run(4).start
    assert (start / "weights").samefile(experiment.run(1).checkpoints / "step-1" / "weights")
    assert seen.state(4, DONE).start_row == 10


def test_a_warm_clone_of_a_queued_run_is_refused(begun):
    seen, _ = begun
    answer = seen.ask("clone", 3, {RATE: 1e-5}, warm=True)
    assert not answer.ok and "clone it cold" in answer.text


def test_a_clone_whose_weights_cannot_be_linked_fails_alone(begun, world, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    seen, hold = begun
    assert seen.ask("stop", 1).ok
    world.came("cpu")
    hold.go.set()
    seen.state(1, STOPPED)
    monkeypatch.setattr(weight_snapshots, "link_checkpoint", refuse)
    answer = seen.ask("clone", 1, {RATE: 1e-5}, warm=True)
    assert not answer.ok and "No space left on device" in answer.text
    assert seen.state(4, FAILED)
    finished(seen)


def test_a_clone_fails_where_its_parent_ends_without_weights(begun, world):
    seen, hold = begun
    world.failures[1, 2] = "out of memory"
    hold.go.set()
    seen.state(1, FAILED)
    finished(seen)
    assert not seen.ask("clone", 1, {RATE: 1e-5}, warm=True).ok


def test_a_pin_that_comes_too_late_fails_the_clone_and_not_the_scheduler(begun, world, monkeypatch):
    """The parent fails in the very step after which it was to be pinned."""
    seen, hold = begun
    world.failures[1, 2] = "out of memory"
    world.ignored = (messages.SnapshotWeights,)
    assert seen.ask("clone", 1, {RATE: 1e-5}, warm=True).ok
    world.came("cpu")
    hold.go.set()
    clone = seen.state(4, FAILED)
    assert "before there were weights" in clone.error
    finished(seen)


def test_a_clone_that_is_stopped_before_its_pin_can_be_resumed_after_it(begun, world):
    seen, hold = begun
    assert seen.ask("clone", 1, {RATE: 1e-5}, warm=True).ok
    assert seen.ask("stop", 4).ok
    world.came("cpu")
    hold.go.set()
    finished(seen)
    assert seen.runs[4].state == STOPPED
    assert seen.ask("resume", 4).ok
    assert seen.state(4, DONE).start_row == 10


def test_a_deleted_run_is_freed_at_its_next_step_and_its_files_go_at_the_end(begun, play, world, experiment):
    seen, hold = begun
    assert seen.ask("delete", 1).text == "Run 1 deleted; undo restores it until the scheduler ends"
    world.came("cpu")
    hold.go.set()
    finished(seen)
    assert seen.runs[1].state == DELETED and world.asked.count(messages.Halt(1)) == 1
    assert checkpoint_marker(experiment.run(1).checkpoints / "step-1") and (1, 2) not in world.trained
    for op in ("stop", "resume", "clone", "delete"):
        assert seen.ask(op, 1, {RATE: 1.0}).text.endswith("deleted; undo restores it")
    seen.finish()
    assert play.plays[0].end() == 0 and not experiment.run(1).path.exists()


def test_what_does_not_exist_is_refused(begun):
    seen, _ = begun
    assert seen.ask("stop", 9).text == "No run 9"
    assert seen.runs[1].state == RUNNING


def test_every_command_is_in_the_journal_with_its_answer_and_no_secret_is(begun, world, experiment):
    seen, hold = begun
    answer = seen.ask("clone", 1, {"model_kwargs.token": "hf_abcdefgh1"})
    assert seen.ask("finish").ok
    assert not seen.ask("resume", 1).ok
    assert "hf_abcdefgh1" not in answer.text + seen.runs[4].name + "".join(event.text for event in seen.events)
    assert seen.runs[4].config["model_kwargs"] == {"token": "hf_abcdefgh1"}, "training needs the real value"
    rows = list(sqlite3.connect(experiment.db).execute("SELECT command, ok, reply FROM journal"))
    assert [row[1] for row in rows] == [1, 1, 0] and json.loads(rows[0][2])["text"] == answer.text
    assert not any("hf_abcdefgh1" in row[0] for row in rows)
    hold.go.set()
