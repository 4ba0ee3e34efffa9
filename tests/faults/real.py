"""Injects exceptions into the real processes while tiny models train, and holds what is left against an undisturbed
training:

    python tests/faults/real.py --faults 24 --seed 1

Faults are drawn as in `fuzz`, also from the worker's own code and from how processes are started. Each training has
one; it is then opened again without it until every run is done. Weights, curves, positions and what MLflow was sent
must be those of the undisturbed training, byte by byte, and no process, socket or lock may be left.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

OWN = {
    "worker": ("rftui.training", "rftui.checkpoints", "rftui.link"),
    "scheduler": (
        "rftui.scheduler.workers",
        "rftui.scheduler.hosts",
        "rftui.tracking.outbox",
        "rftui.experiment",
        "rftui.fit",
    ),
    "tracker": ("rftui.tracking",),
    "front": ("rftui.commands", "rftui.launching"),
}
"""Kind of process -> the beginnings of the names of the modules whose functions are places."""

GUARDS = ("worker.main", "__main__.main", "__main__.serve", "__main__.tell", "RunThread.run", "lifeline.begin")
"""Functions that catch what others raise."""

KINDS = {"worker": 0.6, "scheduler": 0.2, "tracker": 0.1, "front": 0.1}

SCRIPT = """
from rftui import Experiment
from rftui.automl import List, RFGridSearch, RFLoraConfig, RFModelConfig, RFSFTConfig

rows = [
    {"prompt": [{"role": "user", "content": f"What is {n} plus {n % 7}?"}],
     "completion": [{"role": "assistant", "content": f"It is {n + n % 7}."}]}
    for n in range(24)
]
configs = RFModelConfig(
    model_name=MODEL,
    peft_config=RFLoraConfig(r=List([4, 8]), lora_dropout=0.1, target_modules=["q_proj", "v_proj"]),
    training_args=RFSFTConfig(learning_rate=5e-3, num_train_epochs=1, per_device_train_batch_size=4, max_length=48,
                              logging_steps=1, gradient_checkpointing=False, save_strategy="chunk"),
)
experiment = Experiment(experiment_name="faults")
experiment.run_fit(RFGridSearch(configs), None, rows, rows[:4], num_chunks=3, seed=42)
experiment.end()
"""

HANG = 150.0
"""Seconds after which a session hangs."""


class Trial:
    """One training with its fault."""

    def __init__(self, folder: Path, plan: list, counts: bool = False) -> None:
        from tests.faults.experiment import Home

        folder.mkdir()
        self.home = Home(folder, SCRIPT, devices="cpu")
        self.log, self._plan = folder / "fired.txt", folder / "plan.txt"
        self._plan.write_text("\n".join(map(str, plan)))
        self.plan = plan
        self.home.environment |= {
            "PYTHONPATH": f"{Path(__file__).parent / 'inside'}:{ROOT}",
            "FAULT_PLAN": str(self._plan),
            "FAULT_LOG": str(self.log),
        }
        if counts:
            (folder / "counts").mkdir()
            self.home.environment["FAULT_COUNTS"] = str(folder / "counts")
        self.wrong: list[str] = []
        self.said = ""

    def train(self) -> str:
        """To the end, in as many sessions as it takes: how."""
        clean = self._session()
        if clean:
            return "undisturbed"
        for again in ("reopened", "reopened twice"):
            self._plan.write_text("")
            if self._session():
                return again
        self.wrong += [f"run {run.id} is {run.state} at step {run.step}: {run.error}" for run in self.home.runs()]
        return "lost"

    def _session(self) -> bool:
        """Whether every run is done now."""
        from rftui.runs import DONE, FAILED, STOPPED

        front = self.home.front(viewer=False)
        try:
            front.process.wait(HANG)
        except subprocess.TimeoutExpired:
            self.wrong.append("it hangs")
            self.home.end()
        self.said += front.log.read_text(errors="replace")
        if not self._plan.read_text():
            for run in [run for run in self.home.runs() if run.state in (STOPPED, FAILED)]:
                self.home.call("resume", "faults", run.id)
            end = time.monotonic() + HANG
            while self.home.experiment.alive() and time.monotonic() < end:
                time.sleep(0.1)
        runs = self.home.runs()
        return bool(runs) and all(run.state == DONE for run in runs)

    def left(self) -> list[str]:
        end = time.monotonic() + 60
        while (processes := self.home.processes()) and time.monotonic() < end:
            time.sleep(0.1)
        lines = [f"a process is left: {process}" for process in processes]
        return lines + [f"{folder.name} is left" for folder in self.home.runtime.iterdir()]

    def untold(self) -> list[str]:
        from rftui.store import Store

        told = self.said
        if self.home.experiment.db.exists():
            with closing(Store.read(self.home.experiment.db)) as store:
                told += "\n".join(event.text for event in store.events(1000))
        return [f"not told: {fault}" for fault in self.fired() if fault.token not in told]

    def fired(self) -> list:
        lines = self.log.read_text().split("\n") if self.log.exists() else []
        return [fault for fault in self.plan if fault.place in lines]


def draw(seed: int, number: int, places: dict[str, dict[str, int]]):
    from tests.faults.injector import ERRORS, OPERATIONS, Fault

    drawn = random.Random(f"{seed}/{number}")
    (kind,) = drawn.choices(list(KINDS), list(KINDS.values()))
    place = drawn.choice(sorted(places[kind]))
    operation = place.split(" in ")[0]
    error = drawn.choice(OPERATIONS[operation] if " in " in place else list(ERRORS))
    return Fault(kind, place, drawn.randint(1, places[kind][place]), error, drawn.random() < 0.2)


def main() -> int:
    from tests.faults import outcome
    from tests.faults.injector import Fault

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", type=Fault.parse, help="try this one alone")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="f-"))
    clean = Trial(folder / "clean", [], counts=True)
    if clean.train() != "undisturbed":
        raise SystemExit(f"the undisturbed training is not whole: {clean.said} ({folder})")
    clean.left()
    reference = outcome.read(clean.home.experiment.db, clean.home.home / "mlflow.db")
    places: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}
    for file in (clean.home.folder / "counts").iterdir():
        for line in file.read_text().splitlines():
            count, place = line.split(" ", 1)
            places[file.name.split("-")[0]][place] = int(count)
    print(", ".join(f"{kind} {len(found)}" for kind, found in places.items()), "places", flush=True)
    table: Counter[tuple[str, str]] = Counter()
    number = bad = 0
    while table.total() < arguments.faults:
        number += 1
        fault = arguments.fault or draw(arguments.seed, number, places)
        trial = Trial(folder / str(number), [fault])
        try:
            how = trial.train()
            trial.wrong += trial.left()
            if how != "lost":
                found = outcome.read(trial.home.experiment.db, trial.home.home / "mlflow.db")
                trial.wrong += outcome.differences(reference, found)
            trial.wrong += trial.untold() if how != "undisturbed" else []
        finally:
            trial.home.end()
        if trial.fired():
            table[fault.process, how if not trial.wrong else "WRONG"] += 1
        if trial.wrong:
            bad += 1
            print(f"WRONG {number}: --fault {fault}\n  " + "\n  ".join(trial.wrong), flush=True)
        else:
            shutil.rmtree(trial.home.folder)
        if arguments.fault:
            break
    for (kind, how), count in sorted(table.items()):
        print(f"{kind:<10} {how:<15} {count:>4}")
    print(f"{table.total()} faults in {number} trainings, {bad} of them wrong" + (f"; files: {folder}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
