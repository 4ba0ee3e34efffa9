"""Workers without models: threads that speak a worker's protocol over the real link and write real checkpoints."""

import json
import queue
import shutil
import threading
from collections import defaultdict
from itertools import count
from pathlib import Path

from rftui import messages
from rftui.checkpoints import CHECKPOINT_MARKER, link_checkpoint, newest_checkpoint
from rftui.link import LinkLost, WorkerLink
from rftui.paths import ExperimentDir, RunDir
from rftui.scheduler.hosts import Process


class Hold:
    """A step before which a worker waits."""

    def __init__(self):
        self.reached, self.go = threading.Event(), threading.Event()

    def wait(self):
        assert self.reached.wait(20), "no worker came to the step"


def command_of(op, run, changes=None, **how):
    """The command of an op by its name."""
    match op:
        case "finish" | "interrupt":
            return {"finish": messages.Finish, "interrupt": messages.Interrupt}[op](**how)
        case "rule":
            return messages.SetRule(how.pop("name"), changes or {}, **how)
        case "clone":
            return messages.Clone(run, changes or {}, **how)
    return messages.RUN_COMMANDS[op](run, **how)


class World:
    """What the fake workers shall do, and what they were asked. Steps are numbered from 1, chunks hold `per` steps."""

    def __init__(self):
        self.chunks, self.per = 3, 2
        self.holds, self.deaths, self.failures = {}, defaultdict(int), {}
        self.check_faults, self.check_notices, self.check_deaths = [], [], 0
        self.early_deaths = 0
        self.save_chunks, self.ignored = False, ()
        self.set_backs, self.full = defaultdict(list), set()
        self.adapted = {}
        self.begun = threading.Event()  # a worker was started
        self.losses = {}  # run -> its loss at each step, where that is not 1 / step
        rate, token = (
            messages.Field("training_args.learning_rate", "float"),
            messages.Field("model_kwargs.token", "text"),
        )
        self.schema = {"SFT": [rate, token]}
        self.asked, self.trained, self.started = [], [], []
        self.pids, self.workers = count(1000), {}

    def hold(self, run, step):
        return self.holds.setdefault((run, step), Hold())

    def let_go(self):
        for hold in self.holds.values():
            hold.go.set()

    def came(self, worker):
        """Wait until a task has come to a worker that is held."""
        for _ in range(2000):
            if not self.workers[worker].tasks.empty():
                return
            threading.Event().wait(0.01)
        raise AssertionError(f"nothing was asked of {worker}")

    def turns(self, run):
        return [task for task in self.asked if isinstance(task, messages.Turn) and task.run.id == run]


class Died(BaseException):
    """The process of the worker is gone, without a word."""


class FakeWorker(threading.Thread):
    def __init__(self, world, experiment, link, ended):
        super().__init__(daemon=True)
        self.world, self.experiment, self.link, self.ended = world, experiment, link, ended
        self.tasks, self.killed = queue.SimpleQueue(), threading.Event()
        self.steps, self.training, self.turn_began = {}, None, 0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        try:
            while True:
                for task in self.link.tasks():
                    self.tasks.put(task)
        except LinkLost:
            self.tasks.put(None)

    def kill(self):
        self.killed.set()
        self.tasks.put(None)
        self.world.let_go()

    def run(self):
        status = 0
        try:
            self.work()
        except Died:
            status = 1
        self.link.close()
        self.ended(status)

    def work(self):
        if self.world.early_deaths:
            self.world.early_deaths -= 1
            raise Died
        self.link.report(messages.Ready(next(self.world.pids)))
        while True:
            while self.training is None or not self.tasks.empty():
                task = self.tasks.get()
                if task is None:
                    raise Died
                self.world.asked.append(task)
                if isinstance(task, self.world.ignored):
                    continue
                if isinstance(task, messages.Quit):
                    for run in list(self.steps):
                        self.free(run, task.save)
                    return
                self.carry_out(task)
            self.step(self.training)

    def carry_out(self, task):
        match task:
            case messages.Describe():
                self.link.report(messages.Schema(self.world.schema))
            case messages.Check(fit):
                if self.world.check_deaths:
                    self.world.check_deaths -= 1
                    raise Died
                self.link.report(messages.Checked(fit, self.world.check_faults, self.world.check_notices))
            case messages.Turn(run, resume):
                if run.id not in self.steps:
                    self.steps[run.id] = int(resume.rpartition("-")[2]) if resume else 0
                self.training, self.turn_began = run.id, self.steps[run.id]
                if run.id in self.world.adapted:
                    self.link.report(messages.Adapted(run.id, self.world.adapted[run.id]))
                self.begun(run.id)
            case messages.Retry(run):
                if run in self.world.full:
                    self.link.report(messages.Unsaved(run, "no space is left", 1, 0.0))
                elif run in self.steps:
                    self.save(run)
            case messages.Halt(run, save):
                if run in self.steps:
                    self.free(run, save)
            case messages.SnapshotWeights(run, clones):
                checkpoint = self.save(run) if run in self.steps else newest_checkpoint(self.folder(run).checkpoints)
                if checkpoint:
                    self.link_weights(run, clones, checkpoint)

    def folder(self, run) -> RunDir:
        return self.experiment.run(run)

    def begun(self, run):
        step, total = self.steps[run], self.world.chunks * self.world.per
        self.link.report(
            messages.Begun(run, step, total, step // self.world.per, self.world.chunks, step / self.world.per)
        )

    def step(self, run):
        step = self.steps[run] + 1
        hold = self.world.holds.get((run, step))
        if hold and not hold.go.is_set():
            hold.reached.set()
            assert hold.go.wait(20), "the test forgot a hold"
            if self.killed.is_set():
                raise Died
            return  # a step boundary: what was asked meanwhile comes first
        if self.world.deaths[run, step]:
            self.world.deaths[run, step] -= 1
            raise Died
        if self.world.set_backs[run, step]:
            self.leave(run)
            why = self.world.set_backs[run, step].pop()
            self.link.report(messages.Failed(run, "it broke", "", 0.1, why))
            if why == "device":
                raise Died
            return
        if error := self.world.failures.get((run, step)):
            self.leave(run)
            self.link.report(messages.Failed(run, error, "Traceback", 0.1))
            return
        if step > self.world.chunks * self.world.per:
            self.finish(run)  # it was built from the checkpoint of its last step
            return
        self.steps[run] = step
        self.world.trained.append((run, step))
        chunk = step // self.world.per
        self.link.report(messages.Stepped(run, step, chunk, float(chunk)))
        self.link.report(messages.Logged(run, step, {"loss": self.world.losses.get(run, 1 / step)}))
        if step == self.world.chunks * self.world.per:
            self.finish(run)
        elif step % self.world.per == 0:
            self.training = None
            if run in self.world.full:
                self.link.report(messages.Unsaved(run, "no space is left", 1, 0.1))
                return
            if self.world.save_chunks:
                self.save(run)
            self.link.report(messages.TurnEnded(run, step, chunk, float(chunk), 0.1))

    def finish(self, run):
        step, path = self.steps[run], str(self.save(run))
        final = write_final(self.folder(run), step, self.world.per)
        self.leave(run)
        self.link.report(messages.Finished(run, step, str(final), path, 0.1))

    def leave(self, run):
        del self.steps[run]
        if self.training == run:
            self.training = None

    def free(self, run, save):
        path = str(self.save(run)) if save and self.steps[run] else None
        step = self.steps[run]
        self.leave(run)
        self.link.report(messages.Halted(run, step, path))

    def save(self, run):
        path = write_checkpoint(self.folder(run).checkpoints, self.steps[run], self.world.per)
        self.link.report(messages.Saved(run, self.steps[run], str(path)))
        return path

    def link_weights(self, run, clones, checkpoint):
        for clone in clones:
            link_checkpoint(checkpoint, self.folder(clone).start)
        self.link.report(messages.WeightsReady(run, clones))


def write_checkpoint(checkpoints, step, per=2):
    """A committed checkpoint; its row is ten times its step."""
    return write(
        checkpoints / f"step-{step}", {"step": step, "epoch": step / per, "row": 10 * step, "rows": 10 * per}, per
    )


def write_final(folder, step, per=2):
    """What a finished run leaves."""
    return write(folder.final, {"step": step, "run": int(folder.path.name)}, per)


def write(path, marker, per):
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    (path / "weights").write_text(f"weights of step {marker['step']}")
    history = [{"loss": 1 / step, "epoch": step / per, "step": step} for step in range(1, marker["step"] + 1)]
    (path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    files = {file.name: file.stat().st_size for file in path.iterdir()}
    (path / CHECKPOINT_MARKER).write_text(json.dumps(marker | {"files": files}))
    return path


class FakeHost:
    """Runs fake workers, in threads, in the place of processes."""

    def __init__(self, world):
        self.world, self.logs = world, None

    def start(self, name, environment, ended):
        experiment = ExperimentDir(Path(environment["RFTUI_EXPERIMENT"]))
        incarnation = int(environment["RFTUI_INCARNATION"])
        self.logs = experiment.logs
        self.world.started.append((name, incarnation))
        self.world.begun.set()
        link = WorkerLink(experiment, name, incarnation)
        thread = self.world.workers[name] = FakeWorker(self.world, experiment, link, ended)
        self.log(name).write_text("RuntimeError: boom\n")
        thread.start()
        return Process(1, None)

    def running(self, name):
        return name in self.world.workers and self.world.workers[name].is_alive()

    def kill(self, name):
        self.world.workers[name].kill()

    def wait(self, name, seconds):
        self.world.workers[name].join(seconds)
        return not self.running(name)

    def log(self, name):
        return self.logs / f"worker-{name}.txt"
