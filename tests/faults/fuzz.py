"""Injects exceptions into functions, file operations, databases and links of rftui's processes, and checks the end:

    python tests/faults/fuzz.py --faults 500 --seed 1

Each fault is drawn from the places that an undisturbed training comes by (see `injector`). Three runs train on two
fake workers while a shell stops, resumes and clones; the tracker and the screen are tried on their own. Whatever ended
is opened again without faults. Then every run must be done with the curve that it should have, no worker, lock or
socket may be left, nothing may hang, and each fault must be told in one line, unless nothing was lost by it. Prints a
table of processes and outcomes, and exits 1 where one is wrong; `--fault` then tries its faults again.
"""

import argparse
import itertools
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "scheduler")]

from rftui.paths import ExperimentDir  # noqa: E402
from rftui.runs import DONE  # noqa: E402
from rftui.store import Store  # noqa: E402
from tests.faults import arena  # noqa: E402
from tests.faults.forked import Ended, Forked  # noqa: E402
from tests.faults.injector import ERRORS, OPERATIONS, Fault  # noqa: E402

KINDS = {"scheduler": 0.6, "shell": 0.15, "tracker": 0.15, "screen": 0.1}
"""Process -> its share of the faults."""

STEPS = arena.CHUNKS * arena.PER


@dataclass
class Verdict:
    """Of one experiment: its faults, those that came, `outcome`, and what is `wrong`."""

    number: int
    faults: list[Fault]
    fired: list[Fault]
    outcome: str
    wrong: list[str] = field(default_factory=list)


def undisturbed(folder: Path) -> tuple[dict[str, dict[str, int]], ExperimentDir]:
    """Kind of process -> how often each place comes; and the experiment as it was before."""
    home = folder / "template"
    home.mkdir()
    clean = arena.template(home)
    places = {}
    for kind in KINDS:
        trial = Trial(clean, folder / f"clean-{kind}", [], kind)
        verdict = trial.judge(0)
        if verdict.wrong:
            raise SystemExit(f"the undisturbed {kind} is not whole: {verdict.wrong} ({trial.home})")
        lines = (line.split(" ", 1) for line in trial.counts.read_text().splitlines())
        places[kind] = {place: int(count) for count, place in lines}
    return places, clean


def draw(seed: int, number: int, places: dict[str, dict[str, int]], kinds: dict[str, float]) -> list[Fault]:
    """The fault of one experiment; on the scheduler sometimes a second one. `kinds`: process -> its share."""
    drawn = random.Random(f"{seed}/{number}")
    (kind,) = drawn.choices(list(kinds), list(kinds.values()))
    faults = []
    for place in drawn.sample(sorted(places[kind]), 2 if kind == "scheduler" and drawn.random() < 0.3 else 1):
        operation = place.split(" in ")[0]
        error = drawn.choice(OPERATIONS[operation] if " in " in place else list(ERRORS))
        nth = drawn.randint(1, places[kind][place])
        lasting = drawn.random() < 0.1 and ".link." not in place  # a worker that dies again and again fails its run
        faults.append(Fault(kind, place, nth, error, drawn.random() < 0.2, lasting))
    return faults


class Trial:
    """One experiment with its faults, in a home of its own."""

    def __init__(self, clean: ExperimentDir, home: Path, faults: list[Fault], kind: str) -> None:
        self.home, self.faults, self.kind = home, faults, kind
        self.experiment = arena.copy(clean, home)
        self.log, self.counts = home / "fired.txt", home / "counts.txt"
        self.said = ""
        self.wrong: list[str] = []

    def judge(self, number: int) -> Verdict:
        outcome = self._train()
        fired = set(self.log.read_text().split("\n")) if self.log.exists() else set()
        present = [fault for fault in self.faults if fault.place in fired]
        told = self._told()
        for fault in present:
            died = ".link." in fault.place and " died (" in told  # the worker that lost its link, in its own words
            if fault.token not in told and not died and outcome != "undisturbed":
                self.wrong.append(f"not told: {fault}")
        return Verdict(number, self.faults, present, outcome, self.wrong)

    def _train(self) -> str:
        first = self._session(1, self.faults if self.kind != "tracker" else [])
        if self.kind == "tracker":
            self._track()
        outcome = "undisturbed"
        if self._unfinished() or first.code:
            outcome = "reopened"
            if any(fault.lasting for fault in self.faults) and self.kind == "scheduler":
                self._session(None, self.faults)
                outcome = "reopened twice"
            self._session(None, [])
        elif any(fault.token in self.said for fault in self.faults):
            outcome = "told"
        self.wrong += self._unfinished() + self._left()
        return outcome

    def _session(self, fit: int | None, faults: list[Fault]) -> Ended:
        """A scheduler and, the first time, a shell and perhaps a screen beside it, to their ends."""
        (self.home / "over").unlink(missing_ok=True)
        process = self._start("scheduler", fit, faults)
        beside = {}
        if fit is not None and self.kind != "tracker":
            beside["shell"] = self._start("shell", None, faults)
            if self.kind == "screen":
                beside["screen"] = self._start("screen", None, faults)
        processes = {"scheduler": process, **beside}
        ended: dict[str, Ended] = {}
        while len(ended) < len(processes):
            time.sleep(0.005)
            for kind, each in processes.items():
                if kind not in ended and (end := each.poll()):
                    ended[kind] = self._judge_end(kind, end)
                    if kind == "scheduler":
                        (self.home / "over").touch()
        return ended["scheduler"]

    def _start(self, kind: str, fit: int | None, faults: list[Fault]) -> Forked:
        counts = self.counts if kind == self.kind and not self.faults else None
        body = getattr(arena, kind)
        arguments = (self.experiment, fit) if kind == "scheduler" else (self.experiment,)
        return Forked(self.home / f"{kind}.txt", lambda: body(*arguments, faults, self.log, counts))

    def _judge_end(self, kind: str, ended: Ended) -> Ended:
        self.said += ended.text
        if ended.hung:
            self.wrong.append(f"{kind} hangs")
        if "LEFT" in ended.text:
            self.wrong.append(f"{kind} leaves a worker")
        lines = ended.text.splitlines()
        if ended.code == 1 and "Traceback" in ended.text and "rftui:" not in ended.text:
            self.wrong.append(f"{kind} ends with a traceback: {lines[-1] if lines else ''}")
        return ended

    def _track(self) -> None:
        """With the faults, then once more without; it says what is wrong, or fails, which the scheduler tells."""
        for faults in (self.faults, []):
            process = self._start("tracker", None, faults)
            while (ended := process.poll()) is None:
                time.sleep(0.005)
            self.said += ended.text
            if ended.hung:
                self.wrong.append("tracker hangs")
            if ended.code:
                self.said += "\n".join(f"rftui: the tracking process failed: {fault.token}" for fault in faults)
            if ended.code and not faults:
                self.wrong.append(f"the tracker ends with {ended.code} though nothing failed")
        file = self.home / "tracked.txt"
        sent = Counter(file.read_text().splitlines() if file.exists() else [])
        with closing(Store.read(self.experiment.db)) as store:
            runs = store.runs()
        due = Counter(f"point {run.id} loss {step}" for run in runs for step in range(1, STEPS + 1))
        points = Counter({line: count for line, count in sent.items() if line.startswith("point")})
        if points != due:
            self.wrong.append(f"the tracker has {dict(points - due)} too many and lacks {sorted(due - points)}")
        if missing := [run.id for run in runs if f"status {run.id} FINISHED" not in sent]:
            self.wrong.append(f"the tracker was not told that {missing} have ended")

    def _unfinished(self) -> list[str]:
        """What is not as it would be undisturbed."""
        with closing(Store.read(self.experiment.db)) as store:
            runs, curves = store.runs(), store.curves()
        lines = [f"run {run.id} {run.name} is {run.state} at step {run.step}: {run.error}"
                 for run in runs if run.state != DONE]  # fmt: skip
        right = [(step, 1 / step) for step in range(1, STEPS + 1)]
        lines += [f"run {run.id} has the curve {curves.get(run.id)}"
                  for run in runs if run.state == DONE and curves.get(run.id, {}).get("loss") != right]  # fmt: skip
        return lines

    def _left(self) -> list[str]:
        left = ["the lock is held"] if self.experiment.alive() or not self.experiment.workers_gone() else []
        left += ["link.json is left"] if self.experiment.link.exists() else []
        if any(fault.place.endswith(" in rftui.link_server.Server.close") for fault in self.faults):
            return left  # it was to be removed there
        return left + [f"{folder.name} is left" for folder in self.home.glob("rftui-*")]

    def _told(self) -> str:
        """All that a user could have read in one line: events, and what the processes printed after `rftui:`."""
        with closing(Store.read(self.experiment.db)) as store:
            events = [event.text for event in store.events(1000)]
        lines = [line for line in self.said.splitlines() if any(word in line for word in ("rftui", "track", "MLflow"))]
        return "\n".join(events + lines)


@dataclass
class Trials:
    """Calling it with a number and faults has these tried in an experiment; what went well is removed."""

    folder: Path
    clean: ExperimentDir

    def __call__(self, numbered: tuple[int, list[Fault]]) -> Verdict:
        number, faults = numbered
        home = self.folder / str(number)
        verdict = Trial(self.clean, home, faults, faults[0].process).judge(number)
        if not verdict.wrong:
            shutil.rmtree(home)
        return verdict


def _together(text: str) -> list[Fault]:
    return [Fault.parse(each) for each in text.split("+")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--fault", action="append", type=_together, help="A+B: these in one experiment, not drawn ones"
    )
    parser.add_argument("--process", choices=KINDS, help="faults in this kind of process alone")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="f-"))  # the path of a socket must be short
    begun = time.monotonic()
    places, clean = undisturbed(folder)
    print(f"{', '.join(f'{kind} {len(found)}' for kind, found in places.items())} places", flush=True)

    kinds = {arguments.process: 1.0} if arguments.process else KINDS
    drawn = (draw(arguments.seed, number, places, kinds) for number in itertools.count(1))
    tries = enumerate(arguments.fault or drawn, 1)
    trials = Trials(folder, clean)
    verdicts: list[Verdict] = []
    # Each child forks the processes of its experiments: it must have no other threads.
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        while sum(len(verdict.fired) for verdict in verdicts) < arguments.faults:
            batch = list(itertools.islice(tries, 16))
            for verdict in pool.imap_unordered(trials, batch):
                verdicts.append(verdict)
                if arguments.fault:
                    verdict.wrong += [f"never came: {fault}" for fault in verdict.faults if fault not in verdict.fired]
                if verdict.wrong:
                    again = "+".join(map(str, verdict.faults))
                    print(f"WRONG {verdict.number}: --fault {again}\n  " + "\n  ".join(verdict.wrong), flush=True)
            if not batch:
                break
    table: Counter[tuple[str, str]] = Counter()
    for verdict in verdicts:
        for fault in verdict.fired:
            kind = "link" if ".link." in fault.place else fault.process
            table[kind, "WRONG" if verdict.wrong else verdict.outcome] += 1
    for (kind, outcome), count in sorted(table.items()):
        print(f"{kind:<10} {outcome:<15} {count:>4}")
    wrong = [verdict for verdict in verdicts if verdict.wrong]
    print(
        f"{table.total()} faults in {len(verdicts)} experiments, {len(wrong)} wrong; {time.monotonic() - begun:.0f} s"
    )
    if wrong:
        print(f"files: {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
