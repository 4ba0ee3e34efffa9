"""The link in one process: a server, a worker's end and a viewer's end."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from multiprocessing.managers import RemoteError
from pathlib import Path

import pytest

from rftui import link, link_server
from rftui.link import LinkLost, Viewer, WorkerLink, unreachable
from rftui.link_server import Server
from rftui.messages import Attach, ExperimentInfo, Field, Quit, Ready, Reply, Report, Snapshot, Stepped, Stop, Update
from rftui.paths import ExperimentDir, create
from rftui.runs import Run


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(link_server, "_LAST_WORDS", 0.0)  # most viewers here do not watch to the end
    server = Server(create(tmp_path, "e"))
    yield server
    server.close()


def snapshot(sequence=0):
    return Snapshot(sequence, ExperimentInfo("e", "/e"), [], {}, [], [], {})


def test_reports_and_tasks_arrive_in_order(server):
    environment = server.open_worker("w0", 3)
    worker = WorkerLink(server.experiment, "w0", 3)
    assert environment["RFTUI_INCARNATION"] == "3"
    worker.report(Ready(7))
    for step in range(20):
        worker.report(Stepped(1, step, 0, 0.0))
    worker.close()
    got = []
    while len(got) < 21:
        report = server.inbox.get(timeout=10)
        assert (report.worker, report.incarnation) == ("w0", 3)
        got += report.messages
    assert got[0] == Ready(7) and [message.step for message in got[1:]] == list(range(20))
    server.task("w0", Quit())
    assert worker.tasks() == [Quit()]


def test_a_replaced_worker_finds_its_link_lost(server):
    server.open_worker("w0", 1)
    old = WorkerLink(server.experiment, "w0", 1)
    server.open_worker("w0", 2)
    with pytest.raises(LinkLost):
        old.tasks()


def test_a_worker_of_an_earlier_scheduler_is_refused(server):
    """It was started by that one and is so slow that it finds the next one's address."""
    server.open_worker("w0", 5)
    for name, incarnation in (("w0", 4), ("w1", 4)):
        with pytest.raises(LinkLost, match=f"{name} #4 was replaced"):
            WorkerLink(server.experiment, name, incarnation)


KILLED = """
import os, sys
from pathlib import Path
from rftui.link_server import Server
from rftui.paths import ExperimentDir
Server(ExperimentDir(Path(sys.argv[1])))
os.kill(os.getpid(), 9)
"""


def folder(experiment):
    """Where the socket of the experiment's scheduler is."""
    return Path(json.loads(experiment.link.read_text())["address"]).parent


def test_what_a_killed_scheduler_left_of_its_socket_goes_with_the_next(tmp_path):
    experiment = create(tmp_path, "e")
    subprocess.run([sys.executable, "-c", KILLED, str(experiment.path)])
    left = folder(experiment)
    assert left.is_dir()
    Server(experiment).close()
    assert not left.exists()


def test_a_copied_experiment_leaves_the_socket_of_the_living_original(server, tmp_path):
    shutil.copytree(server.experiment.path, tmp_path / "copy")
    Server(ExperimentDir(tmp_path / "copy")).close()
    assert folder(server.experiment).is_dir()


def test_what_a_viewer_had_not_taken_when_it_was_killed_goes(server, monkeypatch):
    viewer = Viewer(server.experiment)
    update = Update(1, events=[])
    gone = weakref.ref(update)
    server.broadcast(update)
    del update
    server.forget_dead_viewers()
    assert gone() and server.viewers == 1, f"{viewer.name} lives"

    def dead(pid, signal):
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", dead)
    server.forget_dead_viewers()
    assert not gone() and server.viewers == 0


def test_a_viewer_that_lags_gets_a_fresh_snapshot(server, monkeypatch):
    monkeypatch.setattr(link_server, "_BACKLOG", 10)
    viewer = Viewer(server.experiment)
    assert server.inbox.get(timeout=10) == Attach(viewer.name)
    server.send(viewer.name, snapshot())
    assert viewer.poll(10) == [snapshot()]
    for sequence in range(1, 26):
        server.broadcast(Update(sequence))
    viewer.poll(10)
    assert server.inbox.get(timeout=10) == Attach(viewer.name)
    server.broadcast(Update(26))
    server.send(viewer.name, snapshot(26))
    server.broadcast(Update(27))
    messages = viewer.poll(10)
    while messages[-1] != Update(27):
        messages += viewer.poll(10)
    assert messages == [snapshot(26), Update(27)]


def test_whoever_only_gives_commands_is_told_that_something_changed_but_not_what(server):
    viewer = Viewer(server.experiment, brief=True)
    assert server.inbox.get(timeout=10) == Attach(viewer.name, brief=True)
    server.attach(viewer.name, brief=True)
    server.send(viewer.name, snapshot())
    schema = {"SFT": [Field("training_args.learning_rate", "float")]}
    whole = Update(1, runs=[Run(1, "a")], points=[(1, "loss", 1, 2.0)], schema=schema)
    server.broadcast(whole)
    server.send(viewer.name, Reply("c", True, "stops"))
    messages = viewer.poll(10)
    while not isinstance(messages[-1], Reply):
        messages += viewer.poll(10)
    assert messages[:2] == [snapshot(), Update(1, schema=schema)]
    server.attach(viewer.name, brief=False)
    server.broadcast(whole)
    assert viewer.poll(10) == [whole]


def test_a_viewer_that_lags_gets_the_answer_to_each_of_its_commands(server, monkeypatch):
    monkeypatch.setattr(link_server, "_BACKLOG", 10)
    viewer = Viewer(server.experiment)
    server.inbox.get(timeout=10)
    replies = [Reply(str(number), True, "done") for number in range(30)]
    for number, reply in enumerate(replies):
        server.send(viewer.name, reply)
        server.broadcast(Update(number))
    assert viewer.poll(10) == replies
    assert server.inbox.get(timeout=10) == Attach(viewer.name)


def test_commands_name_their_viewer_and_a_closed_server_is_lost(server):
    viewer = Viewer(server.experiment)
    server.inbox.get(timeout=10)
    viewer.send(Stop(3, id="1"))
    assert server.inbox.get(timeout=10) == Stop(3, id="1", viewer=viewer.name)
    server.close()
    with pytest.raises(LinkLost):
        while True:
            viewer.poll(10)


def test_what_was_sent_last_is_read_before_the_link_is_lost(server, monkeypatch):
    monkeypatch.setattr(link_server, "_LAST_WORDS", 60.0)
    viewer = Viewer(server.experiment)
    server.inbox.get(timeout=10)
    server.send(viewer.name, snapshot())
    assert viewer.poll(10) == [snapshot()]
    server.broadcast(Update(1))
    server.send(viewer.name, Reply("1", True, "run 1 is stopped"))
    closing = threading.Thread(target=server.close)
    closing.start()
    messages = []
    with pytest.raises(LinkLost):
        while True:
            messages += viewer.poll(10)
    assert messages == [Update(1), Reply("1", True, "run 1 is stopped")]
    closing.join(10)
    assert not closing.is_alive(), "it waits no longer than until they are read"


def test_what_came_in_one_batch_with_the_end_is_given(server):
    viewer = Viewer(server.experiment)
    server.inbox.get(timeout=10)
    server.send(viewer.name, snapshot())
    server.send(viewer.name, Update(1))
    server.drop_viewer(viewer.name)
    assert viewer.poll(10) == [snapshot(), Update(1)]
    with pytest.raises(LinkLost):
        viewer.poll(10)


def test_a_wrong_key_is_refused_and_the_socket_is_private(server):
    found = json.loads(server.experiment.link.read_text())
    assert server.experiment.link.stat().st_mode & 0o777 == 0o600
    assert Path(server.address).parent.stat().st_mode & 0o777 == 0o700
    assert len(found["address"]) < 107
    server.experiment.link.write_text(json.dumps(found | {"key": "00" * 32}))
    with pytest.raises(LinkLost):
        Viewer(server.experiment)


def test_a_closed_server_leaves_no_thread_that_accepts(tmp_path):
    before = set(threading.enumerate())
    server = Server(create(tmp_path, "e"))
    accepting = set(threading.enumerate()) - before
    Viewer(server.experiment)
    server.close()
    assert accepting and not any(thread.is_alive() for thread in accepting)
    server.close()


@pytest.mark.parametrize(
    "junk",
    ["", "[]", "null", '"s"', "{}", '{"address": 5, "key": "00"}', '{"address": "a\\u0000b", "key": "0"}', "\xff"],
)
def test_a_link_file_that_is_junk_means_that_nothing_serves(tmp_path, junk):
    experiment = create(tmp_path, "e")
    experiment.link.write_bytes(junk.encode("latin-1"))
    with pytest.raises(LinkLost, match="no scheduler serves e"):
        Viewer(experiment)
    Server(experiment).close()


def test_a_viewer_of_another_user_lives(server, monkeypatch):
    viewer = Viewer(server.experiment)

    def not_ours(pid, signal):
        raise PermissionError

    monkeypatch.setattr(os, "kill", not_ours)
    server.forget_dead_viewers()
    assert server.viewers == 1, viewer.name


@pytest.mark.parametrize("name", ["nobody", "0-a", "-5-a", "99999999999-a"])
def test_a_viewer_whose_name_tells_no_process_is_refused(server, name):
    client = link._connect(server.experiment)
    with pytest.raises(RemoteError, match="is no viewer"):
        client.mailbox("viewer", name, 0)
    server.forget_dead_viewers()


def test_a_report_that_cannot_be_sent_ends_the_worker(server, capsys):
    """Else the scheduler would wait for it for ever."""
    server.open_worker("w0", 1)
    worker = WorkerLink(server.experiment, "w0", 1)
    worker.report(lambda: None)
    assert worker.lost.wait(10)
    assert "pickle" in capsys.readouterr().err


def remade(server, before):
    """Once the server has made its socket anew."""
    until = time.monotonic() + 30
    while True:
        assert time.monotonic() < until
        try:
            now = os.stat(json.loads(server.experiment.link.read_text())["address"])
        except (OSError, ValueError):
            continue
        if now.st_ino != before.st_ino or now.st_ctime_ns != before.st_ctime_ns:
            return Viewer(server.experiment)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(link_server, "_LOOK", 0.01)


@pytest.mark.parametrize("lost", ["folder", "socket", "parent"])
def test_a_socket_that_is_removed_is_made_again_and_work_goes_on(tmp_path, monkeypatch, quick, lost):
    run = Path(tempfile.mkdtemp(dir="/tmp"))  # short
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run))
    monkeypatch.setattr(link_server, "_LAST_WORDS", 0.0)
    server = Server(create(tmp_path, "e"))
    server.open_worker("w0", 1)
    worker = WorkerLink(server.experiment, "w0", 1)
    old = Viewer(server.experiment)
    while not isinstance(server.inbox.get(timeout=10), Report):
        pass  # the worker can report
    server.task("w0", Quit(save=False))
    assert worker.tasks() == [Quit(save=False)]  # and is asked
    address = Path(json.loads(server.experiment.link.read_text())["address"])
    before = address.stat()
    if lost == "socket":
        address.unlink()
    else:
        shutil.rmtree({"folder": address.parent, "parent": run}[lost])
    new = remade(server, before)
    for viewer in (old, new):
        told = threading.Thread(target=viewer.send, args=[Stop(1)])  # a thread connects anew
        told.start()
        told.join()
    worker.report(Ready(1))
    got = []
    while len(got) < 3:
        message = server.inbox.get(timeout=10)
        got += ["stop"] if isinstance(message, Stop) else getattr(message, "messages", [])
    assert sorted(got, key=str) == [Ready(1), "stop", "stop"]
    server.task("w0", Quit())
    assert worker.tasks() == [Quit()]
    server.close()
    shutil.rmtree(run, ignore_errors=True)
    assert not Path(server.address).exists() and not server.experiment.link.exists()


def test_a_server_whose_socket_is_gone_can_be_closed(server):
    shutil.rmtree(folder(server.experiment))
    closing = threading.Thread(target=server.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()


def test_a_scheduler_that_cannot_be_seen_from_here_is_told(server):
    experiment = server.experiment
    assert unreachable(experiment) == ""
    found = json.loads(experiment.link.read_text())
    experiment.link.write_text(json.dumps(found | {"address": "/nowhere/s"}))
    assert re.fullmatch(
        rf"process {os.getpid()} trains e, but its socket /nowhere/s cannot be reached from this shell "
        rf"\(No such file or directory\): .* or end it with kill {os.getpid()}",
        unreachable(experiment),
    )
    experiment.link.write_text(json.dumps(found | {"host": "other"}))
    assert unreachable(experiment) == f"e is trained on other, in process {os.getpid()}: run this command there"
    experiment.link.unlink()
    assert unreachable(experiment) == "", "it is starting or ending"


def test_a_scheduler_of_another_version_is_told_in_one_line(server):
    experiment = server.experiment
    there = json.loads(experiment.link.read_text())
    experiment.link.write_text(json.dumps(there | {"protocol": 0}))
    with pytest.raises(LinkLost, match="another version of rftui"):
        Viewer(experiment)
    with pytest.raises(LinkLost, match="another version of rftui"):
        WorkerLink(experiment, "cpu", 1)
    told = unreachable(experiment)
    assert "another version of rftui" in told and f"kill {os.getpid()}" in told and "\n" not in told


def test_a_long_directory_for_temporary_files_is_not_used_for_the_socket(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    monkeypatch.setenv("TMPDIR", str(long))
    server = Server(create(tmp_path, "e"))
    assert len(server.address) < 60
    server.close()
