"""Runs the real program on a tiny training, as a user would."""

import io
import json
import os
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import psutil

from rftui.cli import main

ROOT = Path(__file__).parents[2]
TINYCHAT = ROOT / "sample_experiments" / "tinychat"
RFTUI = [sys.executable, "-m", "rftui.cli"]

SCRIPT = """
import json, sys
from rftui import Experiment
from rftui.automl import List, RFGridSearch, RFLoraConfig, RFModelConfig, RFSFTConfig

count, batch = int(sys.argv[1]), int(sys.argv[2])
rows = [
    {"prompt": [{"role": "user", "content": f"What is {n} plus {n % 7}?"}],
     "completion": [{"role": "assistant", "content": f"It is {n + n % 7}."}]}
    for n in range(count)
]
create_model = None
configs = RFModelConfig(
    model_name=MODEL,
    peft_config=RFLoraConfig(r=List([4, 8]), lora_alpha=16, target_modules=["q_proj", "v_proj"]),
    training_args=RFSFTConfig(
        learning_rate=5e-3, lr_scheduler_type="constant", num_train_epochs=1, per_device_train_batch_size=batch,
        max_length=48, logging_steps=1, gradient_checkpointing=False,
    ),
)
experiment = Experiment(experiment_name="tiny")
experiment.run_fit(RFGridSearch(configs), create_model, rows, rows[:6], num_chunks=3, seed=42)
experiment.end()
"""
"""Two runs of one epoch over so many rows, in batches of so many: its arguments."""

LONG = (96, 1)
"""Arguments of the script for runs of 96 steps: long enough to be caught while they train."""


class Program:
    """The program with a home and a script of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.script = folder / "script.py"
        self.script.write_text(SCRIPT.replace("MODEL", repr(str(TINYCHAT))))
        # pytest-xdist's workers have a size of a terminal in their environment, which is not that of ours.
        ours = ("RFTUI_HOME", "RFTUI_DEVICES", "MLFLOW_TRACKING_URI", "PYTHONPATH", "COLUMNS", "LINES")
        self.environment = {name: value for name, value in os.environ.items() if name not in ours}
        self.environment |= {"OMP_NUM_THREADS": "1", "TERM": "xterm-256color", "HF_HUB_OFFLINE": "1"}
        self.environment |= {"PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}

    def edit(self, before: str, after: str) -> None:
        """Change a text that stands once in the script."""
        text = self.script.read_text()
        assert text.count(before) == 1, before
        self.script.write_text(text.replace(before, after))

    def command(self, *arguments: object) -> list[str]:
        verb, *rest = map(str, arguments)
        return [*RFTUI, verb, "--home", str(self.home), *rest]

    def call(self, *arguments: object, code: int = 0) -> str:
        """What a command printed; its exit code must be `code`."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=300,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def show(self, *run: object) -> dict:
        """What `rftui show` prints as JSON. It runs in this process: asked over and over, processes of its own would
        take the cores from the training that is waited for."""
        with redirect_stdout(io.StringIO()) as printed:
            code = main(self.command("show", "tiny", *run, "--json")[len(RFTUI) :])
        assert code == 0, printed.getvalue()
        return json.loads(printed.getvalue())

    def adapter(self, run: int) -> bytes:
        """The weights that a finished run left."""
        return (Path(self.show(run)["final"]) / "adapter_model.safetensors").read_bytes()

    def until(self, holds, patience: float = 240.0):
        """What `holds()` gives once it gives something true."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            try:
                if found := holds():
                    return found
            except AssertionError:
                pass  # the experiment is not there yet
            time.sleep(0.05)
        raise AssertionError("it did not come about")

    def processes(self) -> list[psutil.Process]:
        """Every process that belongs to this home."""
        found = []
        for process in psutil.process_iter():
            try:
                words = process.cmdline() + list(process.environ().values())
                if process.pid != os.getpid() and any(str(self.folder) in word for word in words):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                pass
        return found

    def nothing_left(self) -> bool:
        """Whether every process of this home ends by itself."""
        return self.until(lambda: not self.processes(), 60)

    def end(self) -> None:
        for process in self.processes():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass


def listening(processes: list[psutil.Process]) -> list:
    """The inet sockets on which any of the processes listens."""
    found = []
    for process in processes:
        try:
            found += [each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
        except psutil.NoSuchProcess:
            pass
    return found
