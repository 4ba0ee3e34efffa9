"""Resident memory after 300 runs against that after 50: `python tests/bench/soak.py` (some minutes on 2 cores).

Trains 300 runs of two optimizer steps through one experiment, on one worker, under a real viewer on a pty, and prints
the memory of scheduler, worker, tracking process and viewer on the way. Exits 1 where one of them has grown by more
than 5 % and 20 MB between run 50 and run 300, and 2 where a run did not end well.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))

from rftui.runs import DONE
from tests.faults.experiment import Home

SCRIPT = """
from rftui import Experiment
from rftui.automl import List, RFGridSearch, RFLoraConfig, RFModelConfig, RFSFTConfig

rows = [{"text": f"Number {n} comes before number {n + 1}."} for n in range(8)]
configs = RFModelConfig(
    model_name=MODEL,
    peft_config=RFLoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
    training_args=RFSFTConfig(
        learning_rate=List([1e-5 * n for n in range(1, 1 + RUNS)]), max_steps=2, per_device_train_batch_size=1,
        max_length=32, logging_steps=1, gradient_checkpointing=False,
    ),
)
Experiment(experiment_name="faults").run_fit(RFGridSearch(configs), None, rows, num_chunks=1)
"""

FIRST, LAST = 50, 300
ROLES = ("scheduler", "worker", "tracker", "front")
NAMES = {"front": "viewer", "tracker": "tracking"}


def allowed(before: float) -> float:
    """MB that a process may have at the last run, from what it had at the first that counts."""
    return 1.05 * before + 20


def soak(home: Home, runs: int, show) -> tuple[dict[str, dict[int, float]], bool]:
    """role -> done runs -> MB, every 50 runs (the mean of what was seen shortly before); whether all ended well."""
    seen: dict[str, list[tuple[int, float]]] = defaultdict(list)
    front = home.front(viewer=True)
    told = 0
    while True:
        roles, states = home.roles(), [run.state for run in home.runs()]
        if front.ended():
            raise SystemExit(f"the viewer has ended; what it drew is in {front.log}")
        done = states.count(DONE)
        for role in ROLES:
            for process in roles.get(role, []):
                try:
                    seen[role].append((done, process.memory_info().rss / 1e6))
                except psutil.NoSuchProcess:
                    pass
        if done // 50 > told:
            told = done // 50
            show(50 * told, {role: at(seen[role], 50 * told) for role in ROLES})
        if len(states) == runs and not any(state in ("queued", "running", "waiting") for state in states):
            front.quit()
            front.process.wait(60)
            return {role: {n: at(seen[role], n) for n in range(50, done + 1, 50)} for role in ROLES}, done == runs
        time.sleep(0.25)


def at(seen: list[tuple[int, float]], done: int) -> float:
    """The mean of what was seen over the ten runs before."""
    near = [size for count, size in seen if done - 10 <= count <= done] or [size for _, size in seen[-1:]]
    return sum(near) / len(near) if near else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=LAST)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="s-"))
    home = Home(folder, SCRIPT.replace("RUNS", str(arguments.runs)), "cpu")
    home.environment |= {"OMP_WAIT_POLICY": "PASSIVE"}  # two threads that wait for one another by turning cost a core
    print("runs done  " + "  ".join(f"{NAMES.get(role, role):>9}" for role in ROLES), flush=True)

    def show(done: int, sizes: dict[str, float]) -> None:
        print(f"{done:>9}  " + "  ".join(f"{size:>6.0f} MB" for size in sizes.values()), flush=True)

    begun = time.monotonic()
    try:
        sizes, well = soak(home, arguments.runs, show)
    finally:
        home.end()
    print(f"{time.monotonic() - begun:.0f} s")
    if not well:
        print(f"not every run is done; see {folder}")
        return 2
    grown = [
        f"{NAMES.get(role, role)} grew from {size[FIRST]:.0f} to {size[arguments.runs]:.0f} MB; "
        f"{allowed(size[FIRST]):.0f} are allowed"
        for role, size in sizes.items()
        if size[arguments.runs] > allowed(size[FIRST])
    ]
    print("\n".join(grown) or "no process grows with its runs")
    shutil.rmtree(folder)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
