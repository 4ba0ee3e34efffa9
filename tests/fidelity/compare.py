"""Trains cases under rftui and as plain TRL, and compares bytes and curves."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from rftui import cli
from rftui.checkpoints import newest_checkpoint
from rftui.link import LinkLost, Viewer
from rftui.messages import RUN_COMMANDS
from rftui.paths import ExperimentDir
from rftui.store import Store

HERE = Path(__file__).parent
TIMES = ("runtime", "samples_per_second", "steps_per_second", "step_time", "epoch", "total_flos", "step")
THREADS = max(1, (os.cpu_count() or 1) // 2)
"""Torch threads of each of two workers, and so of a plain training."""


def plain(out, cases, *script):
    """The directories of the cases' plain trainings, by plain.py or another `script` with its first arguments."""
    named = [case | {"name": str(number)} for number, case in enumerate(cases)]
    out.mkdir()
    (out / "cases.json").write_text(json.dumps(named))
    command = [sys.executable, *_script(script or ("plain.py",)), str(out / "cases.json"), str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": str(THREADS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [out / case["name"] for case in named]


def _script(script):
    return [str(HERE / script[0]), *script[1:]]


class Rftui:
    """An experiment of cases, trained by a scheduler process on two workers."""

    def __init__(self, home, cases, *script):
        self.home = home
        home.mkdir()
        (home / "cases.json").write_text(json.dumps(cases))
        self.experiment = ExperimentDir(home / "fidelity")
        self._start([*_script(script or ("script.py",)), str(home / "cases.json")])

    def _start(self, command, **environment):
        environment = os.environ | {"RFTUI_HOME": str(self.home), "RFTUI_DEVICES": "cpu:2"} | environment
        with open(self.home / "output.txt", "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command], env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )

    def reopen(self, **environment):
        """A new scheduler for the experiment."""
        self.process.wait()
        self._start(["-m", "rftui.scheduler", "fidelity", "--home", str(self.home)], **environment)

    def attach(self):
        while self.process.poll() is None:
            try:
                return Viewer(self.experiment)
            except LinkLost:
                time.sleep(0.1)
        raise AssertionError(self.output())

    def output(self):
        return (self.home / "output.txt").read_text()[-4000:]

    def wait(self):
        code = self.process.wait()
        assert code == 0, self.output()
        return Store.read(self.experiment.db)


class Watch:
    """What a viewer sees, until something is so."""

    def __init__(self, rftui):
        self._viewer = rftui.attach()
        self.runs, self.devices, self.pid = {}, {}, 0
        self._sent = 0
        self.until(lambda watch: watch.pid)

    def until(self, holds):
        """Poll until `holds(self)`; LinkLost if the scheduler ends before."""
        while not holds(self):
            for message in self._viewer.poll(5):
                self.runs |= {run.id: run for run in getattr(message, "runs", [])}
                self.devices |= {device.name: device for device in getattr(message, "devices", [])}
                if experiment := getattr(message, "experiment", None):
                    self.pid = experiment.pid

    def ask(self, op, run):
        self._sent += 1
        self._viewer.send(RUN_COMMANDS[op](run, id=str(self._sent), by="python"))


class Ejected:
    """Ejected scripts, run where there is no rftui; `folder` is made."""

    def __init__(self, experiment, folder):
        self._experiment = experiment
        self._folder = folder
        blocked = folder / "blocked" / "rftui"
        blocked.mkdir(parents=True)
        (blocked / "__init__.py").write_text('raise ImportError("an ejected script imports rftui")')
        self._environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        self._environment |= {"PYTHONPATH": str(blocked.parent)}

    def differing(self, runs):
        """The ids of those of the runs whose script makes other weights than theirs."""
        return [
            run.id for run in runs if self._weights(run) != weights(run, newest(self._experiment, run)).read_bytes()
        ]

    def _weights(self, run):
        name, home = self._experiment.name, str(self._experiment.home)
        assert cli.main(["--home", home, "eject", name, str(run.id), "-o", str(self._folder / f"{run.id}.py")]) == 0
        done = subprocess.run(
            [sys.executable, f"{run.id}.py", "out"],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        made = weights(run, self._folder / "out").read_bytes()
        shutil.rmtree(self._folder / "out")
        return made


def newest(experiment, run):
    """A run's `final/`, or its newest checkpoint."""
    return Path(run.final) if run.final else newest_checkpoint(experiment.run(run.id).checkpoints)


def weights(run, folder):
    return folder / ("adapter_model.safetensors" if run.config["peft_config"] else "model.safetensors")


def curves(history):
    """A plain history as rftui keeps it: metric -> [(step, value), ...]."""
    found = {}
    for entry in history:
        for name, value in entry.items():
            if not name.endswith(TIMES) and value is not None:
                found.setdefault(name, []).append((entry["step"], value))
    return found


def differences(store, run, reference):
    """What differs between a run and its plain training: names of metrics, and "weights"."""
    expected = curves(json.loads((reference / "history.json").read_text()))
    ours = store.curves(run.id)[run.id]
    assert {"loss", "grad_norm", "learning_rate", "train_loss"} <= set(expected)
    different = [name for name in expected if ours.get(name) != expected[name]]
    if weights(run, Path(run.final)).read_bytes() != weights(run, reference).read_bytes():
        different.append("weights")
    return different
