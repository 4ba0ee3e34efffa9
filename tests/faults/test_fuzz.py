"""Some faults of every kind, and five hundred drawn ones; and that the fuzz itself notices what it is there for."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.injector import Fault, Injector

FUZZ = Path(__file__).with_name("fuzz.py")

FAULTS = [
    "scheduler:rftui.scheduler.workers.Crew.hear:3:RuntimeError",
    "scheduler:rftui.scheduler.run_reports.RunReports.take:5:KeyError",
    "scheduler:rftui.scheduler.run_reports.RunReports.take:9:ValueError:after",
    "scheduler:rftui.scheduler.turns.Turns.assign:2:ValueError",
    "scheduler:rftui.scheduler.turns.Turns.assign:3:KeyError:lasting",
    "scheduler:rftui.scheduler.turns.Turns._start:2:MemoryError",
    "scheduler:rftui.scheduler.turns.Turns.end_turn:2:EACCES",
    "scheduler:rftui.scheduler.registry.Registry.flush:4:RuntimeError",
    "scheduler:rftui.scheduler.registry.Registry.estimate:1:KeyError",
    "scheduler:rftui.scheduler.control.Control.handle:1:RuntimeError",
    "scheduler:rftui.scheduler.control.Control._stop:1:EOFError",
    "scheduler:rftui.scheduler.pruning.Rules.presses:3:UnicodeDecodeError",
    "scheduler:rftui.scheduler.registry.Registry.points:4:RuntimeError",
    "scheduler:sqlite3.execute_in_rftui.store.Store._write:9:OperationalError",
    "scheduler:sqlite3.commit_in_rftui.store.Store._attempt:6:OperationalError",
    "scheduler:os.listdir_in_rftui.checkpoints.checkpoints_in:2:EIO",
    "scheduler:rftui.link.WorkerLink.tasks:3:RuntimeError",
    "scheduler:rftui.link._taken:4:EOFError",
    "shell:rftui.client.Connection.ask:1:RuntimeError",
    "shell:proxy.call_in_rftui.link.Viewer._put:1:EOFError",
    "shell:json.loads_in_rftui.link._connect:1:ValueError",
    "tracker:rftui.tracking.sender.Sender.send:1:KeyError",
    "tracker:sqlite3.execute_in_rftui.tracking.ledger.Ledger._transaction:2:OperationalError",
    "tracker:open_in_rftui.tracking.service.Service._work:1:EIO",
]


def fuzz(*arguments):
    return subprocess.run([sys.executable, FUZZ, *arguments], capture_output=True, text=True)


def test_no_fault_loses_a_run_or_goes_without_a_word():
    done = fuzz(*(word for fault in FAULTS for word in ("--fault", fault)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(FAULTS)} faults in {len(FAULTS)} experiments, 0 wrong" in done.stdout


@pytest.mark.slow
def test_neither_do_five_hundred():
    done = fuzz("--faults", "500")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_fault_that_never_comes_is_told():
    done = fuzz("--fault", "scheduler:rftui.scheduler.workers.Crew.renamed:1:KeyError")
    assert done.returncode == 1 and "never came" in done.stdout


@pytest.mark.parametrize("more", ["", ":after", ":lasting", ":after:lasting"])
def test_a_fault_is_named_by_what_is_printed(more):
    text = f"scheduler:os.replace_in_rftui.paths.write_whole:3:EIO{more}"
    fault = Fault.parse(text)
    assert str(fault) == text and fault.place == "os.replace in rftui.paths.write_whole"
    assert fault.token in str(fault.exception())


def test_the_nth_call_raises_and_a_lasting_fault_goes_on(tmp_path):
    once, ever = Fault("scheduler", "once", 2, "EIO"), Fault("scheduler", "ever", 2, "KeyError", lasting=True)
    injector = Injector([once, ever], tmp_path / "fired.txt")
    assert [injector.due("once") for _ in range(3)] == [None, once, None]
    assert [injector.due("ever") for _ in range(3)] == [None, ever, ever]
    assert injector.due("other") is None and injector.counts["other"] == 1
    assert (tmp_path / "fired.txt").read_text().split() == ["once", "ever", "ever"]
