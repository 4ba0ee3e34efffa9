"""A state machine that asks for anything at any time: no run is lost, no step trained twice, turns stay fair, and what
the journal and the store hold is what the next scheduler goes on with."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from simulated import Simulated, copied, experiment
from test_histories import MEMORY, OPS, all_is_well, asked, taken_up
from test_races import Quiet

from rftui import runs
from rftui.runs import ACTIVE, DELETED, DONE, why_not
from rftui.scheduler import loop

MOST_RUNS = 14


class Machine(RuleBasedStateMachine):
    """Fairness is checked by the simulated workers themselves, whenever a turn starts."""

    simulated: Simulated | None = None

    @initialize(count=st.integers(1, 4), devices=st.sampled_from(["cpu", "cpu:2", "cpu:3"]))
    def begin(self, count, devices):
        self.before = loop.start_tracking
        loop.start_tracking = lambda experiment: Quiet()
        self.folder, self.devices, self.kills = Path(tempfile.mkdtemp(dir=MEMORY)), devices, 0
        self.simulated = Simulated(experiment(self.folder, count), devices).ready()
        self.asked, self.known = 0, set(range(1, count + 1))

    def worker(self, which):
        return list(self.simulated.workers)[which % len(self.simulated.workers)]

    @rule(which=st.integers(0, 2))
    def work(self, which):
        self.simulated.work(self.worker(which))

    @rule(which=st.integers(0, 2))
    def hear(self, which):
        self.simulated.hear(self.worker(which))

    @rule(rounds=st.integers(1, 10))
    def train(self, rounds):
        for _ in range(rounds):
            for name in self.simulated.workers:
                self.simulated.work(name)
                self.simulated.hear(name)

    @rule(which=st.integers(0, 2))
    def die(self, which):
        self.simulated.die(self.worker(which))

    @rule(op=st.sampled_from(OPS), which=st.integers(1, MOST_RUNS))
    def ask_anything(self, op, which):
        self.ask(op, which)

    @rule(op=st.integers(0, 63), which=st.integers(0, 63))
    def ask_what_its_state_allows(self, op, which):
        run = list(self.simulated.runs.values())[which % len(self.simulated.runs)]
        allowed = [each for each in OPS if not why_not(run, each if each in runs.OPS else "clone")]
        if allowed:
            self.ask(allowed[op % len(allowed)], run.id)

    @rule(which=st.integers(0, 63), op=st.sampled_from(["warm", "sweep", "earlier"]))
    def clone_one_that_trains(self, which, op):
        if begun := [run.id for run in self.simulated.runs.values() if run.active and run.step]:
            self.ask(op, begun[which % len(begun)])

    @rule(which=st.integers(0, 63))
    def bring_back(self, which):
        if deleted := [run.id for run in self.simulated.runs.values() if not why_not(run, "undo")]:
            self.ask("undo", deleted[which % len(deleted)])

    def ask(self, op, which):
        if len(self.simulated.runs) > MOST_RUNS and op not in runs.OPS:
            return
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
            there = self.simulated.runs
            assert set(there) == self.known
            held = self.simulated.rig.turns.resident
            assert all(there[run].state in ACTIVE | {DELETED} for run in held), "a run that has ended is held"
            assert all(run.before for run in there.values() if run.state == DELETED and run.id in held)

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
                loop.start_tracking = self.before
                shutil.rmtree(self.folder, ignore_errors=True)


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestMachine = Machine.TestCase
