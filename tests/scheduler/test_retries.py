"""Runs that cannot go on for a while: out of memory, a lost data process, a full disk."""

from rftui import messages
from rftui.runs import DONE, FAILED, RUNNING, STOPPED, STOPPING, WAITING


def test_out_of_memory_frees_the_other_runs_and_the_run_goes_on_first(play, kept, world):
    world.save_chunks = True
    world.set_backs[2, 3] = ["memory"]
    assert play().end() == 0
    store = kept()
    assert {run.state for run in store.runs()} == {DONE}
    asked = [
        type(task).__name__ + str(getattr(task.run, "id", task.run)) for task in world.asked if hasattr(task, "run")
    ]
    after = asked[asked.index("Turn2", asked.index("Turn2") + 1) + 1 :]
    assert sorted(after[:2]) == ["Halt1", "Halt3"] and after[2] == "Turn2"
    assert world.turns(2)[2].resume.endswith("step-2")
    assert any("Run 2 ran out of memory" in event.text for event in store.events())
    assert sorted(world.trained) == sorted((run, step) for run in (1, 2, 3) for step in range(1, 7))


def test_out_of_memory_twice_with_no_checkpoint_between_fails_that_run_alone(play, kept, world):
    world.set_backs[2, 3] = ["memory", "memory"]
    assert play().end() == 1
    first, second, third = kept().runs()
    assert (first.state, second.state, third.state) == (DONE, FAILED, DONE)
    assert second.error == "it broke; clone it with half the batch and twice the accumulation"
    assert [run.failure for run in (first, second, third)] == ["", "memory", ""]


def test_a_run_that_diverged_is_not_tried_again_and_is_known_to_have(play, kept, world):
    world.save_chunks = True
    world.set_backs[2, 3] = ["diverged"]
    assert play().end() == 1
    second = kept().run(2)
    assert (second.state, second.failure, second.error) == (FAILED, "diverged", "it broke")


def test_a_run_whose_scripts_directory_is_missing_is_stopped_and_can_be_resumed(play, eyes, world):
    world.save_chunks = True
    hold = world.hold(1, 1)
    world.set_backs[2, 3] = ["directory"]
    scheduler = play(viewer=True)
    hold.wait()
    seen = eyes()
    hold.go.set()
    assert seen.state(2, STOPPED).error == "it broke" and seen.told("Run 2 stopped: it broke")
    seen.state(1, DONE)
    assert seen.ask("resume", 2).ok and seen.state(2, DONE).error is None
    seen.finish()
    assert scheduler.end() == 0


def test_a_run_whose_data_process_died_goes_on_and_the_others_stay_where_they_are(play, kept, world):
    world.set_backs[2, 3], world.set_backs[2, 5] = ["child"], ["child"]
    world.save_chunks = True
    assert play().end() == 0
    assert {run.state for run in kept().runs()} == {DONE}
    assert not [task for task in world.asked if isinstance(task, messages.Halt)]


def test_a_broken_device_costs_no_run(play, kept, world):
    """Its worker ends; the run that met it goes on from its last checkpoint, as do the others."""
    world.save_chunks = True
    world.set_backs[2, 3], world.set_backs[3, 5] = ["device"], ["device"]
    assert play().end() == 0
    store = kept()
    assert {run.state for run in store.runs()} == {DONE}
    assert any("Run 2 lost its device: the worker there is started again" in event.text for event in store.events())
    world.set_backs.clear()


def test_a_run_that_cannot_be_saved_waits_for_room_while_the_others_go_on(play, eyes, world):
    world.full.add(2)
    hold = world.hold(1, 1)
    play(viewer=True)
    hold.wait()
    seen = eyes()
    hold.go.set()
    seen.state(1, DONE)
    seen.state(3, DONE)
    paused = seen.runs[2]
    assert (paused.state, paused.step, paused.error) == (WAITING, 2, "paused: no space is left")
    assert seen.told("Run 2 paused: no space is left")
    assert seen.ask("stop", 2).ok
    assert seen.state(2, STOPPING, STOPPED)
    world.full.clear()
    seen.state(2, STOPPED)
    assert seen.ask("resume", 2).ok and seen.runs[2].error is None
    seen.state(2, DONE)
    assert seen.experiment.state in (RUNNING, "idle")
    seen.finish()
