"""A state machine that asks for anything at any time: no run is lost, no step trained twice, turns stay fair, and what
the journal and the store hold is what the next scheduler goes on with."""

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from simulated import Simulated, copied, experiment
from test_histories import MEMORY, OPS, all_is_well, alone, asked, taken_up  # noqa: F401 (alone is a fixture)
from test_races import Quiet, Silent

from rftui.runs import ACTIVE, DELETED, DONE
from rftui.scheduler import loop

MOST_RUNS = 14


class Machine(RuleBasedStateMachine):
    """Fairness is checked by the simulated workers themselves, whenever a turn starts."""

    simulated: Simulated | None = None

    @initialize(runs=st.integers(1, 4), devices=st.sampled_from(["cpu", "cpu:2", "cpu:3"]))
    def begin(self, runs, devices):
        self.before = loop.Workers, loop.start_tracking
        loop.Workers, loop.start_tracking = Silent, lambda experiment: Quiet()
        self.folder, self.devices, self.kills = Path(tempfile.mkdtemp(dir=MEMORY)), devices, 0
        self.simulated = Simulated(experiment(self.folder, runs), devices).ready()
        self.asked, self.known = 0, set(range(1, runs + 1))

    def worker(self, which):
        return list(self.simulated.workers)[which % len(self.simulated.workers)]

    @rule(which=st.integers(0, 2))
    def work(self, which):
        self.simulated.work(self.worker(which))

    @rule(which=st.integers(0, 2))
    def hear(self, which):
        self.simulated.hear(self.worker(which))

    @rule()
    def round(self):
        for name in self.simulated.workers:
            self.simulated.work(name)
            self.simulated.hear(name)

    @rule(which=st.integers(0, 2))
    def die(self, which):
        self.simulated.die(self.worker(which))

    @precondition(lambda self: self.simulated and len(self.simulated.runs) < MOST_RUNS)
    @rule(op=st.sampled_from(OPS), which=st.integers(1, MOST_RUNS))
    def ask(self, op, which):
        answer = asked(self.simulated, op, which)
        self.asked += 1
        if answer.ok:
            self.known |= set(answer.runs)

    @precondition(lambda self: self.simulated and self.kills < 3)
    @rule()
    def kill(self):
        """The scheduler is killed, and with it its workers."""
        self.kills += 1
        answered = {run.id: run.state for run in self.simulated.runs.values()}
        left = copied(self.simulated.directory, self.folder / f"left{self.kills}")
        self.simulated.kill()
        self.simulated = Simulated(self.simulated.directory, self.devices, fit=None)
        taken_up(left, answered, self.asked, self.simulated)
        self.simulated.ready()

    @invariant()
    def no_run_is_lost(self):
        if self.simulated:
            runs = self.simulated.runs
            assert set(runs) == self.known
            held = self.simulated.rig.turns.resident
            assert all(runs[run].state in ACTIVE | {DELETED} for run in held), "a run that has ended is held"
            assert all(run.before for run in runs.values() if run.state == DELETED and run.id in held)

    @invariant()
    def steps_and_points_agree(self):
        if self.simulated:
            for number, curves in self.simulated.curves().items():
                steps = [step for step, _ in curves["loss"]]
                assert steps == list(range(1, len(steps) + 1)), f"run {number} has points {steps}"

    def teardown(self):
        if self.simulated:
            try:
                self.simulated.rest()
                all_is_well(self.simulated)
                finals = [run.id for run in self.simulated.runs.values() if run.state == DONE]
                assert all(self.simulated.directory.run(run).final.exists() for run in finals)
            finally:
                self.simulated.kill()
                loop.Workers, loop.start_tracking = self.before
                shutil.rmtree(self.folder, ignore_errors=True)


Machine.TestCase.settings = settings(
    max_examples=int(os.environ.get("RFTUI_MACHINE_EXAMPLES", "40")), stateful_step_count=50, deadline=None
)
TestMachine = Machine.TestCase
