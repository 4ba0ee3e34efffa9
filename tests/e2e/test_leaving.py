"""Leaving and coming back: the viewer on a pty, what becomes of the script and its runs, and what is told of it."""

from tests.e2e.terminal import Terminal


def viewer(program, *arguments):
    """A viewer at 80x24."""
    return Terminal(program.command(*arguments), program.environment, 80, 24)


def test_a_script_that_ends_before_it_trains_says_why(program):
    program.script.write_text("import sys; sys.exit('there are no rows')")
    terminal = viewer(program, "run", program.script)
    assert "rftui: script.py ended with exit code 1: there are no rows" in terminal.left()
    assert terminal.exit_status() == 2 and program.nothing_left()


def test_leaving_before_the_script_trains_ends_it(program):
    program.script.write_text("import time; print('loading', flush=True); time.sleep(600)")
    terminal = viewer(program, "run", program.script)
    terminal.until("waiting for the script", "loading")
    terminal.child.send("q")
    terminal.until("End script.py?", "has not begun to train")
    terminal.child.send("y")
    assert "script.py was ended before it began to train" in terminal.left()
    assert terminal.exit_status() == 130 and program.nothing_left()
