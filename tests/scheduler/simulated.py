"""A real scheduler whose workers are played by hand: they hold runs, train the one that has the turn, carry out orders
at step ends and write real checkpoints; what they report lies in their outbox until the scheduler hears it."""

import json
import re
import shutil
from collections import Counter, deque

from fake_worker import write_checkpoint, write_final
from test_races import Rig

from rftui import messages
from rftui.automl import rules
from rftui.checkpoints import checkpoint_marker, link_checkpoint, newest_checkpoint
from rftui.paths import ExperimentDir, create
from rftui.runs import QUEUED, RUNNING, WAITING, Run
from rftui.store import Store

RATE = "training_args.learning_rate"
CHUNKS, PER = 3, 2


def experiment(folder, runs):
    """An experiment of one fit with so many queued runs."""
    made = create(folder, "exp")
    store = Store.create(made.db)
    store.add_fit(num_chunks=CHUNKS, chunk_size=None, seed=1, rows=60, eval_rows=0)
    for number in range(runs):
        store.add_run(Run(0, f"r{number}", config_index=number, config={"training_args": {"learning_rate": 1e-4}}))
    store.close()
    return made


def set_rules(experiment, *given):
    """Have these rules on, and no others."""
    store = Store(experiment.db)
    store.set_meta("rules", rules.written(rules.switches(given)[0]))
    store.close()


def journal(store):
    """Every command, whether it was accepted, and the reply."""
    rows = store._db.execute("SELECT command, ok, reply FROM journal").fetchall()
    return [(json.loads(command), ok, reply) for command, ok, reply in rows]


class Worker:
    def __init__(self):
        self.inbox, self.outbox = deque(), deque()
        self.steps, self.training = {}, None


class Simulated:
    """`lead`: run -> other run -> how many turns the other has started while this one waits for its next."""

    def __init__(self, directory: ExperimentDir, devices: str, fit: int | None = 1):
        self.directory, self.devices = directory, devices
        self.rig = Rig(directory, fit, devices)
        self.workers = {name: Worker() for name in self.rig.workers}
        self.rig.scheduler.server.task = self._task
        self.losses: dict[int, float] = {}  # run -> its loss at each step, where that is not 1 / step
        self.lead: dict[int, Counter[int]] = {}
        self.waiting: set[int] = set()
        self._follow()

    @property
    def runs(self):
        return self.rig.registry.runs

    def ready(self):
        self.rig.ready()
        self._follow()
        return self

    def curves(self):
        return self.rig.registry.store.curves()

    def kill(self):
        """The scheduler is gone, and with it what it had not committed."""
        self.rig.closed = True
        self.rig.registry.store._db.rollback()
        self.rig.registry.store.close()
        self.rig.scheduler.server.close()

    def in_force(self, fit, but=0):
        """Turns started by each run that may have a turn."""
        pinning = self.rig.turns.snapshots.waiting
        states = (QUEUED, RUNNING, WAITING)
        return {
            run.id: run.turns
            for run in self.runs.values()
            if run.fit == fit and run.state in states and run.id not in pinning and run.id != but
        }

    # ------------------------------------------------------------ what can happen

    def work(self, name):
        """The worker takes what was asked of it and comes to its next step end."""
        worker = self.workers[name]
        while worker.inbox:
            self._carry_out(worker, worker.inbox.popleft())
        if (run := worker.training) is not None:
            self._step(worker, run)

    def hear(self, name):
        """The scheduler gets what the worker has reported."""
        reports = list(self.workers[name].outbox)
        self.workers[name].outbox.clear()
        if reports:
            self._say(name, *reports)
        self._follow()

    def die(self, name):
        """The worker's process is killed; what it sent before arrives, and the next one stands at once."""
        self.hear(name)
        self.workers[name] = Worker()
        self._say(name, messages.Gone(-9))
        self._say(name, messages.Ready(7))
        self._follow()

    def ask(self, op, run, **how):
        changes = {RATE: 1e-5} if op == "clone" and "sweep" not in how else None
        answer = self.rig.ask(op, run, changes, **how)
        self._follow()
        return answer

    def rest(self):
        """Work without further disturbance until no run is active."""
        for _ in range(40 * len(self.runs)):
            if not any(run.active for run in self.runs.values()):
                return
            for name in self.workers:
                self.work(name)
                self.hear(name)
        raise AssertionError(f"it came to a halt: {[(run.id, run.state) for run in self.runs.values()]}")

    def _say(self, name, *reports):
        self.rig.says(*reports, worker=name)
        if self.rig.registry.due() == 0.0:  # as the loop does
            self.rig.registry.flush()

    # ------------------------------------------------------------ the workers

    def _task(self, name, task):
        self.workers[name].inbox.append(task)
        if isinstance(task, messages.Turn):
            self._started(task.run)

    def _carry_out(self, worker, task):
        match task:
            case messages.Turn(run, resume):
                if run.id not in worker.steps:
                    worker.steps[run.id] = int(re.search(r"step-(\d+)$", resume)[1]) if resume else 0
                step, worker.training = worker.steps[run.id], run.id
                self._begun(worker, run.id, step)
            case messages.Halt(run, save):
                if run in worker.steps:
                    step = worker.steps.pop(run)
                    path = self._save(worker, run, step) if save and step else None
                    worker.training = None if worker.training == run else worker.training
                    worker.outbox.append(messages.Halted(run, step, path))
            case messages.SnapshotWeights(run, clones):
                folder = self.directory.run(run).checkpoints
                if run in worker.steps:
                    self._save(worker, run, worker.steps[run])
                if newest := newest_checkpoint(folder):
                    for clone in clones:
                        link_checkpoint(newest, self.directory.run(clone).start)
                    worker.outbox.append(messages.WeightsReady(run, clones))

    def _begun(self, worker, run, step):
        worker.outbox.append(messages.Begun(run, step, CHUNKS * PER, step // PER, CHUNKS, step / PER))

    def _step(self, worker, run):
        step, chunk = worker.steps[run], worker.steps[run] // PER
        if step < CHUNKS * PER:  # else it goes on from the checkpoint of its last step
            step = worker.steps[run] = step + 1
            newest = newest_checkpoint(self.directory.run(run).checkpoints)
            assert not newest or checkpoint_marker(newest)["step"] < step, f"run {run} trains step {step} again"
            chunk = step // PER
            worker.outbox.append(messages.Stepped(run, step, chunk, step / PER))
            worker.outbox.append(messages.Logged(run, step, {"loss": self.losses.get(run, 1 / step)}))
        if step == CHUNKS * PER:
            path, final = self._save(worker, run, step), str(write_final(self.directory.run(run), step, PER))
            del worker.steps[run]
            worker.training = None
            worker.outbox.append(messages.Finished(run, step, final, path, 0.1))
        elif step % PER == 0:
            if run % 2:
                self._save(worker, run, step)
            worker.training = None
            worker.outbox.append(messages.TurnEnded(run, step, chunk, step / PER, 0.1 if run % 3 else 9.0))

    def _save(self, worker, run, step):
        path = str(write_checkpoint(self.directory.run(run).checkpoints, step, PER))
        worker.outbox.append(messages.Saved(run, step, path))
        return path

    # ------------------------------------------------------------ who leads whom

    def _started(self, run):
        others = self.in_force(run.fit, but=run.id)
        behind = {other: turns for other, turns in others.items() if turns < run.turns - 1}
        assert not behind, f"run {run.id} starts turn {run.turns}, but others have started fewer: {behind}"
        for number, lead in self.lead.items():
            other = self.runs[number]
            if number != run.id and other.fit == run.fit and other.state in (QUEUED, WAITING):
                lead[run.id] += 1
                assert lead[run.id] <= 2, f"run {run.id} started {lead[run.id]} turns and run {number} none"
        self.lead[run.id] = Counter()

    def _follow(self):
        """Runs join and leave those that may have a turn."""
        present = {number for fit in {run.fit for run in self.runs.values()} for number in self.in_force(fit)}
        leads = {number: self.lead.get(number, Counter()) for number in present}
        # A run that left and joins again enters with the smallest count in force, as if it were new.
        self.lead = {
            n: Counter({other: turns for other, turns in lead.items() if other in present})
            for n, lead in leads.items()
        }


def copied(directory: ExperimentDir, folder) -> ExperimentDir:
    """The directory as a kill leaves it: what was committed, and no lock."""
    shutil.copytree(directory.path, folder / directory.name)
    return ExperimentDir(folder / directory.name)
