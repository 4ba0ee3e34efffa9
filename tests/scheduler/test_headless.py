"""Plain progress: its lines, its table, and terminals that cannot show everything or go away."""

import subprocess
import sys

import pytest

from rftui.messages import ExperimentInfo
from rftui.runs import DONE, FAILED, QUEUED, RUNNING, WAITING, Run
from rftui.scheduler.headless import Printer
from rftui.store import Store


class Registry:
    def __init__(self, store, *runs):
        self.store, self.runs = store, {run.id: run for run in runs}
        self.info = ExperimentInfo("exp", "/there/exp", state="running")


@pytest.fixture
def store(tmp_path):
    store = Store.create(tmp_path / "e.db")
    yield store
    store.close()


def test_a_progress_line_tells_how_far_it_is(store, capsys):
    run = dict(chunks=8, total_steps=100)
    registry = Registry(
        store,
        Run(1, "a", state=RUNNING, chunk=3, step=40, **run),
        Run(2, "b", state=WAITING, chunk=2, step=34, **run),
        Run(3, "c", state=QUEUED),
    )
    registry.info.eta, registry.info.steps_per_second = 190, 4.06
    printer = Printer(registry)
    printer.print()
    line = capsys.readouterr().out.rstrip()
    assert line[8:].split() == "- chunk 0/8 1 running, 2 waiting 4.1 steps/s ETA 3m".split()
    printer.print()
    assert capsys.readouterr().out == "", "the next line comes after a few seconds"


def test_events_are_told_once_and_the_ends_of_chunks_not_at_all(store, capsys):
    store.log("before this scheduler")
    printer = Printer(Registry(store))
    printer._registry.info.state = "loading"
    store.log("run 1 chunk 2/8 done", run=1, level="progress")
    store.log("Run 1 done", run=1)
    store.log("run 2: its chunk order is done", run=2)
    store.log("worker cpu died", level="error")
    printer.print()
    printer.print()
    assert [line[10:] for line in capsys.readouterr().out.splitlines()] == [
        "Run 1 done",
        "run 2: its chunk order is done",
        "worker cpu died",
    ]


def test_the_table_at_the_end(store, capsys):
    done = Run(1, "long-name", state=DONE, chunk=2, chunks=2, step=9, metrics={"loss": 0.5, "eval_loss": float("nan")})
    Printer(Registry(store, done, Run(2, "b", state=FAILED, error="out of memory"))).summary()
    out = capsys.readouterr().out.splitlines()
    assert out[1].split() == ["1", "long-name", "done", "2/2", "9", "0.5", "nan"]
    assert out[2].endswith("out of memory") and out[3] == "running: /there/exp"


def test_of_grpo_the_table_shows_the_reward_and_no_loss(store, capsys):
    metrics = {"loss": 0.0123, "reward": 0.75, "eval_reward": 0.5}
    grpo = Run(1, "g", algo="GRPO", state=DONE, metrics=metrics)
    Printer(Registry(store, grpo)).summary()
    head, row, _ = capsys.readouterr().out.splitlines()
    assert head.split()[5:] == ["reward", "eval", "reward"] and row.split()[5:] == ["0.75", "0.5"]
    Printer(Registry(store, grpo, Run(2, "s", state=DONE, metrics={"loss": 2.5}))).summary()
    head, first, second, _ = capsys.readouterr().out.splitlines()
    assert head.split()[5:] == ["loss", "eval", "reward", "eval", "reward"]
    assert first.split()[5:] == ["-", "-", "0.75", "0.5"] and second.split()[5:] == ["2.5", "-", "-", "-"]


SCRIPT = """
import sys
from rftui.scheduler.headless import Printer
printer = Printer.__new__(Printer)
for number in range(3):
    printer._write("Grüße – line")
sys.stderr.write("still here")
"""


def test_a_terminal_without_unicode_gets_replacements():
    environment = {"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, env=environment)
    assert done.returncode == 0 and done.stdout.splitlines()[0] == b"Gr??e ? line"


def test_training_goes_on_when_nobody_reads_its_lines_any_more():
    """As in `python script.py | head`."""
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == b"still here" and process.wait() == 0
    process.stderr.close()


def test_the_notices_of_a_fit_are_printed_once(play, experiment, world, capsys):
    store = Store(experiment.db)
    store.log("of an earlier fit", level="notice")
    fit = store.add_fit(num_chunks=3, chunk_size=None, seed=1, rows=60, eval_rows=0)
    store.log("num_chunks 3 wins over chunk_size 2", level="notice")
    store.close()
    assert play(fit=fit).end() == 0
    out = capsys.readouterr().out
    assert out.count("num_chunks 3 wins over chunk_size 2") == 1 and "of an earlier fit" not in out
    assert play(fit=None).end() == 0
    assert "wins over" not in capsys.readouterr().out
