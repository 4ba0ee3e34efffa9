"""Carries out a plan on one experiment: starts it, asks for its ops, kills, opens it again, until all is done."""

import signal
import time
from collections import Counter
from collections.abc import Callable

import psutil

from rftui.messages import Clone, Command, Resume, Stop
from rftui.runs import DONE, FAILED, QUEUED, RUNNING, STOPPED, WAITING, Run
from tests.faults.experiment import (
    CHANGES,
    CLONE,
    LOADING_RUNS,
    PARENT,
    RUNS,
    STOPPED_RUN,
    Home,
    strike,
    worker_name,
)
from tests.faults.plan import Kill, Plan

_STILL = 300.0
"""Seconds without any change after which it has come to a halt."""

_PATIENCE = 60.0
"""Seconds that a kill waits for a victim, past its moment."""

_END = 90.0
"""Seconds that everything may take to end by itself."""


class Mismatch(Exception):
    """Something is not as it would be undisturbed: `text`, and `lines` that say what."""

    def __init__(self, text: str, lines: list[str]) -> None:
        super().__init__("\n  ".join([text, *lines]))
        self.text, self.lines = text, lines


class Driver:
    """`killed`: the kills that were carried out; `starts`: how often each kind of process was started."""

    def __init__(self, home: Home, plan: Plan, say: Callable[[str], None]) -> None:
        self.killed: list[Kill] = []
        self.starts: Counter[str] = Counter()
        self._home = home
        self._plan = plan
        self._say = say
        self._left = list(plan.kills)
        self._front = None
        self._excused = False  # a kill explains how the front ended
        self._seen: set[tuple[int, float]] = set()
        self._due: float | None = None  # when the present kill's delay is over
        self._struck: dict[int, str | None] = {}  # run -> its checkpoint when a kill took its turn from it
        self._young: set[tuple[int, str]] = set()  # (scheduler's pid, worker) that was killed before it had trained
        self._answered: dict[str, str] = {}  # op -> the scheduler's answer
        self._changed = time.monotonic()
        self._last: object = None

    def run(self) -> None:
        """Raises Mismatch where it does not come to its end."""
        while True:
            if self._front:
                self._front.ended()  # a killed one that nobody waits for would be a zombie, and taken for alive
            roles, runs = self._home.roles(), self._home.runs()
            self._look(roles, runs)
            if not roles.get("scheduler"):
                if self._ended(runs):
                    break
                self._open()
            elif self._done(runs) and self._front and self._front.viewer:
                self._front.quit()
            elif self._left and self._front and self._front.ended():
                self._front = self._home.front(viewer=True)  # its user comes back
            self._ask(runs)
            if self._left and self._comes(self._left[0], roles, runs):
                self._carry_out(self._left[0])
            time.sleep(0.002 if self._left and self._left[0].moment.kind == "save" else 0.03)

    def _fail(self, text: str, *lines: str) -> Mismatch:
        told = [f"killed: {kill}" for kill in self.killed]
        if self._front:
            told += [
                f"the front said: {line}" for line in self._front.log.read_text(errors="replace").splitlines()[-5:]
            ]
        return Mismatch(text, [*lines, *told])

    # ------------------------------------------------------------ what is seen

    def _look(self, roles: dict[str, list[psutil.Process]], runs: list[Run]) -> None:
        """Count what is new, and find out whether anything moves at all."""
        for role, processes in roles.items():
            for process in processes if role != "other" else ():
                if (process.pid, process.create_time()) not in self._seen:
                    self._seen.add((process.pid, process.create_time()))
                    self.starts[role] += 1
        present = (
            [(run.id, run.state, run.step) for run in runs],
            sorted(p.pid for each in roles.values() for p in each),
        )
        if present != self._last:
            self._last, self._changed = present, time.monotonic()
        if time.monotonic() - self._changed > _STILL:
            raise self._fail(f"it came to a halt: {[(run.id, run.state, run.step) for run in runs]}, {roles}")
        if failed := [f"run {run.id}: {run.error}" for run in runs if run.state == FAILED]:
            raise self._fail("a run failed", *failed)
        stopped = next((run for run in runs if run.id == STOPPED_RUN), None)
        if stopped and "stop" in self._answered and "resume" not in self._answered:
            if stopped.state in (QUEUED, RUNNING, WAITING):
                raise self._fail(f"run {STOPPED_RUN} is {stopped.state} after its stop was accepted")
        if "clone" in self._answered and not any(run.name == CLONE for run in runs):
            raise self._fail("the clone is not there after it was accepted")

    def _done(self, runs: list[Run]) -> bool:
        return len(runs) == RUNS + 1 and all(run.state == DONE for run in runs)

    def _ended(self, runs: list[Run]) -> bool:
        if not self._done(runs):
            return False
        if self._front and not self._front.ended():
            self._front.quit()
            self._wait_for_front()
        return True

    # ------------------------------------------------------------ starting

    def _open(self) -> None:
        """Start a front, once the last has left."""
        if self._front and not self._front.ended():
            self._front.quit()
            self._wait_for_front()
        if self._front and self._front.process.returncode not in (0, None) and not self._excused:
            raise self._fail(f"the front ended with {self._front.process.returncode} though nothing was killed")
        number = self.starts["opened"]
        time.sleep(self._plan.pauses[number % len(self._plan.pauses)])
        self._front = self._home.front(self._plan.viewers[number % len(self._plan.viewers)])
        self.starts["opened"] += 1
        self._excused = False
        self._home.until(lambda: self._home.roles().get("scheduler") or self._front.ended(), _END)

    def _wait_for_front(self) -> None:
        try:
            self._front.process.wait(_END)
        except Exception as error:
            raise self._fail("the front does not leave although its scheduler has ended") from error

    # ------------------------------------------------------------ ops

    def _ask(self, runs: list[Run]) -> None:
        """Stop and resume one run on the way, and clone another once it is done."""
        by_id = {run.id: run for run in runs}
        stopped, parent = by_id.get(STOPPED_RUN), by_id.get(PARENT)
        if stopped and self._plan.stop_at and "stop" not in self._answered:
            if stopped.state == DONE:
                self._answered["stop"] = self._answered["resume"] = "it was done already"
            elif stopped.state not in (STOPPED,) and sum(run.step for run in runs) >= self._plan.stop_at:
                self._send("stop", Stop(STOPPED_RUN, by="python"))
        if stopped and stopped.state == STOPPED:
            self._answered.setdefault("stop", "unheard")
            self._send("resume", Resume(STOPPED_RUN, by="python"))
        if parent and parent.state == DONE and "clone" not in self._answered:
            if any(run.name == CLONE for run in runs):
                self._answered["clone"] = "unheard"
            elif self._home.knobs_are_known():
                self._send("clone", Clone(PARENT, CHANGES, warm=True, name=CLONE, by="python"))

    def _send(self, op: str, command: Command) -> None:
        reply = self._home.ask(command)
        if reply and reply.ok:
            self._answered[op] = reply.text
        elif reply and "just ending" not in reply.text and op != "stop":
            raise self._fail(f"{op} was refused: {reply.text}")

    # ------------------------------------------------------------ killing

    def _comes(self, kill: Kill, roles: dict[str, list[psutil.Process]], runs: list[Run]) -> bool:
        """Whether the kill's moment has come."""
        moment = kill.moment
        if self._due is None:
            come = {
                "step": sum(run.step for run in runs) >= moment.count,
                "start": bool(roles.get("scheduler")) and len(runs) >= RUNS,
                "save": self._home.saving(),
                "done": sum(run.state == DONE for run in runs) >= moment.count,
            }[moment.kind]
            if not come:
                return False
            self._due = time.monotonic() + moment.delay
        return len(runs) >= RUNS and time.monotonic() >= self._due

    def _carry_out(self, kill: Kill) -> None:
        killed = self._kill(kill)
        if killed:
            self.killed.append(kill)
        if killed or time.monotonic() > self._due + _PATIENCE:
            self._say(f"  {'killed' if killed else 'nothing to kill:'} {kill}")
            self._left.remove(kill)
            self._due = None

    def _kill(self, kill: Kill) -> bool:
        """Kill the victim; False where there is none, or where its end would rightly fail a run."""
        roles = self._home.roles()
        if kill.victim == "worker":
            return self._kill_worker(roles.get("worker", []), kill)
        if kill.victim == "loader" and not self._may_strike(*LOADING_RUNS):
            return False
        if kill.victim == "all":
            # The scheduler first: to one that lives a moment longer a worker would have died on its own.
            victims = [process for role in ("scheduler", "worker", "loader", "front", "tracker", "other")
                       for process in roles.get(role, [])]  # fmt: skip
            taken = bool(roles.get("scheduler")) and [strike(process) for process in victims] != []
        else:
            candidates = roles.get(kill.victim, [])
            taken = bool(candidates) and strike(candidates[int(kill.draw * len(candidates))])
        if taken:
            self._excused |= kill.victim in ("scheduler", "front", "all")
            if kill.victim == "loader":
                self._strikes(*LOADING_RUNS)
        return taken

    def _kill_worker(self, workers: list[psutil.Process], kill: Kill) -> bool:
        """Not one whose run lost its last turn in the same way: that run would fail, as it should."""
        if not workers:
            return False
        process = workers[int(kill.draw * len(workers))]
        if not strike(process, signal.SIGSTOP):
            return False
        taken = False
        try:
            self._settle()
            name, scheduler = worker_name(process), process.ppid()
            if self._home.trained_since(name, process.create_time()):
                run = self._home.turn(name)
                taken = run is None or self._may_strike(run)
                if taken and run is not None:
                    self._strikes(run)
            else:
                taken = (scheduler, name) not in self._young and scheduler != 1
                self._young.add((scheduler, name))
        except (psutil.NoSuchProcess, KeyError):
            pass
        strike(process, signal.SIGKILL if taken else signal.SIGCONT)
        return taken

    def _settle(self) -> None:
        """Wait until the scheduler has kept what a stopped worker had reported."""
        before = None
        while before != (before := [(run.id, run.state, run.step) for run in self._home.runs()]):
            time.sleep(0.3)

    def _may_strike(self, *runs: int) -> bool:
        present = {run.id: run for run in self._home.runs()}
        return all(
            run not in self._struck or present[run].state == DONE or present[run].checkpoint != self._struck[run]
            for run in runs
        )

    def _strikes(self, *runs: int) -> None:
        present = {run.id: run for run in self._home.runs()}
        self._struck |= {run: present[run].checkpoint for run in runs}

    # ------------------------------------------------------------ the end

    def left(self) -> list[str]:
        """What is left that should not be, once everything has had the time to end by itself."""
        end = time.monotonic() + _END
        while (processes := self._home.processes()) and time.monotonic() < end:
            time.sleep(0.1)
        lines = []
        for process in processes:
            try:
                lines.append(f"a process is left: {process.pid} {' '.join(process.cmdline())}")
            except psutil.NoSuchProcess:
                pass
        if self._home.experiment.alive():
            lines.append("the experiment's lock is held by a process that is not its own")
        return lines + [f"a folder of a socket is left: {folder}" for folder in self._home.runtime.iterdir()]
