"""`stop`, `resume`, `delete` and `clone`."""

import json
import sys
import threading
import types

import pytest

from rftui import launching
from rftui.automl.suggest import suggestion
from rftui.link_server import Server
from rftui.messages import Attach, Command, ExperimentInfo, Field, Leave, Reply, Snapshot, Update
from rftui.runs import Run
from rftui.store import Store


class Scheduler:
    """One as the link shows it, in this process: it notes each command, and `answer` says what it replies."""

    def __init__(self, experiment, answer):
        self.commands, self._described = [], False
        self._experiment, self._answer = experiment, answer
        self._lock = experiment.lock()
        self._server = Server(experiment)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _describe(self, viewer):
        """The first worker has come up."""
        schema = {"SFT": [Field("training_args.learning_rate", "float", 5e-5), Field("peft_config.r", "int", 8)]}
        self._described = True
        self._server.send(viewer, Update(1, schema=schema))

    def _serve(self):
        while True:
            match self._server.inbox.get():
                case None:
                    break
                case Attach(viewer):
                    info = ExperimentInfo("exp", str(self._experiment.path))
                    self._server.send(viewer, Snapshot(0, info, [], {}, [], [], {}))
                    threading.Timer(0.1, self._describe, [viewer]).start()
                case Leave():
                    pass
                case Command() as command:
                    self.commands.append(command)
                    early = command.op == "clone" and not self._described
                    reply = Reply(command.id, False, "what are its knobs?") if early else self._answer(command)
                    if reply:
                        self._server.send(command.viewer, reply)
                    if not reply or reply.ending:
                        break
        self._server.close()
        self._lock.close()

    def end(self):
        self._server.inbox.put(None)
        self._thread.join()


@pytest.fixture
def scheduler(make):
    """A scheduler that refuses what is asked of run 2."""

    def answer(command):
        ok = command.run == 1
        text = f"run {command.run} says yes" if ok else "already done"
        return Reply(command.id, ok, text, 3 if command.op == "clone" else None)

    made = Scheduler(make(Run(0, "a", state="running"), Run(0, "b", state="done")), answer)
    yield made.commands
    made.end()


def test_ops_reach_the_scheduler_and_its_answers_are_printed(told, scheduler):
    assert told("stop", "exp", "a") == (0, "run 1 says yes\n", "")
    assert told("resume", "exp", "1", "2") == (1, "run 1 says yes\n", "rftui: already done\n")
    code, out, _ = told("delete", "exp", "2", "1", "--yes", "--json")
    assert code == 1 and [json.loads(line) for line in out.splitlines()] == [
        {"ok": False, "text": "already done", "run": 2},
        {"ok": True, "text": "run 1 says yes", "run": 1},
    ]
    assert [(command.op, command.run, command.by) for command in scheduler] == [
        ("stop", 1, "cli"),
        ("resume", 1, "cli"),
        ("resume", 2, "cli"),
        ("delete", 2, "cli"),
        ("delete", 1, "cli"),
    ]


def test_clone_reads_its_values_by_the_schema(told, scheduler):
    code, out, _ = told(
        "clone", "exp", "1", "--set", "lr=1e-4", "--set", "peft_config.r=4", "--warm", "--name", "n", "--json"
    )
    assert code == 0 and json.loads(out)["run"] == 3
    [command] = scheduler
    assert command.changes == {"training_args.learning_rate": 1e-4, "peft_config.r": 4}
    assert (command.op, command.run, command.warm, command.name) == ("clone", 1, True, "n")
    for values, text in [
        (["lr=fast"], "must be a number"),
        (["learning_rat=1"], "did you mean"),
        (["lr=1", "training_args.learning_rate=2"], "twice"),
    ]:
        code, _, err = told("clone", "exp", "1", *(word for value in values for word in ("--set", value)))
        assert code == 2 and text in err
    assert len(scheduler) == 1


def test_several_values_and_the_other_ways_to_clone_reach_the_scheduler(told, scheduler):
    clone = ("clone", "exp", "1")
    assert told(*clone, "--set", "lr=1e-4,2e-4", "--set", "r=4", "--stop-parent")[:2] == (0, "run 1 says yes\n")
    assert told(*clone, "--from-step", "40")[0] == told(*clone, "--continue-schedule")[0] == 0
    swept, earlier, kept = scheduler
    assert (swept.changes, swept.sweep) == ({"peft_config.r": 4}, {"training_args.learning_rate": [1e-4, 2e-4]})
    assert swept.stop_parent and not earlier.stop_parent
    assert (earlier.warm, earlier.from_step, earlier.continue_schedule) == (True, 40, False)
    assert (kept.warm, kept.from_step, kept.continue_schedule) == (True, None, True)
    assert told(*clone[:2], "best:2", "--set", "lr=1")[2] == "rftui: there is no best run yet: none has a loss\n"


def test_a_knob_that_one_of_the_runs_lacks_does_not_keep_the_others_from_being_cloned(told, scheduler):
    code, out, _ = told("clone", "exp", "1", "2", "--set", "lr=fast", "--json")
    first, second = [json.loads(line) for line in out.splitlines()]
    assert code == 2 and (first["ok"], first["run"], second["run"]) == (False, 1, 2)
    assert first["text"].startswith("run 1 a: ") and "must be a number" in first["text"]


def test_a_suggestion_is_cloned_with_what_is_set_beside_it(told, make, reopened):
    args = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    out_of_memory = "OutOfMemoryError: CUDA out of memory"
    failed = Run(
        0,
        "a",
        state="failed",
        config={"training_args": args, "peft_config": {"r": 8}},
        error=out_of_memory,
        failure="memory",
    )
    failed.suggestion = suggestion(failed, lambda metric: [])
    make(failed, Run(0, "b", state="done"))
    code, out, _ = told("clone", "exp", "1", "--suggested", "--set", "lr=1e-5")
    assert code == 0 and out.startswith("run 1 a: ") and "memory" in out
    assert reopened[0].commands[0].changes == {
        "training_args.per_device_train_batch_size": 4,
        "training_args.gradient_accumulation_steps": 2,
        "training_args.learning_rate": 1e-5,
    }
    assert told("clone", "exp", "2", "--suggested")[::2] == (1, "rftui: run 2 b: nothing to suggest\n")


def test_ops_that_cannot_be_start_no_scheduler(told, make, monkeypatch):
    make(Run(0, "a", state="done"), Run(0, "b", state="stopped"))
    monkeypatch.setattr(launching, "spawn", pytest.fail)
    code, _, err = told("stop", "exp", "1", "2")
    assert code == 1 and err.splitlines() == [
        "rftui: Can't stop run 1 a: already done",
        "rftui: Can't stop run 2 b: already stopped; resume continues it",
    ]


@pytest.fixture
def reopened(monkeypatch):
    """The schedulers that the command starts: they say yes."""
    started = []

    def reopen(experiment):
        started.append(Scheduler(experiment, lambda command: Reply(command.id, True, f"{command.op} done", 4)))
        return launching.Launch("exp", experiment=experiment)

    monkeypatch.setattr(launching, "reopen", reopen)
    yield started
    for each in started:
        each.end()


@pytest.mark.parametrize(
    "word", [lambda command: Reply(command.id, False, "just ending", ending=True), lambda _: None]
)
def test_an_op_that_comes_as_the_scheduler_ends_is_asked_of_the_next_one(told, make, reopened, word):
    """The one that ends refuses it, or has no word for it any more."""
    old = Scheduler(make(Run(0, "a", state="stopped"), Run(0, "b", state="stopped")), word)
    assert told("resume", "exp", "1", "2") == (0, "resume done\nresume done\n", "")
    [new] = reopened
    assert [command.run for command in old.commands] == [1]
    assert [command.run for command in new.commands] == [1, 2]
    old.end()


def test_a_clone_that_comes_as_the_scheduler_ends_has_its_values(told, make, reopened):
    old = Scheduler(make(Run(0, "a", state="done")), lambda _: None)
    assert told("clone", "exp", "1", "--set", "lr=1e-4")[:2] == (0, "clone done\n")
    assert reopened[0].commands[0].changes == {"training_args.learning_rate": 1e-4}
    old.end()


def test_a_warm_clone_without_changes_waits_for_the_knobs_too(told, scheduler):
    assert told("clone", "exp", "1", "--warm")[:2] == (0, "run 1 says yes\n")
    assert scheduler[0].changes == {}


def test_no_scheduler_is_started_for_what_the_one_before_has_made_impossible(told, make, monkeypatch):
    made = make(Run(0, "a", state="running"))

    def finish(_):
        store = Store(made.db)
        store.save_run(Run(1, "a", state="done"))
        store.close()

    monkeypatch.setattr(launching, "spawn", pytest.fail)
    old = Scheduler(made, finish)
    assert told("stop", "exp", "1") == (1, "", "rftui: Can't stop run 1 a: already done\n")
    old.end()


def test_a_scheduler_that_ends_again_and_again_is_no_loop(told, make, monkeypatch):
    started = []

    def reopen(experiment):
        started.append(Scheduler(experiment, lambda _: None))
        return launching.Launch("exp", experiment=experiment)

    monkeypatch.setattr(launching, "reopen", reopen)
    old = Scheduler(make(Run(0, "a", state="stopped")), lambda _: None)
    assert told("resume", "exp", "1") == (1, "", "rftui: the scheduler has ended\n")
    assert len(started) == 1
    for each in (old, *started):
        each.end()


def test_delete_asks_on_a_terminal(told, scheduler, monkeypatch):
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(isatty=lambda: True))
    answers = ["n", "y"]
    monkeypatch.setattr("builtins.input", lambda prompt: answers.pop(0))
    assert told("delete", "exp", "1")[0] == 1 and not scheduler
    assert told("delete", "exp", "1")[0] == 0 and len(scheduler) == 1
