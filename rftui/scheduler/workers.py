"""The worker processes: which devices there are, starting, watching and ending."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from rftui.errors import INTERRUPTED, UserError
from rftui.link_server import Server, short_enough, socket_place
from rftui.messages import Gone, Report
from rftui.paths import ExperimentDir
from rftui.scheduler.environment import cores, inherited, threads
from rftui.scheduler.recovery import birth, kill_group
from rftui.store import Store


@dataclass(frozen=True)
class WorkerSlot:
    """A device that one worker gets: its name in every view, and the GPU's number or None for a CPU."""

    name: str
    gpu: str | None


def slots(devices: str) -> list[WorkerSlot]:
    """The devices of "auto", "cpu", "cpu:N" or "0,1,...". auto is every GPU, else one CPU. Raises UserError."""
    if devices == "auto":
        gpus = _gpus()
        return [WorkerSlot(f"gpu{gpu}", gpu) for gpu in gpus] or [WorkerSlot("cpu", None)]
    if devices == "cpu":
        return [WorkerSlot("cpu", None)]
    if match := re.fullmatch(r"cpu:([1-9]\d?)", devices):
        return [WorkerSlot(f"cpu{number}", None) for number in range(int(match[1]))]
    if re.fullmatch(r"\d+(,\d+)*", devices):
        return [WorkerSlot(f"gpu{gpu}", _visible(int(gpu))) for gpu in dict.fromkeys(devices.split(","))]
    raise UserError(f"devices {devices!r}: say auto, cpu, cpu:N (N workers on this CPU) or GPU numbers such as 0,1")


def _visible(index: int) -> str:
    """The GPU of number `index` as CUDA_VISIBLE_DEVICES calls it: where that is set already, the numbers count the
    GPUs that it names. Raises UserError."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") is None:
        return str(index)
    gpus = _gpus()
    if index >= len(gpus):
        given = os.environ["CUDA_VISIBLE_DEVICES"]
        numbers = f"use 0 to {len(gpus) - 1}" if len(gpus) > 1 else "use 0" if gpus else "use --devices cpu"
        raise UserError(f"--devices {index}: CUDA_VISIBLE_DEVICES={given} shows {len(gpus)} GPUs here; {numbers}")
    return gpus[index]


def _gpus() -> list[str]:
    """The GPUs that this process may use, found without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [gpu.strip() for gpu in visible.split(",") if gpu.strip() not in ("", "-1")]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return re.findall(r"^GPU (\d+):", listed, re.MULTILINE)


class Workers:
    """Starts a worker for each slot, and tells the server's inbox (a `Gone`) when a process ends. `notices`: in what
    a worker's environment is not this process's."""

    def __init__(self, experiment: ExperimentDir, store: Store, server: Server, devices: str) -> None:
        self.slots = {slot.name: slot for slot in slots(devices)}
        short = os.environ.get("TMPDIR", "")
        self._inherited, self.notices = inherited(
            os.environ, socket_place() if short and not short_enough(short) else None
        )
        self._experiment = experiment
        self._store = store
        self._server = server
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._incarnations: dict[str, int] = {}

    def start(self, name: str) -> int:
        """Start (again) the worker of a slot; returns its pid. Raises UserError where there can be no process."""
        slot = self.slots[name]
        incarnation = self._store.new_incarnation()
        count, _ = threads(len(self.slots), cores()[0], os.environ)
        environment = self._server.open_worker(name, incarnation) | {
            "RFTUI_SCHEDULER": str(os.getpid()),
            "RFTUI_DEVICE": "cpu" if slot.gpu is None else "cuda",
            "RFTUI_THREADS": str(count),
            "OMP_NUM_THREADS": str(count),
            "CUDA_DEVICE_ORDER": os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),  # as nvidia-smi counts
            "CUDA_VISIBLE_DEVICES": slot.gpu or "",
        }
        try:
            process = self._spawn(name, environment)
        except OSError as error:
            raise UserError(f"worker {name} cannot be started: {error}", code=INTERRUPTED) from error
        self._processes[name], self._incarnations[name] = process, incarnation
        threading.Thread(target=self._watch, args=(name, incarnation, process), daemon=True).start()
        self._store.keep_worker(name, process.pid, birth(process.pid))
        return process.pid

    def _spawn(self, name: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with open(self.log(name), "ab") as log, self._experiment.lock_worker() as lock:
            return subprocess.Popen(
                [sys.executable, "-m", "rftui.training.worker"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._inherited | environment | {"RFTUI_LOCK": str(lock.fileno())},
                pass_fds=[lock.fileno()],  # from before its first moment to its last
                start_new_session=True,
            )

    def current(self, name: str, incarnation: int) -> bool:
        """Whether a report comes from the present incarnation of the worker."""
        return self._incarnations.get(name) == incarnation

    def alive(self) -> bool:
        return any(process.poll() is None for process in self._processes.values())

    def log(self, name: str) -> Path:
        return self._experiment.logs / f"worker-{name}.txt"

    def last_words(self, name: str) -> str:
        """The last line that a worker wrote."""
        lines = self.log(name).read_text(errors="replace").split("\n")
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
        """Wait up to `patience` seconds for the processes to end, then kill what is left."""
        until = time.monotonic() + patience
        for process in self._processes.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._kill(process)
                process.wait()

    def kill(self, names: Collection[str] | None = None) -> None:
        """Kill the workers called so; None: all."""
        for name, process in self._processes.items():
            if names is None or name in names:
                self._kill(process)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:  # else its number may be another's
            kill_group(process.pid)

    def _watch(self, name: str, incarnation: int, process: subprocess.Popen[bytes]) -> None:
        self._server.inbox.put(Report(name, incarnation, [Gone(process.wait())]))
