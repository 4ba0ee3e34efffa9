"""The loop against fake workers: turns, deaths, signals, the beginning and the end."""

import os
import signal
import threading

import pytest
from fake_worker import FakeHost

from rftui import messages
from rftui.errors import UserError
from rftui.runs import DONE, FAILED, QUEUED, RUNNING, WAITING
from rftui.scheduler import loop, turns


@pytest.mark.parametrize("devices", ["cpu", "cpu:2"])
def test_all_runs_are_trained_chunk_by_chunk(play, kept, world, devices):
    assert play(devices=devices).end() == 0
    store = kept()
    assert store.meta("state") == "done"
    for run in store.runs():
        assert (run.state, run.step, run.chunk, run.chunks, run.total_steps) == (DONE, 6, 3, 3, 6)
        assert run.final and run.checkpoint and run.device is None
        assert store.curves(run.id)[run.id]["loss"] == [(step, 1 / step) for step in range(1, 7)]
    turns = store.turns()
    assert sorted(turn["run"] for turn in turns[:3]) == [1, 2, 3]
    assert all(turn["ended"] for turn in turns) and len(turns) == 9
    assert sorted(world.trained) == sorted((run, step) for run in (1, 2, 3) for step in range(1, 7))


def test_a_viewer_sees_every_point_once_and_the_end(play, eyes, world):
    hold = world.hold(1, 1)
    play(viewer=True)
    hold.wait()
    seen = eyes()
    assert seen.experiment.state == "running" and seen.schema["SFT"]
    hold.go.set()
    seen.until(lambda: seen.experiment.state == "idle")
    assert {run.state for run in seen.runs.values()} == {DONE}
    assert sorted(point[:3] for point in seen.points) == [(r, "loss", s) for r in (1, 2, 3) for s in range(1, 7)]
    sequence = [update.sequence for update in seen.updates]
    assert sequence == list(range(seen.snapshot.sequence + 1, sequence[-1] + 1))


def test_steps_that_come_close_together_travel_together(play, eyes, world):
    world.chunks, world.per = 1, 300
    hold = world.hold(1, 1)
    play(viewer=True)
    hold.wait()
    seen = eyes()
    hold.go.set()
    seen.until(lambda: seen.experiment.state == "idle")
    assert len(seen.points) == 900
    assert len([update for update in seen.updates if update.points]) < 90


@pytest.fixture
def idle(play, eyes, world):
    """A scheduler under a viewer that has trained everything, and that viewer."""
    hold = world.hold(1, 1)
    scheduler = play(viewer=True)
    hold.wait()
    seen = eyes()
    hold.go.set()
    seen.until(lambda: seen.experiment.state == "idle")
    return scheduler, seen


def test_an_idle_scheduler_ends_on_finish(idle):
    scheduler, seen = idle
    seen.finish()
    assert scheduler.end() == 0


def test_an_idle_scheduler_ends_when_its_viewers_have_left(idle):
    scheduler, seen = idle
    seen.viewer.close()
    assert scheduler.end() == 0


def test_faults_found_by_the_check_end_it_before_anything_trains(play, kept, world, capsys, monkeypatch):
    tracked = []
    monkeypatch.setattr(loop, "start_tracking", tracked.append)
    world.check_faults = [(2, "target_modules are not in the model"), (None, "no rows")]
    world.check_notices = [(1, "warmup_ratio became warmup_steps")]
    fault = play().end()
    assert isinstance(fault, UserError) and fault.code == 2
    assert fault.lines == ("run 2 r2: target_modules are not in the model", "no rows")
    assert world.trained == [] and {run.state for run in kept().runs()} == {QUEUED}
    told = [(event.text, event.level) for event in kept().events()]
    assert ("target_modules are not in the model", "error") in told
    assert ("warmup_ratio became warmup_steps", "notice") in told
    assert capsys.readouterr().out == "", "they are raised, to be told on stderr"
    assert not tracked, "MLflow hears of nothing"


def test_a_failed_run_that_is_resumed_tries_again_from_its_checkpoint(play, kept, eyes, world):
    world.save_chunks, world.failures[2, 4] = True, "the disk does not answer"
    hold = world.hold(2, 4)
    scheduler = play(viewer=True)
    hold.wait()
    seen = eyes()
    hold.go.set()
    assert seen.state(2, FAILED).error == "the disk does not answer"
    world.failures.clear()
    assert seen.ask("resume", 2).ok
    assert seen.state(2, DONE).error is None
    seen.finish()
    assert scheduler.end() == 0
    assert [step for run, step in world.trained if run == 2] == [1, 2, 3, 3, 4, 5, 6]
    assert kept().curves(2)[2]["loss"] == [(step, 1 / step) for step in range(1, 7)]


def test_a_failed_run_costs_the_others_nothing(play, kept, world):
    world.failures[2, 3] = "the loss is not finite"
    assert play().end() == 1
    states = [(run.state, run.error) for run in kept().runs()]
    assert states == [(DONE, None), (FAILED, "the loss is not finite"), (DONE, None)]


def test_runs_of_a_dead_worker_go_back_to_their_checkpoints(play, kept, eyes, world):
    world.save_chunks = True
    world.deaths[1, 4] = 1
    hold = world.hold(1, 1)
    scheduler = play(viewer=True)
    hold.wait()
    seen = eyes()
    hold.go.set()
    seen.until(lambda: seen.experiment.state == "idle")
    seen.finish()
    assert scheduler.end() == 0
    assert {run.state for run in kept().runs()} == {DONE}
    assert {1: 2} in [{1: rewound[1]} for rewound in seen.rewound if 1 in rewound]
    assert seen.told("Run 1: rolled back to the checkpoint at step 2") and seen.told("worker cpu died")
    assert world.started == [("cpu", 1), ("cpu", 2)]
    resumed = world.turns(1)[2]
    assert (resumed.run.step, resumed.resume.rpartition("/")[2]) == (2, "step-2")
    assert [step for step, _ in kept().curves(1)[1]["loss"]] == [1, 2, 3, 4, 5, 6]
    assert world.trained.count((1, 3)) == 2


def test_a_run_whose_worker_dies_twice_without_a_checkpoint_between_has_failed(play, kept, world):
    world.deaths[1, 1] = 2
    assert play().end() == 1
    assert [run.state for run in kept().runs()] == [FAILED, DONE, DONE]
    assert "twice" in kept().run(1).error


def test_two_deaths_with_a_checkpoint_between_are_forgiven(play, kept, world):
    world.save_chunks = True
    world.deaths[1, 1] = world.deaths[1, 3] = 1
    assert play().end() == 0
    assert {run.state for run in kept().runs()} == {DONE}


@pytest.mark.parametrize("kind", ["early_deaths", "check_deaths"])
def test_a_worker_that_cannot_start_is_tried_twice(play, kept, world, kind):
    setattr(world, kind, 2)
    outcome = play().end()
    assert isinstance(outcome, UserError) and outcome.code == 1 and len(outcome.lines) == 1
    assert "cpu could not start: exit code 1: RuntimeError: boom" in str(outcome)
    assert kept().meta("state") == "interrupted" and world.trained == []
    setattr(world, kind, 1)
    assert play().end() == 0


def test_a_second_scheduler_is_refused(play, experiment, world):
    hold = world.hold(1, 1)
    play()
    hold.wait()
    with pytest.raises(UserError, match="already running") as fault:
        loop.run(experiment, 1)
    assert fault.value.code == 1


def test_halt_leaves_everything_resumable_and_reopening_trains_on(play, kept, eyes, world):
    hold = world.hold(2, 2)
    scheduler = play(viewer=True)
    hold.wait()
    seen = eyes()
    assert seen.ask("interrupt").ok
    world.came("cpu")
    hold.go.set()
    assert scheduler.end() == 130
    states = {run.id: (run.state, run.step) for run in kept().runs()}
    assert states == {1: (WAITING, 2), 2: (WAITING, 1), 3: (QUEUED, 0)}
    assert kept().meta("state") == "interrupted"
    assert play(fit=None).end() == 0
    assert {run.state for run in kept().runs()} == {DONE}
    assert sorted(world.trained) == sorted((run, step) for run in (1, 2, 3) for step in range(1, 7))


def on_main_thread(experiment, world, hold, numbers):
    """`loop.run` here, while a thread sends this process the signals once `hold` is reached."""

    def send():
        hold.wait()
        for number in numbers:
            os.kill(os.getpid(), number)
        if len(numbers) == 1:
            world.came("cpu")
            hold.go.set()

    sender = threading.Thread(target=send)
    sender.start()
    try:
        return loop.run(experiment, 1, devices="cpu", host=FakeHost(world))
    finally:
        sender.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_ends_it_resumably_at_the_next_step(experiment, kept, world, number):
    before = signal.getsignal(number)
    assert on_main_thread(experiment, world, world.hold(1, 2), [number]) == 130
    assert signal.getsignal(number) == before
    assert messages.Quit(save=True) in world.asked and world.trained == [(1, 1)]
    run = kept().run(1)
    assert (run.state, run.step) == (WAITING, 1) and run.checkpoint.endswith("step-1")


def test_the_second_signal_ends_it_at_once(experiment, kept, world):
    assert on_main_thread(experiment, world, world.hold(1, 2), [signal.SIGINT, signal.SIGTERM]) == 130
    assert kept().run(1).state == WAITING and kept().run(1).checkpoint is None


def test_under_nohup_it_goes_on_when_the_terminal_hangs_up(experiment, kept, world):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    hold = world.hold(1, 2)

    def send():
        hold.wait()
        os.kill(os.getpid(), signal.SIGHUP)
        hold.go.set()

    sender = threading.Thread(target=send)
    try:
        sender.start()
        assert loop.run(experiment, 1, devices="cpu", host=FakeHost(world)) == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        sender.join()
        signal.signal(signal.SIGHUP, before)


def test_off_the_main_thread_no_handler_is_set(play, world):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    hold = world.hold(1, 1)
    scheduler = play()
    hold.wait()
    assert [signal.getsignal(number) for number in numbers] == before
    hold.go.set()
    assert scheduler.end() == 0


def test_a_run_that_waits_behind_another_moves_to_an_idle_worker(play, kept, eyes, world, monkeypatch):
    monkeypatch.setattr(turns, "_LONG", 0.0)
    first, slow, other, next_step, moved = (world.hold(*at) for at in ((1, 1), (2, 1), (1, 3), (1, 4), (3, 3)))
    scheduler = play(devices="cpu:2", viewer=True)
    slow.wait()
    first.wait()
    seen = eyes()
    here, there = seen.runs[1].device, seen.runs[2].device
    first.go.set()
    other.wait()  # by now runs 1 and 3 are here, and the worker there is still in its first turn
    slow.go.set()
    world.came(here)
    other.go.set()
    moved.wait()
    assert seen.state(3, RUNNING).device == there
    next_step.go.set()
    moved.go.set()
    seen.until(lambda: seen.experiment.state == "idle")
    assert messages.Halt(3, save=True) in world.asked
    assert world.turns(3)[1].resume.endswith("step-2")
    assert [turn["device"] for turn in kept().turns() if turn["run"] == 3][:2] == [here, there]
    assert sorted(world.trained) == sorted((run, step) for run in (1, 2, 3) for step in range(1, 7))
    seen.finish()
    assert scheduler.end() == 0


def test_the_time_left_counts_the_longest_run_and_the_workers(play, eyes, world):
    hold = world.hold(3, 1)
    play(viewer=True, devices="cpu")
    hold.wait()
    seen = eyes()
    seen.until(lambda: seen.experiment.eta is not None)
    # 0.1 s for two steps: 4 + 4 steps are left of runs 1 and 2, and all 6 of run 3, whose pace is that of the others
    assert seen.experiment.eta == pytest.approx(14 * 0.05, rel=0.01)
