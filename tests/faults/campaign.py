"""Kills processes of an experiment at random moments and holds what it ends in against an undisturbed training:

    python tests/faults/campaign.py --kills 50 --seed 1

Four runs train on two workers, one is stopped and resumed, one is cloned warm; meanwhile `kill -9` takes the
scheduler, a worker, a DataLoader child, the viewer or headless front, the tracking process, or all at once, at moments
that the seed draws. Whatever ended is opened again, until every run is done. Then weights, curves, positions and what
MLflow was sent must be those of the undisturbed training, and no process, socket or lock may be left. Prints figures;
on a mismatch it says what differs and where the files are, and exits 1. `--only N` repeats the experiment N of a seed.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.faults import outcome
from tests.faults.driver import Driver, Mismatch
from tests.faults.experiment import Home
from tests.faults.plan import KILLS_AT_ONCE, Plan, plan


@dataclass
class Figures:
    """Of all experiments together."""

    experiments: int = 0
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    starts: Counter[str] = field(default_factory=Counter)
    redone: int = 0

    def lines(self) -> list[str]:
        def told(counter: Counter[str]) -> str:
            return ", ".join(f"{name} {count}" for name, count in counter.most_common())

        return [
            f"{self.kills.total()} kills in {self.experiments} experiments: {told(self.kills)}",
            f"moments: {told(self.moments)}",
            f"started: {told(self.starts)}; {self.redone} steps redone; {self.seconds:.0f} s",
        ]


def train(folder: Path, plan: Plan, figures: Figures, say=print) -> outcome.Outcome:
    """Train the campaign's experiment in a new home with the plan's kills. Raises Mismatch."""
    folder.mkdir()
    home = Home(folder)
    driver = Driver(home, plan, say)
    begun = time.monotonic()
    try:
        driver.run()
        left = driver.left()
        found = outcome.read(home.experiment.db, home.home / "mlflow.db")
        found.faults += left
        return found
    finally:
        home.end()
        figures.experiments += 1
        figures.seconds += time.monotonic() - begun
        figures.kills.update(kill.victim for kill in driver.killed)
        figures.moments.update(kill.moment.kind for kill in driver.killed)
        figures.starts.update(driver.starts)
        figures.redone += home.redone() if home.experiment.db.exists() else 0


def campaign(folder: Path, kills: int, seed: int, only: int | None = None, say=print) -> Figures:
    """The figures of a campaign without a mismatch; raises Mismatch at the first."""
    reference = train(folder / "reference", Plan([], [False], [0.0], 0), Figures(), say)
    if wrong := outcome.differences(reference, reference):
        raise Mismatch("the undisturbed training is not whole", wrong)
    figures, number = Figures(), only or 1
    while figures.kills.total() < kills:
        drawn = plan(seed, number)
        del drawn.kills[kills - figures.kills.total() :]
        say(f"experiment {number}: " + "; ".join(map(str, drawn.kills)))
        place = folder / f"experiment-{number}"
        try:
            if wrong := outcome.differences(reference, train(place, drawn, figures, say)):
                raise Mismatch("it ended otherwise than undisturbed", wrong)
        except Mismatch as mismatch:
            again = f"again: python tests/faults/campaign.py --seed {seed} --only {number}"
            raise Mismatch(
                f"experiment {number}: {mismatch.text}", [*mismatch.lines, f"its files: {place}", again]
            ) from mismatch
        shutil.rmtree(place)
        if only:
            break
        number += 1
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="run this experiment of the seed alone")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="f-"))  # the path of a socket must be short
    kills = KILLS_AT_ONCE if arguments.only else arguments.kills
    try:
        figures = campaign(folder, kills, arguments.seed, arguments.only)
    except Mismatch as mismatch:
        print(f"MISMATCH  {mismatch}")
        return 1
    print("\n".join(figures.lines()))
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
