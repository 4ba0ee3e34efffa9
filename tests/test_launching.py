"""What is started or found running, until it serves or has ended."""

import json
import signal
import time

import psutil
import pytest

from rftui import launching, paths
from rftui.errors import FAILED, UserError
from rftui.link_server import Server
from rftui.messages import ExperimentInfo, Snapshot
from rftui.paths import create


def test_what_was_attached_to_ends_with_its_scheduler(tmp_path):
    experiment = create(tmp_path, "e")
    lock, server = experiment.lock(), Server(experiment)
    launch = launching.attach(experiment)
    viewer = launch.poll()
    assert viewer and launch.exit_status is None and not launch.served
    server.inbox.get(timeout=10)
    server.send(viewer.name, Snapshot(0, ExperimentInfo("e", "/e"), [], {}, [], [], {}))
    viewer.poll(10)
    assert launch.served
    server.close()
    assert launch.poll() is None and launch.exit_status is None, "it may still have something to do"
    lock.close()
    assert launch.exit_status == FAILED
    with pytest.raises(UserError, match="its scheduler has ended"):
        launching.attach(experiment).wait(60)


def test_a_scheduler_whose_socket_is_hidden_is_told_in_one_line(tmp_path, monkeypatch):
    """As from a shell with another /tmp."""
    monkeypatch.setattr(launching, "_HIDDEN", 0.0)
    experiment = create(tmp_path, "e")
    with experiment.lock():
        server = Server(experiment)
        found = json.loads(experiment.link.read_text())
        experiment.link.write_text(json.dumps(found | {"address": "/nowhere/s"}))
        launch = launching.attach(experiment)
        with pytest.raises(UserError, match="its socket /nowhere/s cannot be reached from this shell"):
            launch.wait(60)
        assert launch.tail(1) == [launch.trouble]
        server.close()


TREE = """
import signal, subprocess, sys
{}
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""
"""A script that has started a process of its own."""


@pytest.mark.parametrize("deaf", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_a_script_that_is_ended_takes_its_children_along(tmp_path, monkeypatch, deaf):
    monkeypatch.setattr(launching, "_PATIENCE", 0.5)
    launch = launching.spawn(["-c", TREE.format(deaf)], tmp_path, title="script.py")
    until = time.monotonic() + 60
    while not launch.tail():
        assert time.monotonic() < until and launch.exit_status is None
    child = psutil.Process(int(launch.tail()[0]))
    launch.end()
    assert launch.exit_status in (-signal.SIGTERM, -signal.SIGKILL)
    psutil.wait_procs([child], 60)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    launch.end()


def test_the_command_that_a_scheduler_prints_works_in_the_shell_of_its_viewer(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "_taken", {})
    monkeypatch.setenv("RFTUI_HOME", str(tmp_path / "of the shell"))
    for home, needed in ((tmp_path / "of the shell", False), (tmp_path / "given", True)):
        output, *_, environment = launching.prepare(home, None)
        output.close()
        with monkeypatch.context() as scheduler:
            for name, value in environment.items():
                scheduler.setenv(name, value)
            for _ in range(2):
                assert ("--home" in paths.how_to_open(paths.ExperimentDir(home / "e"))) == needed
                paths.take_environment()  # as `Experiment` does
        paths._taken.clear()
