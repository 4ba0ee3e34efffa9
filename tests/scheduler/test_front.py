"""A headless scheduler ends, resumably, with the command that shows its progress, however that was killed."""

import signal
import subprocess
import sys

import pytest

from rftui import launching
from rftui.runs import WAITING


@pytest.fixture
def front(monkeypatch):
    """A process in the place of `rftui run --headless`."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        monkeypatch.setenv("RFTUI_FRONT", str(process.pid))
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR1])
def test_training_ends_with_a_checkpoint_and_says_why(play, kept, world, front, number):
    hold = world.hold(1, 2)
    scheduler = play()
    hold.wait()
    front.send_signal(number)
    front.wait()
    world.came("cpu")  # the order to save its runs and end
    hold.go.set()
    assert scheduler.end() == 130
    run = kept().run(1)
    assert (run.state, run.step) == (WAITING, 1) and run.checkpoint.endswith("step-1")
    told = [event.text for event in kept().events()]
    assert "The rftui command that shows this progress was killed" in told
    assert any(text.startswith("Pausing all runs at their next step") for text in told)


def test_without_one_or_while_it_lives_training_goes_on(play, world, front):
    assert play().end() == 0


def test_a_scheduler_that_a_headless_script_starts_does_not_end_with_it(tmp_path, monkeypatch):
    monkeypatch.setenv("RFTUI_FRONT", "1")
    output, *_, environment = launching.prepare(tmp_path, None)
    output.close()
    assert "RFTUI_FRONT" not in environment
