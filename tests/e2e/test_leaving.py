"""Leaving and coming back: the viewer on a pty, what becomes of the script and its runs, and what is told of it."""

import signal

import pytest

from tests.e2e.terminal import Terminal


def viewer(program, *arguments, columns=80, rows=24, prepare=None):
    return Terminal(program.command(*arguments), program.environment, columns, rows, prepare)


def test_a_script_that_ends_before_it_trains_says_why(program):
    program.script.write_text("import sys; sys.exit('there are no rows')")
    terminal = viewer(program, "run", program.script)
    assert "rftui: script.py ended with exit code 1: there are no rows" in terminal.left()
    assert terminal.exit_status() == 2 and program.nothing_left()


def test_leaving_before_the_script_trains_ends_it(program):
    program.script.write_text("import time; print('loading', flush=True); time.sleep(600)")
    terminal = viewer(program, "run", program.script)
    terminal.until("waiting for the script", "loading")
    terminal.press("q")
    terminal.until("Stop script.py and quit?", "Training has not started yet")
    terminal.press("y")
    assert "script.py was stopped before training began" in terminal.left()
    assert terminal.exit_status() == 130 and program.nothing_left()


@pytest.mark.parametrize("heard", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_line_that_drops_before_the_script_trains_ends_the_viewer_alone(program, heard):
    """Also where the shell that started it ignores the hang-up."""
    program.script.write_text("import time; print('loading', flush=True); time.sleep(600)")
    terminal = viewer(program, "run", program.script, prepare=lambda: signal.signal(signal.SIGHUP, heard))
    terminal.until("waiting for the script", "loading")
    assert terminal.hang_up() == -signal.SIGHUP
    [script] = program.processes()
    assert str(program.script) in script.cmdline()


def test_detach_and_attach(program):
    program.edit("num_chunks=3", "num_chunks=30")  # short turns: a resumed run waits for the other's
    first = viewer(program, "run", program.script, "--", 900, 1)
    program.until(lambda: program.show(2)["step"] > 2)
    first.press("s")
    program.until(lambda: program.show(1)["state"] == "stopped")
    first.press("q")
    first.until("1 run is still training", "Stay")
    first.press("l")
    assert f"Reopen with: rftui open tiny --home {program.home}" in first.left()
    assert first.exit_status() == 0
    step = program.show(2)["step"]
    program.until(lambda: program.show(2)["step"] > step)  # it trains on

    one = viewer(program, "open", "tiny", columns=200, rows=50)
    other = viewer(program, "open", "tiny", columns=200, rows=50)
    watching = viewer(program, "open", "tiny", "--readonly", columns=200, rows=50)
    for each in (one, other, watching):
        shown = each.until("1 Runs 2", "2 loss", "‖ stopped", "Run 1 stopped at step")  # all from before it came
        assert [line for line in shown.splitlines() if " 1 " in line and "‖ stopped" in line and "█" in line]
    watching.press("r")
    watching.until("Can't resume: opened with --readonly")
    watching.press("?")
    watching.until("(not now: opened with --readonly)")
    watching.press("q")
    other.press("r")
    for each in (one, other, watching):
        each.until("resumes from step")
    one.press("js")
    for each in (one, other, watching):
        each.until("Run 2 stopped at step")
    assert program.show(1)["state"] != "stopped", "the reader changed nothing"

    assert one.hang_up() == -signal.SIGHUP
    step = program.show(1)["step"]
    program.until(lambda: program.show(1)["step"] > step)
    other.press("q")
    other.until("1 run is still training", "Stay")
    other.press("s")
    assert other.exit_status() == 130
    watching.until("Scheduler ended")
    watching.press("q")
    assert watching.exit_status() == 0
    assert program.show()["state"] == "interrupted" and program.nothing_left()
