"""The processes that faults are injected into, without models: a scheduler with fake workers, commands from a shell,
a tracker, a screen. Each is forked from this process, which has imported everything."""

import os
import pty
import select
import shutil
import sqlite3
import sys
import threading
import time
import types
from contextlib import closing
from pathlib import Path

import fake_worker
from fake_worker import FakeHost, FakeWorker, World

import rftui.cli  # noqa: F401
import rftui.tui.app  # noqa: F401
from rftui import client, launching, link_server, messages
from rftui.errors import UserError
from rftui.launching import attach
from rftui.link import LinkLost
from rftui.messages import Resume
from rftui.paths import ExperimentDir, create
from rftui.runs import DONE, FAILED, STOPPED, Run
from rftui.scheduler import ending, loop
from rftui.store import Store
from rftui.tracking import __main__ as tracking
from rftui.tracking import service
from tests.faults.injector import Fault, Injector
from tests.faults.paced import PacedWorker

CHUNKS, PER, RUNS = 3, 3, 3
CLONE = "clone"

MODULES = {
    "scheduler": [
        *(f"rftui.scheduler.{name}" for name in (
            "cloning control ending headless loop placement pruning recovery registry retries run_reports turns "
            "weight_snapshots workers").split()),
        "rftui.checkpoints", "rftui.link", "rftui.link_server", "rftui.store",
    ],
    "shell": [
        *("rftui.client", "rftui.commands.ops", "rftui.commands.listing", "rftui.launching", "rftui.link"),
        "rftui.views",
    ],
    "tracker": ["rftui.tracking.ledger", "rftui.tracking.sender", "rftui.tracking.service", "rftui.tracking.trackers"],
    "screen": ["rftui.tui.app", "rftui.tui.board", "rftui.link", "rftui.launching"],
}  # fmt: skip
"""Kind of process -> the modules of which every function is a place."""

GUARDS = {
    "scheduler": (
        "loop.run",
        "Scheduler.serve",
        "Scheduler._loop",
        "Scheduler.close",
        "Scheduler._attempt",
        "Ending.give_up",
        "Ending.give_up_broken",
        "Ending.give_up_unwritten",
    ),
    "tracker": ("Service._work",),
    "shell": (),
    "screen": ("app.run", "app._end_with_the_terminal"),
}
"""Functions that catch what others raise: an exception that begins in them has nobody above."""


class NoTracking:
    def wake(self): ...

    def notices(self):
        return []

    def close(self, timeout):
        return True


def injected(kind: str, faults: list[Fault], log: Path) -> Injector:
    injector = Injector([fault for fault in faults if fault.process == kind], log)
    injector.functions(MODULES[kind], GUARDS[kind])
    injector.operations()
    return injector


def counted(injector: Injector, counts: Path | None) -> None:
    """Leave how often each place came."""
    if counts:
        counts.write_text("\n".join(f"{count} {place}" for place, count in injector.counts.items()))


def template(home: Path) -> ExperimentDir:
    """An experiment of one fit with three queued runs."""
    experiment = create(home, "exp")
    with closing(Store.create(experiment.db)) as store:
        store.add_fit(num_chunks=CHUNKS, chunk_size=None, seed=1, rows=60, eval_rows=0)
        for number in range(RUNS):
            config = {"training_args": {"learning_rate": 1e-4}}
            store.add_run(Run(0, f"r{number + 1}", config_index=number, config=config))
    return experiment


def scheduler(
    experiment: ExperimentDir, fit: int | None, faults: list[Fault], log: Path, counts: Path | None = None
) -> int:
    """A scheduler with two fake workers and no tracking, that stays for viewers; where there are no faults and it is
    opened again, what is stopped is resumed."""
    world = World()
    world.chunks, world.per, world.save_chunks = CHUNKS, PER, True
    fake_worker.FakeWorker = PacedWorker
    fake_worker.WorkerLink = lambda *address: address
    loop.start_tracking = lambda experiment: NoTracking()
    loop.HOUSEKEEPING, ending.HOUSEKEEPING, ending._LINGER, link_server._LAST_WORDS = 0.1, 0.1, 0.5, 0.1
    os.environ["XDG_RUNTIME_DIR"] = str(experiment.home)
    before = set(threading.enumerate())
    injector = injected("scheduler", faults, log)
    if fit is None and not faults:
        threading.Thread(target=resume_all, args=(experiment,), daemon=True).start()
    try:
        code = loop.run(experiment, fit, devices="cpu:2", viewer=True, host=FakeHost(world))
    except UserError as fault:
        for line in fault.lines:
            print(f"rftui: {line}", file=sys.stderr)
        code = fault.code
    counted(injector, counts)
    left = [thread for thread in set(threading.enumerate()) - before if isinstance(thread, FakeWorker)]
    for thread in left:
        thread.join(5.0)
        if thread.is_alive():
            print("LEFT a worker")
    return code


def resume_all(experiment: ExperimentDir) -> None:
    """As a user would who opens it again."""
    while not experiment.alive():
        time.sleep(0.005)
    viewer = attach(experiment).wait(30)
    asked: set[str] = set()
    answered: set[str] = set()
    runs: dict[int, Run] = {}
    try:
        while True:
            for message in viewer.poll(0.2):
                if isinstance(message, messages.Reply):
                    answered.add(message.command)
                else:
                    runs |= {run.id: run for run in message.runs}
            for run in runs.values():
                if run.state in (STOPPED, FAILED) and str(run.id) not in asked:
                    asked.add(str(run.id))
                    viewer.send(Resume(run.id, id=str(run.id)))
            if runs and not any(run.active for run in runs.values()) and (answered >= asked):
                viewer.close()
                return
    except LinkLost:
        pass


def shell(experiment: ExperimentDir, faults: list[Fault], log: Path, counts: Path | None = None) -> int:
    """Stop a run, resume it, clone one warm, and list them, each with a command. Returns 0; each prints its code."""

    launching.reopen = _refuse
    client._PATIENCE = 5.0
    while not experiment.link.exists() and not _over(experiment):
        time.sleep(0.002)
    injector = injected("shell", faults, log)
    home = ["--home", str(experiment.home)]
    change = ["--set", "training_args.learning_rate=2e-4", "--warm", "--name", CLONE]
    for words in (["stop", "exp", "2"], ["resume", "exp", "2"], ["clone", "exp", "1", *change], ["show", "exp"]):
        if words[0] == "resume":
            _await_stop(experiment, 2)
        print(f"{words[0]}: {rftui.cli.main([*words, *home])}")
    counted(injector, counts)
    return 0


def _refuse(*_: object) -> None:
    """What opens the experiment again is the fuzz."""
    raise UserError("no scheduler runs", code=1)


def _await_stop(experiment: ExperimentDir, run: int) -> None:
    """Until the run has taken the step at which it stops, or is done."""
    with closing(sqlite3.connect(experiment.db)) as db:
        while not _over(experiment):
            (state,) = db.execute("SELECT json_extract(data, '$.state') FROM runs WHERE id = ?", (run,)).fetchone()
            if state in (STOPPED, DONE):
                return
            time.sleep(0.01)


def _over(experiment: ExperimentDir) -> bool:
    return (experiment.home / "over").exists()


class Tracked:
    """Stands in for MLflow: a file with a line for each thing that was sent."""

    def __init__(self, uri: str, experiment: ExperimentDir) -> None:
        self._file = experiment.home / "tracked.txt"

    def _note(self, *what: object) -> None:
        with self._file.open("a") as file:
            file.write(" ".join(map(str, what)) + "\n")

    batch = 7

    def open(self) -> None: ...
    def lasting(self, error): ...
    def explain(self, error):
        return f"fails: {error}"

    def log_params(self, tracker_run, params): ...
    def log_changes(self, tracker_run, changes): ...
    def log_artifacts(self, tracker_run, run): ...

    def create(self, run):
        return str(run.id)

    def log_points(self, tracker_run, points):
        for point in points:
            self._note("point", tracker_run, point.metric, point.step)

    def last_step(self, tracker_run, metric):
        lines = self._file.read_text().split("\n") if self._file.exists() else []
        steps = [int(line.split()[3]) for line in lines if line.startswith(f"point {tracker_run} {metric} ")]
        return max(steps, default=-1)

    def set_status(self, tracker_run, status):
        self._note("status", tracker_run, status)

    def delete(self, tracker_run):
        self._note("deleted", tracker_run)


def tracker(experiment: ExperimentDir, faults: list[Fault], log: Path, counts: Path | None = None) -> int:
    """The tracking process of an experiment that has ended, sending to a file."""
    fake = types.ModuleType("rftui.tracking.mlflow")
    fake.connect = Tracked
    sys.modules[fake.__name__] = fake
    service._PAUSE = 0.02
    ours, theirs = os.pipe()
    os.dup2(ours, 0)
    os.write(theirs, b"\n")
    os.close(theirs)
    injector = injected("tracker", faults, log)
    leave = os._exit
    os._exit = lambda code: (counted(injector, counts), leave(code))
    return tracking.main([str(experiment.path)])


def screen(experiment: ExperimentDir, faults: list[Fault], log: Path, counts: Path | None = None) -> int:
    """`rftui open` on a terminal, which is left with q after a while."""
    output = os.dup(1)
    pid, terminal = pty.fork()
    if pid:
        due, left, text = time.monotonic() + 6, 0, b""  # its user leaves then, or when the scheduler has ended
        while True:
            ready, _, _ = select.select([terminal], [], [], 0.3)
            try:
                taken = os.read(terminal, 65536) if ready else b""
                if ready and not taken:
                    break
                text += taken
                if time.monotonic() >= due or (_over(experiment) and not left):
                    left = os.write(terminal, b"q")
                    due = time.monotonic() + 1
            except OSError:
                break
        os.write(output, text.replace(b"\r", b""))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.environ |= {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode) for number, mode in ((0, "r"), (1, "w"), (2, "w")))
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    launching.reopen = _refuse
    injector = injected("screen", faults, log)
    code = rftui.cli.main(["open", "exp", "--home", str(experiment.home)])
    counted(injector, counts)
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)


def copy(experiment: ExperimentDir, home: Path) -> ExperimentDir:
    home.mkdir(parents=True)
    shutil.copytree(experiment.path, home / "exp")
    return ExperimentDir(home / "exp")
