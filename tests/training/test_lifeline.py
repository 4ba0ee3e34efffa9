"""A worker's end, without a model: what ends it, what does not, and what goes with it."""

import os
import select
import signal
import subprocess
import sys

import pytest

from rftui.paths import create

BEGIN = """
import multiprocessing, os, signal, subprocess, sys, threading, time
from rftui.training import lifeline
lifeline.begin()
"""

PARENT = """
import os, subprocess, sys
environment = os.environ | {"RFTUI_SCHEDULER": str(os.getpid())}
worker = subprocess.Popen([sys.executable, *sys.argv[1:]], start_new_session=True, close_fds=False, env=environment)
print(worker.pid, flush=True)
worker.wait()
"""


class Pipe:
    """Held open by a process and its children; it ends with the last of them."""

    def __init__(self):
        self.out, self.end = os.pipe()
        os.set_inheritable(self.end, True)

    def started(self):
        os.close(self.end)

    def line(self):
        assert select.select([self.out], [], [], 60)[0], "nothing was said"
        return os.read(self.out, 999).decode()


@pytest.fixture
def experiment(tmp_path):
    return create(tmp_path, "e")


@pytest.fixture
def worker(experiment):
    """Start a worker that runs `code` and tells what it is asked to tell by `say`."""
    pipes, processes = [], []

    def start(code, parent=()):
        pipe = Pipe()
        pipes.append(pipe)
        say = f"def say(text): os.write({pipe.end}, str(text).encode())\n"
        with experiment.lock_worker() as lock:
            os.set_inheritable(lock.fileno(), True)
            process = subprocess.Popen(
                [sys.executable, *parent, "-c", BEGIN + say + code],
                env=os.environ | {"RFTUI_LOCK": str(lock.fileno()), "RFTUI_SCHEDULER": str(os.getpid())},
                stdout=subprocess.PIPE,
                start_new_session=True,
                close_fds=False,
            )
        processes.append(process)
        pipe.started()
        return process, pipe

    yield start
    for process in processes:
        process.kill()
        process.communicate()
    for pipe in pipes:
        os.close(pipe.out)


CHILDREN = {
    "forked": "multiprocessing.get_context('fork').Process(target=time.sleep, args=[600]).start()",
    "spawned": "multiprocessing.get_context('spawn').Process(target=time.sleep, args=[600]).start()",
    "a program": "subprocess.Popen(['sleep', '600'], close_fds=False)",
    "a child's child": "subprocess.Popen('sleep 600 & wait', shell=True, close_fds=False)",
}


@pytest.mark.parametrize("kind", CHILDREN)
def test_the_children_of_a_killed_worker_die_with_it(worker, experiment, kind):
    process, pipe = worker(CHILDREN[kind] + "\nsay('ready')\ntime.sleep(600)")
    assert pipe.line() == "ready" and not experiment.workers_gone()
    process.kill()
    assert pipe.line() == "", "somebody holds the pipe"
    assert experiment.workers_gone()


def test_a_childs_life_does_not_end_with_the_thread_that_made_it(worker):
    code = """
made = []
def make():
    made.append(multiprocessing.get_context("fork").Process(target=time.sleep, args=[600]))
    made[0].start()
thread = threading.Thread(target=make)
thread.start()
thread.join()
say(made[0].join(0.2) or made[0].exitcode)
"""
    assert worker(code)[1].line() == "None"


def test_a_forked_child_is_no_worker(worker, experiment):
    """It outlives its worker here, as one in a session of its own does."""
    code = "if os.fork() == 0:\n    os.setsid()\n    say('ready')\n    sys.stdin.read()\nos.wait()"
    process, pipe = worker(code)
    assert pipe.line() == "ready" and not experiment.workers_gone()
    process.kill()
    process.wait()
    assert experiment.workers_gone()


def test_the_files_of_a_childs_child_are_its_own(worker):
    code = """
if os.fork() == 0:
    files = [open(os.devnull) for _ in range(20)]  # among them the numbers that were closed in the child
    if os.fork() == 0:
        say("open" if all(os.fstat(file.fileno()) for file in files) else "")
        os._exit(0)
    os.wait()
    os._exit(0)
os.wait()
"""
    assert worker(code)[1].line() == "open"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_every_process_gets_does_not_end_a_worker(worker, number):
    code = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
say("ready")
signal.sigwait({signal.SIGUSR1})
say("still here")
time.sleep(600)
"""
    process, pipe = worker(code)
    assert pipe.line() == "ready"
    os.killpg(process.pid, number)
    process.send_signal(signal.SIGUSR1)
    assert pipe.line() == "still here"
    process.kill()
    assert pipe.line() == "", "its guard was ended by the signal"


def test_a_child_can_be_terminated(worker):
    code = """
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=[600])
child.start()
child.terminate()
child.join()
say(child.exitcode)
"""
    assert worker(code)[1].line() == "-15"


def test_a_worker_that_ends_leaves_nothing(worker):
    process, pipe = worker("say('ready')")
    assert pipe.line() == "ready" and process.wait() == 0
    assert pipe.line() == ""


def test_a_worker_ends_with_its_scheduler(worker, experiment):
    code = "lifeline._GRACE = 0\nlifeline.end_with_scheduler(threading.Event())\ntime.sleep(600)"
    process, pipe = worker(code, parent=["-c", PARENT])
    pid = int(process.stdout.readline())
    assert os.getsid(pid) == pid
    process.kill()
    assert pipe.line() == "" and experiment.workers_gone()


def test_a_worker_ends_when_its_link_is_lost(worker):
    code = """
lost = threading.Event()
lifeline._GRACE = 0
lifeline.end_with_scheduler(lost)
say("ready")
lost.set()
time.sleep(600)
"""
    process, pipe = worker(code)
    assert pipe.line() == "ready" and pipe.line() == ""
    assert process.wait() == 1
