"""A moving picture to look at: eight runs that train on two devices of the imagination.

`python tests/tui/demo.py [--ascii] [--readonly] [--slow-start] [--dies]`
"""

from __future__ import annotations

import math
import random
import sys
import threading
import time
from dataclasses import replace

from fakes import FIELDS, FakeLaunch, FakeViewer, made, some_rules

from rftui.config.sweeps import combinations, sweep_faults
from rftui.config.validate import sentence
from rftui.curves import Curves
from rftui.messages import Command, Device, Event, ExperimentInfo, Reply, Snapshot, Update
from rftui.runs import Run, changed, why_not
from rftui.tui import app

_STEPS, _CHUNKS = 400, 16


class Imagined(FakeViewer):
    """Answers commands as a scheduler does and trains its runs in a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(7)
        rates = (2e-4, 1e-4, 1e-3, 5e-5)
        self.runs = {
            n: made(n, "queued", lr=rates[(n - 1) % 4], r=16 if n < 5 else 64, step=0, device=None)
            for n in range(1, 9)
        }
        self.runs[6].state = "stopped"
        self.runs[6].stopped_by = "rule halving: loss 2.31 after chunk 2 of 16 is 6th of 8; 4 go on"
        self.runs[8].name = "lr=[1e-4 [/b] and a name that goes on and on"
        self.events = [Event(1, time.time(), "the configs are checked")]
        self.devices = [Device("gpu0", "ready", 11, None, int(61e9), int(141e9), 0.9), Device("gpu1", "ready", 12)]
        self.info = ExperimentInfo("tinychat-sft", "/tmp/tinychat-sft", "running", pid=4120, rows=800)
        self.info.rules = some_rules()
        self._sequence, self._turn, self._ending = 0, 0, False
        self._lock = threading.Lock()
        self.give(Snapshot(0, self.info, self._copies(), Curves(), list(self.events), self.devices, {"SFT": FIELDS}))
        threading.Thread(target=self._train, daemon=True).start()

    def _event(self, text: str, run: int, level: str = "info") -> Event:
        return Event(self._sequence, time.time(), text, run, level)

    def send(self, command: Command) -> None:
        super().send(command)
        threading.Timer(0.3, self.answer, [command]).start()

    def answer(self, command: Command) -> None:
        with self._lock:
            run = self.runs.get(command.run)
            if command.op in ("interrupt", "finish"):
                self._ending = True
                return
            if command.op == "rule":
                on = {rule.name: rule.on for rule in self.info.rules} | {command.name or "": command.changes["on"]}
                self.info.rules = some_rules(**on)
                text = f"rule {command.name} is {'on' if command.changes['on'] else 'off'}"
                self._tell(Update(0, experiment=replace(self.info), events=[self._event(f"{text} (by key)", 0)]))
                return self.give(Reply(command.id, True, text))
            assert run
            if reason := why_not(run, command.op):
                text = f"Can't {command.op} run {run.id} {run.name}: {reason}"
                return self.give(Reply(command.id, False, text))
            if command.op == "clone":
                return self._clone(command, run)
            text = f"run {run.id} {run.name}: {command.op} done"
            if command.op == "delete":
                run.before = "stopped" if run.active else run.state
            states = {"stop": "stopping", "resume": "queued", "delete": "deleted", "undo": run.before}
            run.state = states[command.op]
            self._tell(Update(0, [run], events=[self._event(f"{text} (by key)", run.id)]))
            self.give(Reply(command.id, True, text))

    def _clone(self, command: Command, run: Run) -> None:
        start = {"continue_schedule": command.continue_schedule, "from_step": command.from_step}
        faults = sweep_faults(run, command.changes, command.sweep, command.warm, FIELDS, **start)
        if faults:
            return self.give(Reply(command.id, False, f"run {run.id} cannot be cloned so: {sentence(faults)}"))
        clones = []
        for changes in combinations(command.changes, command.sweep):
            number = max(self.runs) + 1
            clone = Run(number, command.name or f"{run.name}.{number}", chunks=_CHUNKS, total_steps=_STEPS)
            clone.parent, clone.warm = run.id, command.warm
            clone.start_step = (command.from_step or run.step) if command.warm else 0
            clone.config, clone.knobs = changed(run.config, changes), run.knobs | changes
            self.runs[number] = clone
            clones.append(clone)
        text = f"{len(clones)} clones of run {run.id}: {', '.join(str(clone.id) for clone in clones)}"
        self._tell(Update(0, clones, events=[self._event(f"{text} (by key)", run.id)]))
        self.give(Reply(command.id, True, text, clones[0].id, runs=[clone.id for clone in clones]))

    def _train(self) -> None:
        while True:
            time.sleep(0.15)
            with self._lock:
                if self._ending:
                    break
                self.train()
        time.sleep(1.0)
        self.lose()

    def train(self) -> None:
        update = Update(0)
        for run in self.runs.values():
            if run.state == "stopping":
                run.state, run.device = "stopped", None
                update.runs.append(run)
        active = [run for run in self.runs.values() if run.active]
        holders = sorted(active, key=lambda run: (run.chunk, run.id))[:2]
        for run in active:
            state = "running" if run in holders else "waiting" if run.step else "queued"
            if run.state != state:
                run.state, run.device = state, f"gpu{holders.index(run)}" if run in holders else None
                update.runs.append(run)
        for run in holders:
            run.step += 5
            run.active_seconds += 1.5
            lr = run.knobs["training_args.learning_rate"]
            loss = 1.1 + 1.4 * math.exp(-run.step * lr * 60) + self._random.gauss(0, 0.04)
            loss += (run.step / 80) ** 3 if lr >= 1e-3 else 0.0
            points = {"loss": loss, "learning_rate": lr * (1 - run.step / _STEPS)}
            if run.step * _CHUNKS // _STEPS > run.chunk:
                run.chunk += 1
                run.checkpoints = [*run.checkpoints, run.step][-2:]
                run.checkpoint = f"checkpoint-{run.step}"
                points["eval_loss"] = loss + 0.05
                text = f"run {run.id} ended chunk {run.chunk}/{_CHUNKS}: eval_loss {loss:.4g}"
                update.events.append(self._event(text, run.id))
            if lr >= 1e-3 and run.step >= 300:
                run.state, run.error, run.device = (
                    "failed",
                    "diverged at step 300: its loss is nan; clone it with a lower learning rate",
                    None,
                )
                update.events.append(self._event(f"run {run.id} failed", run.id, "error"))
            elif run.step >= _STEPS:
                run.state, run.device = "done", None
            run.metrics = run.metrics | points
            update.points += [(run.id, metric, run.step, value) for metric, value in points.items()]
            update.runs.append(run)
        for number, device in enumerate(self.devices):
            device.run = holders[number].id if number < len(holders) else None
        update.devices = [replace(device) for device in self.devices]
        self.info.state = "running" if active else "idle"
        self.info.eta = sum(_STEPS - run.step for run in active) * 0.016
        self.info.steps_per_second = 120.0 if active else None
        update.experiment = replace(self.info)
        if "--dies" in sys.argv and self._sequence > 60:
            self._ending = True
        self._tell(update)

    def _tell(self, update: Update) -> None:
        self._sequence += 1
        update.sequence = self._sequence
        update.runs = [replace(run) for run in update.runs]
        self.give(update)

    def _copies(self) -> list[Run]:
        return [replace(run) for run in self.runs.values()]


def main() -> int:
    launch = FakeLaunch()
    launch.lines = ["Loading the data", "Making 8 configs"]

    def come() -> None:
        launch.viewer = Imagined()

    threading.Timer(4.0 if "--slow-start" in sys.argv else 0.2, come).start()
    return app.run(launch, readonly="--readonly" in sys.argv, ascii="--ascii" in sys.argv)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
