"""`stop`, `resume`, `delete` and `clone`."""

import json
import sys
import threading
import types

import pytest

from rftui import link
from rftui.link import Server
from rftui.messages import Attach, Command, ExperimentInfo, Field, Reply, Snapshot
from rftui.runs import Run


@pytest.fixture
def scheduler(make):
    """A scheduler as the link shows it, which notes each command and refuses those to run 2."""
    made = make(Run(0, "a", state="running"), Run(0, "b", state="done"))
    lock = made.lock()
    server = Server(made)
    commands = []
    schema = {"SFT": [Field("training_args.learning_rate", "float", 5e-5), Field("peft_config.r", "int", 8)]}

    def serve():
        while True:
            match server.inbox.get():
                case None:
                    return
                case Attach(viewer):
                    info = ExperimentInfo("exp", str(made.path))
                    server.send(viewer, Snapshot(0, info, [], {}, [], [], schema))
                case Command(op="leave"):
                    pass
                case Command() as command:
                    commands.append(command)
                    ok = command.run == 1
                    new = 3 if command.op == "clone" else None
                    text = f"run {command.run} says yes" if ok else "it is done"
                    server.send(command.viewer, Reply(command.id, ok, text, new))

    thread = threading.Thread(target=serve)
    thread.start()
    yield commands
    server.inbox.put(None)
    thread.join()
    server.close()
    lock.close()


def test_ops_reach_the_scheduler_and_its_answers_are_printed(told, scheduler):
    assert told("stop", "exp", "a") == (0, "run 1 says yes\n", "")
    assert told("resume", "exp", "1", "2") == (1, "run 1 says yes\n", "rftui: it is done\n")
    code, out, _ = told("delete", "exp", "2", "1", "--yes", "--json")
    assert code == 1 and [json.loads(line) for line in out.splitlines()] == [
        {"ok": False, "text": "it is done", "run": 2},
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


def test_ops_that_cannot_be_start_no_scheduler(told, make, monkeypatch):
    make(Run(0, "a", state="done"), Run(0, "b", state="stopped"))
    monkeypatch.setattr(link, "spawn", pytest.fail)
    code, _, err = told("stop", "exp", "1", "2")
    assert code == 1 and err.splitlines() == [
        "rftui: cannot stop run 1: it is done",
        "rftui: cannot stop run 2: it is already stopped; r resumes it",
    ]


def test_delete_asks_on_a_terminal(told, scheduler, monkeypatch):
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(isatty=lambda: True))
    answers = ["n", "y"]
    monkeypatch.setattr("builtins.input", lambda prompt: answers.pop(0))
    assert told("delete", "exp", "1")[0] == 1 and not scheduler
    assert told("delete", "exp", "1")[0] == 0 and len(scheduler) == 1
