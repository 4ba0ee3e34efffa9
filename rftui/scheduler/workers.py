"""The workers: starting them on their devices, the check of the configs, first turns, deaths."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from rftui import messages
from rftui.errors import INTERRUPTED, UserError
from rftui.link_server import Server, short_enough, socket_place
from rftui.paths import ExperimentDir
from rftui.scheduler.devices import slots
from rftui.scheduler.environment import cores, inherited, threads
from rftui.scheduler.hosts import LocalHost, WorkerHost
from rftui.scheduler.recovery import OrphanWorkers, take_up
from rftui.scheduler.registry import Registry
from rftui.scheduler.run_reports import RunReports
from rftui.scheduler.turns import Turns
from rftui.store import Store


class Workers:
    """A worker for each slot of `devices`; when one ends, the server's inbox is told (a `Gone`). `notices`: in what
    a worker's environment is not this process's. They run on `host`, this machine unless told."""

    def __init__(
        self, experiment: ExperimentDir, store: Store, server: Server, devices: str, host: WorkerHost | None = None
    ) -> None:
        self.slots = {slot.name: slot for slot in slots(devices)}
        short = os.environ.get("TMPDIR", "")
        variables, self.notices = inherited(os.environ, socket_place() if short and not short_enough(short) else None)
        self._host = host or LocalHost(experiment, variables)
        self._store = store
        self._server = server
        self._incarnations: dict[str, int] = {}

    def start(self, name: str) -> int:
        """Start (again) the worker of a slot; returns its pid. Raises UserError where there can be no process."""
        slot = self.slots[name]
        incarnation = self._store.new_incarnation()
        count, _ = threads(len(self.slots), cores()[0], os.environ)
        environment = self._server.open_worker(name, incarnation) | {
            "RFTUI_DEVICE": "cpu" if slot.gpu is None else "cuda",
            "RFTUI_THREADS": str(count),
            "OMP_NUM_THREADS": str(count),
            "CUDA_DEVICE_ORDER": os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),  # as nvidia-smi counts
            "CUDA_VISIBLE_DEVICES": slot.gpu or "",
        }

        def ended(status: int) -> None:
            self._server.inbox.put(messages.Report(name, incarnation, [messages.Gone(status)]))

        try:
            process = self._host.start(name, environment, ended)
        except OSError as error:
            raise UserError(f"worker {name} cannot be started: {error}", code=INTERRUPTED) from error
        self._incarnations[name] = incarnation
        self._store.keep_worker(name, process.pid, process.birth)
        return process.pid

    def current(self, name: str, incarnation: int) -> bool:
        """Whether a report comes from the present incarnation of the worker."""
        return self._incarnations.get(name) == incarnation

    def alive(self) -> bool:
        return any(self._host.running(name) for name in self._incarnations)

    def log(self, name: str) -> Path:
        return self._host.log(name)

    def last_words(self, name: str) -> str:
        """The last line that a worker wrote."""
        try:
            lines = self.log(name).read_text(errors="replace").split("\n")
        except OSError:
            lines = []
        return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")

    def how_it_ended(self, name: str, status: int) -> str:
        """A worker's end in words; `status` as `subprocess` gives it."""
        if status < 0:
            try:
                called = f"signal {-status} ({signal.Signals(-status).name})"
            except ValueError:
                called = f"signal {-status}"
            return f"killed by {called}" + (", perhaps out of memory" if status == -signal.SIGKILL else "")
        return f"exit code {status}: {self.last_words(name)}"

    def end(self, patience: float) -> None:
        """Wait up to `patience` seconds for the workers to end, then kill what is left."""
        until = time.monotonic() + patience
        for name in self._incarnations:
            if self._host.running(name) and not self._host.wait(name, max(0.0, until - time.monotonic())):
                self._host.kill(name)
                self._host.wait(name, patience)

    def kill(self, names: Collection[str] | None = None) -> None:
        """Kill the workers called so; None: all."""
        for name in self._incarnations:
            if names is None or name in names:
                self._host.kill(name)


class Crew:
    """`begun`: the workers were started. `faults`: what is wrong with the configs of `fit`, a line each; `broken`: why
    no worker can be started. Either means the end."""

    def __init__(self, registry: Registry, server: Server, workers: Workers, turns: Turns, fit: int | None) -> None:
        self.begun = False
        self.faults: list[str] = []
        self.broken = ""
        self._orphans = OrphanWorkers(registry.experiment, registry.store)
        self._server = server
        self._registry = registry
        self._workers = workers
        self._turns = turns
        self._reports = RunReports(registry, turns)
        self._fit = fit
        self._early_deaths: Counter[str] = Counter()
        self._checker: str | None = None  # the worker that describes the knobs and checks the configs

    def begin(self) -> None:
        """Take the experiment up and start the workers, once nothing of an earlier scheduler lives. Raises
        UserError."""
        if not self._orphans.gone():
            self._registry.set_info("loading", "Waiting for old workers to exit")
            return
        self.begun = True
        for notice in self._workers.notices:
            self._registry.log(notice, None, "notice")
        self._registry.set_info("loading", "Loading torch and TRL")
        for name in self._workers.slots:
            self._registry.devices[name].pid = self._workers.start(name)
            self._registry.touch_device(name)
        take_up(self._registry, self._turns)

    def hear(self, worker: str, report: Any) -> None:
        """What a worker, or its watcher, says."""
        match report:
            case messages.Ready(pid):
                self._ready(worker, pid)
            case messages.Schema(fields):
                self._registry.set_schema(fields)
            case messages.Checked():
                self._checked(report)
            case messages.Gauge(used, total, load):
                device = self._registry.devices[worker]
                device.memory_used, device.memory_total, device.load = used, total, load
                self._registry.touch_device(worker, urgent=False)
            case messages.Note(text, run, level):
                self._registry.log(text, self._registry.runs.get(run or 0), level)
            case messages.Gone(status):
                self._gone(worker, status)
            case _:
                self._reports.take(worker, report)

    def recover(self, worker: str, report: Any) -> None:
        """A report could not be taken in. Raises RuntimeError where nothing can make up for it."""
        match report:
            case messages.Gauge() | messages.Note():
                pass
            case messages.Ready() | messages.Schema() | messages.Checked():
                self._workers.kill([worker])  # the next one says it again
            case messages.WeightsReady(_, clones):
                for clone in clones:
                    self._turns.snapshots.take_up(self._registry.runs[clone])
            case messages.Gone():
                raise RuntimeError(f"the end of worker {worker} could not be taken in")
            case _:
                self._turns.recover(report)

    def _ready(self, worker: str, pid: int) -> None:
        device = self._registry.devices[worker]
        device.state, device.pid = "ready", pid
        self._registry.touch_device(worker)
        if self._checker is None:
            self._ask(worker)
        if self._fit is None:
            self._open_turns()

    def _ask(self, worker: str) -> None:
        """Have one worker describe the knobs and check the configs."""
        self._checker = worker
        if not self._registry.schema:
            self._server.task(worker, messages.Describe(sorted({run.algo for run in self._registry.runs.values()})))
        if self._fit is not None and not self._turns.open:
            runs = [run for run in self._registry.runs.values() if run.fit == self._fit]
            self._registry.set_info("loading", "Checking the configs")
            self._server.task(worker, messages.Check(self._fit, runs))

    def _checked(self, answer: messages.Checked) -> None:
        """Turns are given unless a config has faults."""
        for run, text in answer.notices:
            self._registry.log(text, self._registry.runs.get(run or 0), "notice")
        for run, text in answer.faults:
            named = self._registry.runs.get(run or 0)
            self.faults.append(f"run {named.id} {named.name}: {text}" if named else text)
            self._registry.log(text, named, "error")
        if not self.faults:
            self._open_turns()

    def _gone(self, worker: str, status: int) -> None:
        """A worker died: its runs go back, and it is started again unless it cannot be."""
        device = self._registry.devices[worker]
        early = device.state != "ready" or not self._turns.open
        self._early_deaths[worker] = self._early_deaths[worker] + 1 if early else 0
        words = self._workers.how_it_ended(worker, status)
        device.state = "lost"
        self._registry.touch_device(worker)
        self._turns.lost(worker)
        if self._checker == worker:
            self._checker = None
            others = [name for name, other in self._registry.devices.items() if other.state == "ready"]
            if others:
                self._ask(others[0])
        if self._early_deaths[worker] > 1:
            self._leave_out(worker, words)
            return
        self._registry.log(f"worker {worker} died ({words}) and is started again", None, "error")
        device.pid, device.state = self._workers.start(worker), "starting"

    def _leave_out(self, worker: str, words: str) -> None:
        """A worker that cannot start does not end the training on the other devices."""
        text = f"worker {worker} could not start: {words}; see {self._workers.log(worker)}"
        if all(device.state == "lost" for device in self._registry.devices.values()):
            self.broken = text
        else:
            text += "; the other workers go on without it"
        self._registry.log(text, None, "error")

    def _open_turns(self) -> None:
        self._turns.open = True
        self._registry.set_info("running")
