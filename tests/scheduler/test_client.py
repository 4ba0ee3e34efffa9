"""`rftui.connect`: the ops from Python, over the link to a scheduler whose workers are fake."""

import threading

import numpy
import pytest

import rftui
from rftui.errors import UserError
from rftui.messages import Field, Finish
from rftui.runs import DELETED, DONE, RUNNING, STOPPED, STOPPING

RATE = "training_args.learning_rate"


@pytest.fixture
def connected(play, world, experiment):
    """A scheduler whose only worker is about to take run 1's third step, that hold, and a connection."""
    world.schema["SFT"] += [Field("peft_config.target_modules", "list", optional=True)]
    world.save_chunks = True
    hold = world.hold(1, 3)
    play(viewer=True)
    hold.wait()
    with rftui.connect("exp", experiment.home) as connection:
        yield connection, hold


def test_ops_answer_in_the_words_of_the_keys(connected, world):
    exp, hold = connected
    exp.wait(lambda runs: runs[0].state == RUNNING)
    assert exp.run("r2").id == 2 and exp.state == "running"
    assert exp.stop(1, "r3") == ["Run 1 stops at its next step", "Run 3 stops at its next step"]
    with pytest.raises(UserError, match=r"^Can't stop run 3 r3: already stopping"):
        exp.stop("r3")
    world.came("cpu")
    hold.go.set()
    runs = exp.wait(lambda runs: runs[0].state == runs[2].state == STOPPED)
    assert runs[0].step == 2 and [value for _, value in exp.curves(1)["loss"]] == [1.0, 0.5]
    assert exp.resume(1, 3)[0].startswith("Run 1 resumes from step 2")
    assert {run.state for run in exp.wait()} == {DONE}
    assert exp.delete(2) and exp.run(2).state == DELETED
    assert exp.undo(2) and exp.run(2).state == DONE


def test_of_several_runs_all_are_asked_and_the_refusals_raised(connected):
    exp, _ = connected
    with pytest.raises(UserError) as fault:
        exp.stop(2, 2, 3)
    assert fault.value.lines == ("Can't stop run 2 r2: already stopping",)
    assert [run.state for run in exp.runs[1:]] == [STOPPING, STOPPING]


def test_clones_take_pythons_values_and_short_names(connected, world):
    exp, hold = connected
    [one] = exp.clone(1, {"learning_rate": 3e-4}, name="mine")
    assert (one.name, one.changes, one.parent, one.warm) == ("mine", {RATE: 3e-4}, 1, False)
    many = exp.clone(1, {"lr": [1e-5, 1e-6], "target_modules": ["q_proj", "v_proj"]})
    assert [run.changes[RATE] for run in many] == [1e-5, 1e-6]
    assert {tuple(run.changes["peft_config.target_modules"]) for run in many} == {("q_proj", "v_proj")}
    lists = exp.clone(1, {"target_modules": [["q_proj"], ("q_proj", "v_proj")]})
    assert [run.changes["peft_config.target_modules"] for run in lists] == [["q_proj"], ["q_proj", "v_proj"]]
    [earlier] = exp.clone(1, {"lr": 2e-5}, from_step=2)
    assert earlier.warm and earlier.start_step == 2
    [kept] = exp.clone(1, {"lr": 2e-5}, continue_schedule=True)
    assert kept.warm and kept.continue_schedule
    for changes, why in (
        ({"lr": "fast"}, "must be a number"),
        ({"learning_rat": 1}, "learning_rate"),
        ({}, "no changes"),
    ):
        with pytest.raises(UserError, match=why):
            exp.clone(1, changes)
    assert len(exp.runs) == 10
    [scalar] = exp.clone(exp.run(1), {"lr": numpy.float32(0.5)})
    assert scalar.changes == {RATE: 0.5}
    for changes, why in (({"lr": 1e-3, RATE: 1e-4}, "set twice"), ({"lr": print}, "cannot be builtin")):
        with pytest.raises(UserError, match=why):
            exp.clone(1, changes)
    hold.go.set()
    assert {run.state for run in exp.wait()} == {DONE}


def test_rules_are_switched(connected):
    exp, hold = connected
    assert "halving is on" in exp.rule("halving", reduction_factor=3)
    assert "halving is off" in exp.rule("halving", on=False)
    for name, parameters, why in (("quartering", {}, "quartering"), ("halving", {"reduction_factor": 1}, "reduction")):
        with pytest.raises(UserError, match=why):
            exp.rule(name, **parameters)
    hold.go.set()


def test_the_best_runs_go_by_that_name(connected, world):
    exp, hold = connected
    hold.go.set()
    exp.wait()
    [clone] = exp.clone("best", {"lr": 1e-6})
    assert clone.parent == 1
    assert [run.parent for run in exp.clone("best:2", {"lr": 1e-7})] == [1, 2]
    with pytest.raises(UserError, match="best:3"):
        exp.clone("best:x", {"lr": 1e-7})


def test_two_connections_act_at_once(connected):
    exp, hold = connected
    failures = []

    def clone(value):
        try:
            with rftui.connect("exp", exp.experiment.home) as own:
                own.clone(1, {"lr": value})
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=clone, args=(number * 1e-5,)) for number in (2, 3, 4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(exp.runs) == 7 and len({run.name for run in exp.runs}) == 7
    hold.go.set()


def test_waiting_ends_with_the_scheduler(connected, play):
    exp, hold = connected
    waited = []
    thread = threading.Thread(target=lambda: waited.extend(exp.wait(lambda runs: False)))
    thread.start()
    with rftui.connect("exp", exp.experiment.home) as other:
        other.stop(1, 2, 3)
        hold.go.set()
        other.wait()
        other.ask(Finish())
    play.plays[0].end()
    thread.join(30)
    assert not thread.is_alive() and [run.state for run in waited] == [STOPPED] * 3


def test_an_experiment_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="no experiment 'nothing'"):
        rftui.connect("nothing", tmp_path)
