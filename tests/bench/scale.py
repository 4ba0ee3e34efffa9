"""What the scheduler costs as experiments grow: an attach, a command, a tick and a message, by points and by runs.

    python tests/bench/scale.py [--points 1000,100000,1000000] [--runs 4,64,512]

A scheduler without workers serves experiments that hold so many points. An *attach* is a viewer that gets everything,
a *command* a `stop` from a shell (attach, ask, answer), a *tick* one flush after each of sixteen devices has reported
a step and its metrics, a *chunk end* what follows the end of a run's chunk, suggestion and rules included, a *wake*
what the tracking process does once it has such a tick to send.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from rftui import messages
from rftui.automl import rules
from rftui.client import Connection
from rftui.link import Viewer
from rftui.messages import Begun, Field, Logged, Report, Stepped, TurnEnded
from rftui.paths import ExperimentDir, create
from rftui.runs import WAITING, Run
from rftui.scheduler import loop
from rftui.scheduler.hosts import Process
from rftui.store import Store
from rftui.tracking.ledger import Ledger
from rftui.tracking.sender import Sender

METRICS = ("loss", "grad_norm", "learning_rate", "entropy", "mean_token_accuracy")
DEVICES = 16
TICKS = 20
CONFIG = {
    "model_name": "some/base-model",
    "training_args": {f"argument_{number}": number * 0.1 for number in range(40)} | {"learning_rate": 1e-4},
    "peft_config": {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
}


class Silent:
    """A host whose workers say nothing; the bench reports for them."""

    def __init__(self) -> None:
        self._living = True

    def start(self, name: str, environment: dict[str, str], ended: Callable[[int], None]) -> Process:
        return Process(1, None)

    def running(self, name: str) -> bool:
        return self._living

    def kill(self, name: str) -> None:
        self._living = False

    def wait(self, name: str, seconds: float) -> bool:
        return not self._living

    def log(self, name: str) -> Path:
        return Path("/nowhere")


def filled(home: Path, runs: int, points: int) -> ExperimentDir:
    """An experiment whose runs have all begun and have so many points together."""
    experiment = create(home, f"runs-{runs}-points-{points}")
    store = Store.create(experiment.db)
    store.add_fit(num_chunks=4, chunk_size=None, seed=1, rows=1000, eval_rows=0)
    steps = max(1, points // (runs * len(METRICS)))
    for number in range(1, runs + 1):
        run = Run(0, f"run-{number}", state=WAITING, config=CONFIG, step=steps, total_steps=2 * steps, turns=1)
        run.chunks, run.chunk, run.metrics = 8, 4, dict.fromkeys(METRICS, 1.0)
        store.add_run(run)
        for at in range(1, steps + 1, 5000):
            part = range(at, min(at + 5000, steps + 1))
            store.add_points((number, metric, step, 1 + 1 / step) for step in part for metric in METRICS)
        store.end_chunk(number, 4, steps)
    store.set_meta("rules", rules.written(rules.switches([rules.RFMedianStopping()])[0]))
    store.close()
    return experiment


class Bench:
    """A scheduler of the experiment, and what it costs; `seconds` of the clock, `cpu` of this process."""

    def __init__(self, experiment: ExperimentDir) -> None:
        self.experiment = experiment
        began = time.perf_counter()
        self.scheduler = loop.Scheduler(experiment, None, None, f"cpu:{DEVICES}", True, Silent())
        self.opened = time.perf_counter() - began
        self.registry = self.scheduler.registry
        self.incarnation = {name: number for number, name in enumerate(self.scheduler.workers.slots, 1)}
        for name in self.incarnation:
            self.scheduler.workers.start(name)
        self.scheduler.crew.begun = True
        self.scheduler.turns.open = True
        self.registry.schema = {"SFT": [Field("training_args.learning_rate", "float", 1e-4)]}
        self.step = max(run.step for run in self.registry.runs.values())
        self.scheduler.server.task = lambda worker, task: None  # type: ignore[method-assign]
        for device in self.registry.devices.values():
            device.state = "ready"
        self.scheduler.turns.assign()
        self._to_stop = list(self.registry.runs)
        self.worker = {device.run: name for name, device in self.registry.devices.items() if device.run}
        self.running = list(self.worker)
        for run in self.running:
            self.report(run, Begun(run, self.step, 2 * self.step, 4, 8, 0.5))
        self.registry.flush()

    def report(self, run: int, *reports: object) -> None:
        self.scheduler.receive(Report(self.worker[run], self.incarnation[self.worker[run]], list(reports)))

    def tick(self) -> float:
        """CPU seconds of a flush, sixteen steps and what the loop does around them."""
        self.step += 1
        began = time.process_time()
        for run in self.running:
            values = {metric: 1.0 + 1 / self.step for metric in METRICS}
            self.report(run, Stepped(run, self.step, 4, 0.5), Logged(run, self.step, values))
        self.scheduler.turns.assign()
        self.registry.flush()
        self.scheduler.ending.look()
        return time.process_time() - began

    def message(self) -> float:
        """CPU seconds for a message with the metrics of one step."""
        began = time.process_time()
        for _ in range(100):
            self.step += 1
            self.report(self.running[0], Logged(self.running[0], self.step, dict.fromkeys(METRICS, 1.0)))
        spent = (time.process_time() - began) / 100
        self.registry.flush()
        return spent

    def chunk_end(self) -> float:
        """CPU seconds for a chunk end, and the flush after it."""
        run, self.step = self.registry.runs[self.running[-1]], self.step + 1
        began = time.process_time()
        self.report(run.id, Stepped(run.id, self.step, 5, 0.6), TurnEnded(run.id, self.step, 5, 0.6, 0.0))
        self.scheduler.turns.assign()
        self.registry.flush()
        return time.process_time() - began

    def wake(self) -> float:
        """CPU seconds of the tracking process for a tick, to a tracker that takes whatever it is sent."""
        sender = Sender(Ledger(self.experiment), Swallowing())
        sender.send()
        taken = []
        for _ in range(5):
            self.tick()
            began = time.process_time()
            sender.send()
            taken.append(time.process_time() - began)
        return median(taken)

    def served(self) -> dict[str, float]:
        """Seconds of an attach and of a command, with the scheduler in a thread of this process."""
        lock = self.experiment.lock()
        thread = threading.Thread(target=self.scheduler.serve)
        self.scheduler._tracking = _NoTracking()  # type: ignore[assignment]
        thread.start()
        try:
            return {"attach": self._best(self._attach), "command": self._best(self._command)}
        finally:
            self.scheduler.server.inbox.put(messages.Interrupt())
            thread.join(30)
            assert lock
            lock.close()

    def _best(self, once: Callable[[], None]) -> float:
        taken = []
        for _ in range(3):
            began = time.perf_counter()
            once()
            taken.append(time.perf_counter() - began)
        return min(taken)

    def _attach(self) -> None:
        viewer = Viewer(self.experiment)
        while not viewer.answered:
            viewer.poll(1.0)
        viewer.close()

    def _command(self) -> None:
        with Connection(self.experiment, "bench") as connection:
            connection.stop(self._to_stop.pop())


class Swallowing:
    """A tracker that takes everything."""

    batch = 1000

    def create(self, run: Run) -> str:
        return str(run.id)

    def last_step(self, tracker_run: str, metric: str) -> int:
        return -1

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class _NoTracking:
    def wake(self) -> None: ...

    def notices(self) -> list[str]:
        return []

    def close(self, timeout: float) -> bool:
        return True


def measure(home: Path, runs: int, points: int) -> dict[str, float]:
    experiment = filled(home, runs, points)
    bench = Bench(experiment)
    bench.tick()
    found = {
        "tick": median(bench.tick() for _ in range(TICKS)),
        "message": min(bench.message() for _ in range(5)),
        "chunk end": bench.chunk_end(),
        "wake": bench.wake(),
        "open": bench.opened,
    }
    found |= bench.served()
    shutil.rmtree(experiment.path)
    return found


COLUMNS = {"attach": "attach s", "command": "command s", "tick": "tick ms", "message": "message us"}
COLUMNS |= {"chunk end": "chunk end ms", "wake": "wake ms", "open": "open s"}
_UNITS = {"tick": 1e3, "wake": 1e3, "chunk end": 1e3, "message": 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", default="1000,100000,1000000")
    parser.add_argument("--runs", default="4,64,512")
    arguments = parser.parse_args()
    print(f"{'runs':>5}{'points':>9}" + "".join(f"{title:>14}" for title in COLUMNS.values()), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for runs in map(int, arguments.runs.split(",")):
            for points in map(int, arguments.points.split(",")):
                found = measure(Path(folder), runs, points)
                cells = (f"{found[name] * _UNITS.get(name, 1):>14.3f}" for name in COLUMNS)
                print(f"{runs:>5}{points:>9}" + "".join(cells), flush=True)


if __name__ == "__main__":
    sys.exit(main())
