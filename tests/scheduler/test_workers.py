"""Worker processes: which devices there are, and processes (shell scripts in a worker's place) that start and end."""

import os
import queue
import select
import subprocess

import pytest

from rftui.errors import UserError
from rftui.paths import create
from rftui.scheduler import devices as named
from rftui.scheduler import hosts
from rftui.scheduler.devices import WorkerSlot, slots
from rftui.scheduler.environment import cores
from rftui.scheduler.recovery import birth
from rftui.scheduler.workers import Workers
from rftui.store import Store


@pytest.mark.parametrize(
    ("devices", "names"),
    [("cpu", ["cpu"]), ("cpu:2", ["cpu0", "cpu1"]), ("0,3,0", ["gpu0", "gpu3"]), ("5", ["gpu5"])],
)
def test_devices_that_are_named(devices, names):
    assert [slot.name for slot in slots(devices)] == names


@pytest.mark.parametrize("devices", ["", "gpu", "cpu:0", "cpu:-1", "0,", "cuda:0", "cpu;ls"])
def test_devices_that_are_no_devices(devices):
    with pytest.raises(UserError, match="say auto, cpu, cpu:N"):
        slots(devices)


@pytest.mark.parametrize(
    ("visible", "found"),
    [("", ["cpu"]), ("-1", ["cpu"]), ("1, 2", ["gpu1", "gpu2"]), ("GPU-8f", ["gpuGPU-8f"])],
)
def test_auto_takes_the_gpus_that_this_process_may_use(monkeypatch, visible, found):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [slot.name for slot in slots("auto")] == found


def test_auto_asks_nvidia_and_is_a_cpu_without_it(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    listed = (
        "GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g.10gb Device 0: (UUID: MIG-2)\nGPU 1: NVIDIA H200 (UUID: GPU-3)\n"
    )
    done = subprocess.CompletedProcess([], 0, listed)
    monkeypatch.setattr(named.subprocess, "run", lambda *args, **how: done)
    assert slots("auto") == [WorkerSlot("gpu0", "0"), WorkerSlot("gpu1", "1")]

    def missing(*args, **how):
        raise FileNotFoundError

    monkeypatch.setattr(named.subprocess, "run", missing)
    assert slots("auto") == [WorkerSlot("cpu", None)]


@pytest.mark.parametrize(
    ("visible", "asked", "given"),
    [("4,5", "0,1", ["4", "5"]), ("4,5", "1", ["5"]), ("GPU-8f, MIG-2", "1,0", ["MIG-2", "GPU-8f"])],
)
def test_numbers_count_the_gpus_that_this_process_may_use(monkeypatch, visible, asked, given):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [slot.gpu for slot in slots(asked)] == given


@pytest.mark.parametrize(("visible", "hint"), [("4,5", "use 0 to 1"), ("4", "use 0"), ("", "use --devices cpu")])
def test_a_gpu_that_this_process_may_not_use_is_refused(monkeypatch, visible, hint):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(UserError, match=f"--devices 2: CUDA_VISIBLE_DEVICES={visible} shows . GPUs here; {hint}"):
        slots("2")


class Server:
    """What `Workers` needs of the link's server."""

    def __init__(self):
        self.inbox = queue.SimpleQueue()

    def open_worker(self, name, incarnation):
        return {"RFTUI_WORKER": name}


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Start workers whose program is a shell script."""
    made = []

    def start(script, devices="cpu:2"):
        program = tmp_path / "program"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o700)
        monkeypatch.setattr(hosts.sys, "executable", str(program))
        start.experiment = experiment = create(tmp_path, "e")
        made.append(Workers(experiment, Store.create(experiment.db), Server(), devices))
        return made[-1]

    yield start
    for each in made:
        each.kill()


def gone(found):
    """The next `Gone` in the inbox: worker, incarnation, status."""
    report = found._server.inbox.get(timeout=20)
    return report.worker, report.incarnation, report.messages[0].status


def test_the_end_of_a_process_comes_to_the_inbox_and_its_last_words_are_kept(started):
    found = started("echo started; echo 'RuntimeError: boom' >&2; exit 3", "cpu")
    found.start("cpu")
    assert gone(found) == ("cpu", 1, 3)
    assert found.last_words("cpu") == "RuntimeError: boom" and not found.alive()
    found.start("cpu")
    assert gone(found) == ("cpu", 2, 3)
    assert found.current("cpu", 2) and not found.current("cpu", 1)


def test_a_process_that_works_is_on_record_and_holds_a_lock_until_its_end(started):
    found = started("exec sleep 600")
    pids = [found.start(name) for name in found.slots]
    store, experiment = Store.read(started.experiment.db), started.experiment
    assert store.workers() == [(pid, birth(pid)) for pid in pids] and all(map(birth, pids))
    assert not experiment.workers_gone()
    found.kill()
    for _ in pids:
        gone(found)
    assert experiment.workers_gone()
    again = found.start("cpu1")
    assert [pid for pid, _ in store.workers()] == [pids[0], again]


def test_no_process_is_killed_twice(started, monkeypatch):
    """Its number may be another's by then."""
    found = started("exit 0", "cpu")
    found.start("cpu")
    gone(found)
    monkeypatch.setattr(hosts, "kill_group", pytest.fail)
    found.kill()


def test_a_process_that_cannot_be_made_is_told_in_one_line(started, monkeypatch):
    found = started("exit 0", "cpu")
    monkeypatch.setattr(hosts.sys, "executable", "/nowhere/python")
    with pytest.raises(
        UserError, match="worker cpu cannot be started: .* No such file or directory: '/nowhere/python'"
    ):
        found.start("cpu")
    assert started.experiment.workers_gone()


def test_a_worker_that_wrote_nothing_has_no_last_words(started):
    found = started("exit 0", "cpu")
    found.start("cpu")
    assert gone(found)[2] == 0 and found.last_words("cpu") == "it wrote nothing"


@pytest.mark.parametrize(("devices", "device", "visible"), [("cpu", "cpu", ""), ("3", "cuda", "3")])
def test_what_a_worker_is_told(started, monkeypatch, devices, device, visible):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = started(
        'echo "$*|$RFTUI_DEVICE|$CUDA_VISIBLE_DEVICES|$RFTUI_WORKER|$RFTUI_THREADS"; ps -o sid= -p $$', devices
    )
    (name,) = found.slots
    pid = found.start(name)
    gone(found)
    told, session = found.log(name).read_text().splitlines()
    assert told == f"-m rftui.training.worker|{device}|{visible}|{name}|{cores()[0]}"
    assert int(session) == pid, "a worker has a session of its own"


def test_cores_are_shared_out_and_never_none(started):
    found = started("echo $RFTUI_THREADS", "cpu:99")
    found.start("cpu7")
    gone(found)
    assert found.last_words("cpu7") == "1"


def test_the_end_waits_and_then_kills_the_whole_group(started, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    found = started(f"exec 3>{tmp_path}/pipe; sleep 600 & echo ready >&3; wait", "cpu")
    found.start("cpu")
    assert select.select([pipe], [], [], 20)[0] and os.read(pipe, 99) == b"ready\n"
    found.end(0.1)
    assert gone(found)[2] == -9 and not found.alive()
    assert select.select([pipe], [], [], 20)[0], "the child, which holds the pipe too, lives on"
    assert os.read(pipe, 99) == b""
    os.close(pipe)


def test_only_the_named_workers_are_killed(started):
    found = started("exec sleep 600")
    for name in found.slots:
        found.start(name)
    found.kill(["cpu1"])
    assert gone(found) == ("cpu1", 2, -9) and found.alive()
    found.kill()
    assert gone(found) == ("cpu0", 1, -9)
    assert not found.alive()


def test_a_worker_is_no_process_of_a_distributed_training(started, monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("TMPDIR", "/tmp/" + "x" * 100)
    monkeypatch.setenv("OF_THE_SCRIPT", "kept")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    told = "$WORLD_SIZE$RANK$MASTER_ADDR$TORCHELASTIC_RUN_ID|${#TMPDIR}|$OF_THE_SCRIPT|$CUDA_DEVICE_ORDER"
    found = started(f'echo "{told}"', "cpu")
    found.start("cpu")
    gone(found)
    dropped, tmp, script, order = found.last_words("cpu").split("|")
    assert (dropped, script, order) == ("", "kept", "PCI_BUS_ID") and int(tmp) < 60
    assert [notice.split(" (")[0].split(":")[0] for notice in found.notices] == [
        "Ignored in the environment",
        "TMPDIR is too long for sockets",
    ]


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("echo 'warnings.warn(' >&2; kill -9 $$", "killed by signal 9 (SIGKILL), perhaps out of memory"),
        ("kill -11 $$", "killed by signal 11 (SIGSEGV)"),
        ("echo 'ValueError: no' >&2; exit 1", "exit code 1: ValueError: no"),
    ],
)
def test_a_death_names_its_signal(started, script, how):
    found = started(script, "cpu")
    found.start("cpu")
    assert found.how_it_ended("cpu", gone(found)[2]) == how
