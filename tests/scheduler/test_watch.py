"""What is told while it is waited for: workers that hang, and steps that are to end."""

import os
import signal
import threading

import pytest
from fake_worker import FakeHost

from rftui.runs import DONE
from rftui.scheduler import loop, watch


@pytest.fixture
def impatient(monkeypatch):
    for name in ("_SILENT", "_REMIND"):
        monkeypatch.setattr(watch, name, 0.15)


def test_a_worker_that_hangs_is_told_with_its_run_and_told_when_it_responds(play, eyes, world, impatient):
    hold = world.hold(1, 2)
    scheduler = play(viewer=True)
    hold.wait()
    seen = eyes()
    seen.until(lambda: seen.devices["cpu"].silent)
    seen.until(lambda: seen.told("Worker cpu has not responded for 0s in a turn of run 1: it may hang"))
    assert seen.told(f"kill -KILL {seen.devices['cpu'].pid}: its runs continue from their checkpoints")
    assert seen.devices["cpu"].state == "ready"
    hold.go.set()
    seen.until(lambda: seen.told("Worker cpu responds again"))
    for run in (1, 2, 3):
        seen.state(run, DONE)
    seen.finish()
    assert scheduler.end() == 0


def test_an_interrupt_says_at_once_what_ends_it_and_then_which_step_it_waits_for(play, eyes, world, impatient):
    hold = world.hold(2, 1)
    scheduler = play(viewer=True)
    hold.wait()
    seen = eyes()
    assert seen.ask("interrupt").ok
    pid = seen.experiment.pid
    ends = f"kill -INT {pid} ends at once, losing the steps since the last checkpoints"
    seen.until(lambda: seen.told(f"Pausing all runs at their next step (reopening resumes them); {ends}"))
    seen.until(lambda: seen.told("Still waiting for the step of run 2 on cpu (0s); kill -INT"))
    count = sum("Still waiting" in event.text for event in seen.events)
    seen.until(lambda: sum("Still waiting" in event.text for event in seen.events) > count)
    assert world.workers["cpu"].is_alive(), "it is only told"
    hold.go.set()
    assert scheduler.end() == 130


def test_without_a_screen_the_first_ctrl_c_is_answered_on_the_terminal_while_the_step_goes_on(
    experiment, world, capsys
):
    hold, said = world.hold(1, 2), []

    def send():
        hold.wait()
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            said.append(capsys.readouterr().out)
            if "Ctrl-C again" in "".join(said):
                break
            threading.Event().wait(0.02)
        hold.go.set()

    sender = threading.Thread(target=send)
    sender.start()
    assert loop.run(experiment, 1, devices="cpu", host=FakeHost(world)) == 130
    sender.join()
    pausing = (
        "Pausing all runs at their next step (reopening resumes them); Ctrl-C again ends at once, losing the steps"
    )
    assert pausing in "".join(said)
