"""The real program on a terminal, driven by keys: a pty at 80x24, tmux at 200x50."""

import shutil
import subprocess

import pytest

from tests.e2e.terminal import Terminal


def test_keys_at_80x24_on_a_real_training(program):
    program.edit("num_chunks=3", "num_chunks=30")  # short turns: a resumed run waits for the other's
    command = program.command("run", program.script, "--", 900, 1)
    terminal = Terminal(command, program.environment, 80, 24)
    assert "waiting for the script" in terminal.until("script.py", "waiting")
    shown = terminal.until("r4", "r8", "run", "TREND")
    assert all(len(line) <= 80 for line in shown.splitlines())
    terminal.until("1 Runs", "2 loss")
    program.until(lambda: program.show(1)["step"] > 2)
    terminal.child.send("s")
    terminal.until("stopped")
    stopped = program.until(lambda: (run := program.show(1))["state"] == "stopped" and run)
    terminal.child.send("s")
    terminal.until("already stopped; resume")
    terminal.child.send("r")
    program.until(lambda: program.show(1)["step"] > stopped["step"])
    terminal.child.send("c")
    terminal.until("Clone-Modify run 1", "No changes yet")
    terminal.child.send("\x1b[B")  # from the rank to the learning rate
    terminal.until("training_args.learning_rate (typically 1e-5 to 1e-3): ")
    terminal.child.send("1e-3")  # over what is there
    terminal.until("lr 5e-3 → 1e-3, warm from step")
    terminal.child.send("\x13")
    clone = program.until(lambda: len(runs := program.show()["runs"]) == 3 and runs[2])
    assert (clone["parent"], clone["knobs"]["training_args.learning_rate"]) == (1, 1e-3)
    terminal.child.send("G")
    terminal.child.send("d")
    terminal.until("Delete run")
    terminal.child.send("y")
    program.until(lambda: [run["state"] for run in program.show()["runs"]].count("deleted") == 1)
    terminal.child.send("q")
    terminal.until("Stay")
    terminal.child.send("s")
    assert terminal.exit_status() == 130
    assert program.show()["state"] == "interrupted"
    assert program.until(lambda: not program.processes()), "a process was left behind"


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
def test_in_tmux_at_200x50(program):
    def tmux(*words):
        done = subprocess.run(
            ["tmux", "-S", str(program.folder / "t"), *words], capture_output=True, text=True, env=program.environment
        )
        return done.stdout

    command = program.command("run", program.script, "--", 900, 1)
    tmux("new-session", "-d", "-x", "200", "-y", "50", "-c", str(program.folder), *command)

    def screen():
        return tmux("capture-pane", "-p")

    shown = program.until(lambda: "STEP" in (text := screen()) and "3 Events" in text and text)
    assert "Stop" in shown and "Help" in shown
    program.until(lambda: program.show(1)["step"] > 2)
    tmux("send-keys", "?")
    program.until(lambda: "Resume a stopped run" in screen())
    tmux("send-keys", "Escape")
    program.until(lambda: "Resume a stopped run" not in screen())
    tmux("send-keys", "q")
    program.until(lambda: "Stay" in screen())
    tmux("send-keys", "l")
    program.until(lambda: not screen().strip())
    step = program.show(1)["step"]
    program.until(lambda: program.show(1)["step"] > step)  # it goes on without a viewer


def test_a_dumb_terminal_gets_plain_lines(program):
    terminal = Terminal(
        program.command("run", program.script, "--", 12, 4), program.environment | {"TERM": "dumb"}, 80, 24
    )
    assert "\x1b" not in terminal.until("Run 2 done")
    assert terminal.exit_status() == 0
