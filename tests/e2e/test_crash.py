"""Everything dies without a word, at whatever moment: nothing is lost that was committed, nothing is done twice."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys

import psutil
import pytest

from rftui.store import Store
from tests.e2e.program import LONG
from tests.e2e.terminal import Terminal

pytestmark = pytest.mark.slow


def kill(processes):
    """kill -9, and wait until they are gone."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass
    psutil.wait_procs(processes, timeout=30)


def named(program, word):
    """The processes of this home that have a word in their command line."""
    found = []
    for process in program.processes():
        try:
            if any(word in part for part in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            pass
    return found


def scheduler(program):
    """The process that holds the experiment."""
    return psutil.Process(int((program.home / "tiny" / "lock").read_text()))


def trains_past(program, step, run=1):
    return program.until(lambda: program.show(run)["step"] > step)


def same_as(program, undisturbed):
    """Each run ended in the same weights and the same curves, and MLflow has each point once."""
    for run in (1, 2):
        assert program.adapter(run) == undisturbed.adapter(run)
        assert program.show(run)["curves"] == undisturbed.show(run)["curves"]
    with sqlite3.connect(program.home / "mlflow.db") as db:
        rows = "SELECT run_uuid, key, step FROM metrics"
        every, once = (
            db.execute(f"SELECT count(*) FROM ({which})").fetchone()[0]
            for which in (rows, rows.replace("SELECT", "SELECT DISTINCT"))
        )
        assert db.execute("SELECT count(*) FROM runs").fetchone() == (2,)
    assert every == once == sum(len(curve) for run in (1, 2) for curve in program.show(run)["curves"].values())


def told(program):
    return [event.text for event in Store.read(program.home / "tiny" / "experiment.db").events()]


def interrupted(program):
    """What is shown of an experiment whose every process was killed."""
    shown = program.show()
    assert shown["state"] == "interrupted"
    assert {run["state"] for run in shown["runs"]} <= {"queued", "waiting", "done"}
    assert {run["device"] for run in shown["runs"]} == {None}
    return shown


def test_everything_is_killed_and_the_training_goes_on_to_the_same_weights(program, undisturbed):
    with program.start("run", program.script, "--headless", "--", *LONG) as child:
        trains_past(program, 40)
        kill(program.processes())
        child.communicate()
    interrupted(program)
    program.call("open", "tiny", "--headless")
    same_as(program, undisturbed)
    assert any("Run 1: rolled back to the checkpoint at step " in text for text in told(program))


def test_whatever_the_moment_and_however_often(program, undisturbed):
    arguments, runs = ["run", program.script, "--headless", "--", *LONG], 0
    for step in (0, 20, 60):
        with program.start(*arguments) as child:
            program.until(lambda least=step: any(run["step"] >= least for run in program.show()["runs"]))
            kill(program.processes())
            child.communicate()
        arguments, runs = ["open", "tiny", "--headless"], runs + 1
        interrupted(program)
    program.call("open", "tiny", "--headless")
    same_as(program, undisturbed)
    ended = program.adapter(1), program.adapter(2), told(program)
    assert "nothing left to train" in program.call("open", "tiny", "--headless")
    assert (program.adapter(1), program.adapter(2), told(program)) == ended


def test_a_killed_scheduler_takes_its_workers_with_it_and_the_next_one_waits_for_them(program, undisturbed):
    with program.start("run", program.script, "--headless", "--", *LONG) as child:
        trains_past(program, 40)
        workers = named(program, "rftui.training.worker")
        kill([scheduler(program)])
        interrupted(program)
        program.call("open", "tiny", "--headless")  # at once
        child.communicate()
    assert len(workers) == 1 and not workers[0].is_running()
    same_as(program, undisturbed)


def test_a_killed_worker_takes_its_children_with_it_and_its_runs_go_on(program, undisturbed):
    program.edit("gradient_checkpointing=False", "gradient_checkpointing=False, dataloader_num_workers=2")
    with program.start("run", program.script, "--headless", "--", *LONG) as child:
        trains_past(program, 40)
        (worker,) = [each for each in named(program, "rftui.training.worker") if os.getsid(each.pid) == each.pid]
        children = worker.children(recursive=True)
        kill([worker])
        assert len(children) > 2 and not psutil.wait_procs(children, timeout=5)[1]
        output, _ = child.communicate(timeout=240)
    assert child.returncode == 0, output
    assert "worker cpu died (killed by signal 9 (SIGKILL)" in output and "retraining" in output
    for run in (1, 2):
        assert program.adapter(run) == undisturbed.adapter(run)


def test_what_was_at_its_end_is_not_trained_again(program):
    """Whether `final/` is there or not, and whatever the database lost of it."""
    program.call("run", program.script, "--headless", "--", 24, 4)
    adapter, curves = program.adapter(1), program.show(1)["curves"]
    for final, step in ((False, 6), (False, 2), (True, 2)):
        if not final:
            shutil.rmtree(program.show(1)["final"])
        store = Store(program.home / "tiny" / "experiment.db")
        run = store.run(1)
        run.state, run.step, run.final = "running", step, None
        store.save_run(run)
        store.rewind(1, step)
        store.close()
        program.call("open", "tiny", "--headless")
        run = program.show(1)
        assert (run["state"], run["step"], run["chunk"]) == ("done", 6, 3)
        assert (program.adapter(1), run["curves"]) == (adapter, curves)


def plain(program, *command):
    """`python script.py`, its environment, and where it runs."""
    environment = program.environment | {"RFTUI_HOME": str(program.home)}
    return [*command, sys.executable, str(program.script), *map(str, LONG)], environment, program.folder


def test_a_terminal_that_hangs_up_interrupts_a_plain_script_at_its_next_step(program, undisturbed):
    command, environment, folder = plain(program)
    terminal = Terminal(command, environment, 80, 24, lambda: os.chdir(folder))
    trains_past(program, 3)
    terminal.hang_up()
    assert program.nothing_left()
    interrupted(program)
    program.call("open", "tiny", "--headless")
    same_as(program, undisturbed)
    assert not any("done again" in text for text in told(program)), "a step was lost"


def test_under_nohup_a_hang_up_changes_nothing(program):
    command, environment, folder = plain(program, "nohup")
    with subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL) as process:
        trains_past(program, 3)
        process.send_signal(signal.SIGHUP)
        assert process.wait(240) == 0
    assert {run["state"] for run in program.show()["runs"]} == {"done"}
