"""The experiment directory: locks, files that are replaced whole, and checkpoints that are not."""

import fcntl
import shlex
import subprocess
import sys
import threading

import pytest

from rftui import paths
from rftui.errors import UserError
from rftui.paths import ExperimentDir, create, how_to_open, write_whole


@pytest.fixture
def experiment(tmp_path):
    return create(tmp_path, "e")


HOLDER = """
import sys
from pathlib import Path
from rftui.paths import ExperimentDir
experiment = ExperimentDir(Path(sys.argv[1]))
held = getattr(experiment, sys.argv[2])()
print("held", flush=True)
sys.stdin.read()
"""


def holding(experiment, lock):
    """A process that holds a lock until it is killed."""
    command = [sys.executable, "-c", HOLDER, str(experiment.path), lock]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_the_lock_of_a_killed_scheduler_is_free(experiment):
    with holding(experiment, "lock") as process:
        assert experiment.lock() is None and experiment.alive()
        assert (experiment.path / "lock").read_text() == str(process.pid)
        process.kill()
    assert not experiment.alive()
    with experiment.lock():
        assert experiment.alive()


def test_workers_share_a_lock_that_ends_with_the_last_of_them(experiment):
    assert experiment.workers_gone()
    with holding(experiment, "lock_worker") as one, holding(experiment, "lock_worker") as two:
        one.kill()
        one.wait()
        assert not experiment.workers_gone() and not experiment.alive()
        two.kill()
    assert experiment.workers_gone()


def test_a_lock_goes_to_who_inherits_it(experiment):
    lock = experiment.lock_worker()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock.fileno()])
    lock.close()
    assert not experiment.workers_gone()
    child.communicate(b"\n")
    assert experiment.workers_gone()


def test_a_place_without_locks_is_told_in_one_line(experiment, monkeypatch):
    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match="cannot lock .*/e/lock: No locks available"):
        experiment.lock()
    with pytest.raises(UserError, match="cannot lock .*/nowhere/lock: No such file"):
        ExperimentDir(experiment.path / "nowhere").lock()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "spec.pkl"
    write_whole(tmp_path / "spec.tmp", b"torn, and longer than what replaces it")
    write_whole(path, b"first")
    assert path.read_bytes() == b"first" and path.stat().st_mode & 0o777 == 0o600

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(paths.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"second")
    assert path.read_bytes() == b"first"


def test_the_command_that_opens_an_experiment_is_complete(tmp_path, monkeypatch):
    experiment = ExperimentDir(tmp_path / "a home" / "it's mine")
    monkeypatch.setenv("RFTUI_HOME", str(tmp_path / "a home"))
    assert shlex.split(how_to_open(experiment)) == ["rftui", "open", "it's mine"]
    monkeypatch.delenv("RFTUI_HOME")
    assert shlex.split(how_to_open(experiment)) == ["rftui", "open", "it's mine", "--home", str(tmp_path / "a home")]


def test_a_look_at_an_experiment_refuses_no_one_who_opens_it_just_then(experiment):
    """`alive` holds the lock for a moment, shared."""
    looking = open(experiment.path / "lock", "w")
    fcntl.flock(looking, fcntl.LOCK_SH)
    timer = threading.Timer(0.05, looking.close)
    timer.start()
    with experiment.lock() as held:
        assert held and experiment.alive()
    timer.join()
