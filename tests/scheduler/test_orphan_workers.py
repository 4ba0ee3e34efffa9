"""Workers that a killed scheduler left: waited for, then killed, and nobody else is."""

import os
import subprocess
import sys
import time

import pytest

from rftui.errors import UserError
from rftui.scheduler import recovery
from rftui.scheduler.recovery import OrphanWorkers, birth
from rftui.store import Store

WORKER = "import subprocess; subprocess.Popen(['sleep', '600']); print('ready', flush=True); input()"


@pytest.fixture
def store(experiment):
    store = Store(experiment.db)
    yield store
    store.close()


@pytest.fixture
def worker(experiment):
    """A process that holds a worker's lock and has a child."""
    with experiment.lock_worker() as lock:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[lock.fileno()],
            start_new_session=True,
        )
    assert process.stdout.readline() == b"ready\n"
    yield process
    recovery.kill_group(process.pid)
    process.communicate()


def until(found):
    while not found.gone():
        time.sleep(0.01)
    return True


def test_where_nobody_is_left_nobody_is_waited_for(experiment, store):
    assert OrphanWorkers(experiment, store).gone()


def test_a_worker_that_ends_by_itself_is_waited_for(experiment, store, worker):
    store.keep_worker("cpu", worker.pid, birth(worker.pid))
    found = OrphanWorkers(experiment, store)
    assert not found.gone()
    worker.stdin.write(b"\n")
    worker.stdin.flush()
    assert worker.wait() == 0 and found.gone()


def test_one_that_takes_too_long_is_killed_with_its_children(experiment, store, worker, monkeypatch):
    monkeypatch.setattr(recovery, "_PATIENCE", 0)
    store.keep_worker("cpu", worker.pid, birth(worker.pid))
    assert until(OrphanWorkers(experiment, store)) and worker.wait() == -9
    assert worker.stdout.read() == b"", "its child held the pipe, too"


@pytest.mark.parametrize("record", ["none", "another's", "no process"])
def test_a_process_that_only_has_the_number_of_one_is_not_killed(experiment, store, worker, monkeypatch, record):
    monkeypatch.setattr(recovery, "_PATIENCE", 0)
    monkeypatch.setattr(recovery, "_AFTER_KILL", 0)
    if record != "none":
        other = subprocess.Popen(["sleep", "0"])
        other.wait()
        pid = worker.pid if record == "another's" else other.pid
        store.keep_worker("cpu", pid, birth(os.getpid()) if record == "another's" else birth(other.pid))
    with pytest.raises(UserError, match="exp: a worker of an earlier scheduler neither ends nor can be killed"):
        until(OrphanWorkers(experiment, store))
    assert worker.poll() is None


def test_one_that_cannot_be_killed_is_named(experiment, store, worker, monkeypatch):
    monkeypatch.setattr(recovery, "_PATIENCE", 0)
    monkeypatch.setattr(recovery, "_AFTER_KILL", 0)
    monkeypatch.setattr(recovery, "kill_group", lambda pid: None)
    store.keep_worker("cpu", worker.pid, birth(worker.pid))
    with pytest.raises(UserError, match=rf"\(process {worker.pid}\) .*open exp again") as fault:
        until(OrphanWorkers(experiment, store))
    assert len(fault.value.lines) == 1


def test_the_birth_of_a_process_tells_it_from_others(worker):
    assert birth(worker.pid) == birth(worker.pid)
    assert birth(os.getpid()) not in (None, birth(worker.pid))
    ended = subprocess.Popen(["sleep", "0"])
    ended.wait()
    assert birth(ended.pid) is None


def test_a_scheduler_waits_with_its_own_and_can_be_watched_and_interrupted(play, eyes, world, experiment, kept):
    def started(**how):
        scheduler = play(fit=None, **how)
        while not experiment.link.exists():
            time.sleep(0.01)
        return scheduler

    with experiment.lock_worker():
        scheduler = started(viewer=True)
        seen = eyes()
        seen.until(lambda: "old workers" in seen.experiment.waiting_for)
        assert world.started == [] and seen.experiment.state == "loading"
        assert seen.ask("interrupt").ok
        assert scheduler.end() == 130
    assert kept().meta("state") == "interrupted"
    with experiment.lock_worker():
        scheduler = started()
    assert scheduler.end() == 0 and len(world.started) == 1
