"""The experiment of the campaign: four runs that differ in everything on two workers, a clone, and its processes."""

import fcntl
import os
import re
import signal
import sqlite3
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from rftui.errors import UserError
from rftui.launching import attach
from rftui.link import LinkLost
from rftui.messages import Command, Reply, Snapshot
from rftui.paths import ExperimentDir
from rftui.runs import Run
from rftui.store import Store
from tests.e2e.program import TINYCHAT, Program

SCRIPT = """
from rftui import Experiment
from rftui.automl import List, RFGridSearch, RFLoraConfig, RFModelConfig, RFSFTConfig

rows = [
    {"prompt": [{"role": "user", "content": f"What is {n} plus {n % 7}?"}],
     "completion": [{"role": "assistant", "content": f"It is {n + n % 7}."}]}
    for n in range(97)
]


def config(peft, **args):
    common = {"num_train_epochs": 2, "logging_steps": 1, "max_length": 48, "gradient_checkpointing": False}
    return RFModelConfig(
        model_name=MODEL,
        peft_config=RFLoraConfig(target_modules=["q_proj", "v_proj"], **peft),
        training_args=RFSFTConfig(**common | args),
    )


configs = List([
    config({"r": 4, "lora_dropout": 0.05}, learning_rate=5e-3, per_device_train_batch_size=4, num_train_epochs=1,
           save_strategy="chunk"),
    config({"r": 8, "lora_dropout": 0.1}, learning_rate=1e-3, per_device_train_batch_size=2, warmup_steps=5,
           gradient_accumulation_steps=3, dataloader_num_workers=1, save_strategy="chunk"),
    config({"r": 16}, learning_rate=2e-3, per_device_train_batch_size=8, dataloader_num_workers=1),
    config({"r": 8, "lora_dropout": 0.2}, learning_rate=8e-4, per_device_train_batch_size=3, logging_steps=2,
           gradient_accumulation_steps=4),
])
experiment = Experiment(experiment_name="faults")
experiment.run_fit(RFGridSearch(configs), None, rows, rows[:6], num_chunks=3, seed=42)
experiment.end()
"""
"""Runs 1 and 2 are saved at each chunk end, runs 2 and 3 have a DataLoader child."""

RUNS, STEPS = 4, 103
"""The script's runs and the optimizer steps of all of them together."""

STOPPED_RUN = 4
"""The run that is stopped and resumed on the way."""

PARENT = 1
CLONE = "second epoch"
CHANGES = {"training_args.num_train_epochs": 2, "training_args.learning_rate": 1e-3}
"""Run 1 ends after its first epoch; its warm clone then trains the second, on the same rows whenever it is made."""

LOADING_RUNS = (2, 3)
"""The runs that have a DataLoader child."""


@dataclass
class Front:
    """What a user started: `rftui` on a pty (`viewer`), or without a screen."""

    process: subprocess.Popen[bytes]
    viewer: bool
    log: Path
    terminal: int | None = None

    def ended(self) -> bool:
        return self.process.poll() is not None

    def quit(self) -> None:
        """Press q."""
        if self.terminal is not None:
            try:
                os.write(self.terminal, b"q")
            except OSError:
                pass  # it has left already


class Home(Program):
    """A home with the experiment of a script (which calls it "faults", and its model MODEL), as `rftui` leaves it."""

    def __init__(self, folder: Path, script: str = SCRIPT, devices: str = "cpu:2") -> None:
        super().__init__(folder)
        self.script.write_text(script.replace("MODEL", repr(str(TINYCHAT))))
        self.runtime = folder / "s"  # where the sockets are made, to see what is left there
        self.runtime.mkdir()
        self.environment |= {"XDG_RUNTIME_DIR": str(self.runtime), "RFTUI_DEVICES": devices}
        self.experiment = ExperimentDir(self.home / "faults")
        self._fronts = 0

    # ------------------------------------------------------------ starting and asking

    def front(self, viewer: bool) -> Front:
        """Run the script, or open the experiment where it is there already."""
        self._fronts += 1
        words = ["open", "faults"] if self.experiment.db.exists() else ["run", str(self.script)]
        command = self.command(*words, *([] if viewer else ["--headless"]))
        log = self.folder / f"front-{self._fronts}.txt"
        if not viewer:
            with open(log, "wb") as output:
                process = subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
            return Front(process, viewer, log)
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        threading.Thread(target=_drain, args=(ours, log), daemon=True).start()
        return Front(process, viewer, log, ours)

    def ask(self, command: Command) -> Reply | None:
        """The scheduler's answer; None where it ended, or has not begun, before it gave one."""

        def answer(message: object) -> bool:
            return isinstance(message, Reply) and message.command == command.id

        return self._hear(answer, command)  # type: ignore[return-value]

    def knobs_are_known(self) -> bool:
        """Whether the scheduler can check a clone yet."""
        snapshot = self._hear(lambda message: isinstance(message, Snapshot))
        return bool(getattr(snapshot, "schema", None))

    def _hear(self, wanted: Callable[[object], bool], command: Command | None = None) -> object | None:
        """Attach as a viewer, send the command, and leave with the first message that is wanted."""
        try:
            viewer = attach(self.experiment).poll()
            if viewer is None:
                return None
            try:
                if command:
                    viewer.send(command)
                end = time.monotonic() + 30
                while time.monotonic() < end:
                    if found := next(filter(wanted, viewer.poll(0.5)), None):
                        return found
            finally:
                viewer.close()
        except LinkLost:
            pass
        return None

    # ------------------------------------------------------------ what can be seen

    def runs(self) -> list[Run]:
        """As the store has them; none before it is there."""
        if not self.experiment.db.exists():
            return []
        try:
            with closing(Store.read(self.experiment.db)) as store:
                return store.runs()
        except (UserError, sqlite3.OperationalError) as error:
            if "no such table" in str(error):  # it is being made
                return []
            raise

    def turn(self, worker: str) -> int | None:
        """The run whose turn on the worker has begun and not ended."""
        with closing(Store.read(self.experiment.db)) as store:
            turns = [turn for turn in store.turns() if turn["device"] == worker]
        return turns[-1]["run"] if turns and turns[-1]["ended"] is None else None

    def trained_since(self, worker: str, when: float) -> bool:
        """Whether the worker had a turn since the time `when`."""
        with closing(Store.read(self.experiment.db)) as store:
            return any(turn["device"] == worker and turn["started"] > when for turn in store.turns())

    def saving(self) -> bool:
        """Whether a checkpoint is being written."""
        return any(self.experiment.path.glob("runs/*/checkpoints/.step-*"))

    def redone(self) -> int:
        """Steps that were trained again, as the event log tells them."""
        with closing(sqlite3.connect(self.experiment.db)) as db:
            texts = [text for (text,) in db.execute("SELECT text FROM events WHERE text LIKE '%retraining%'")]
        found = [re.search(r"retraining (\d+) step", text) for text in texts]
        return sum(int(match[1]) for match in found if match)

    def roles(self) -> dict[str, list[psutil.Process]]:
        """The processes of this home by what they are: front, scheduler, worker, loader, tracker, other."""
        roles: dict[str, list[psutil.Process]] = {}
        for process in self.processes():
            try:
                role = self._role(process)
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue
            roles.setdefault(role, []).append(process)
        return roles

    def _role(self, process: psutil.Process) -> str:
        words = process.cmdline()
        if "rftui.training.worker" in words:
            return "worker" if os.getsid(process.pid) == process.pid else "loader"
        if "rftui.tracking" in words:
            return "tracker"
        if "rftui.cli" in words:
            return "front"
        return "scheduler" if "rftui.scheduler" in words or str(self.script) in words else "other"


def worker_name(process: psutil.Process) -> str:
    return process.environ()["RFTUI_WORKER"]


def strike(process: psutil.Process, number: int = signal.SIGKILL) -> bool:
    """Send it a signal; False where it has ended already."""
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


def _drain(terminal: int, log: Path) -> None:
    """Take what a viewer draws, or it would come to a halt."""
    with open(log, "wb") as file:
        try:
            while taken := os.read(terminal, 65536):
                file.write(taken)
        except OSError:  # the viewer has closed its end
            pass
    os.close(terminal)
