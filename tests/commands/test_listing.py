"""`ls` and `show`."""

import json
import math

import pytest

from rftui.redaction import HIDDEN
from rftui.runs import Run
from rftui.store import Store

FIELDS = (
    "id name state chunk chunks step total_steps epoch device parent knobs metrics error suggestion checkpoint final"
).split()


def test_ls_and_show_speak_json(told, make):
    knobs = {"training_args.learning_rate": 1e-4, "hub_token": "hf_abcdefghijkl"}
    made = make(
        Run(0, "a", state="done", knobs=knobs, metrics={"loss": 1.5, "eval_loss": math.nan}, epoch=1.0),
        Run(0, "b", state="failed", error="out of memory"),
        points=[(1, "loss", 1, 2.0), (1, "loss", 2, 1.5), (1, "eval_loss", 2, math.nan)],
    )
    code, out, _ = told("ls", "--json")
    [listed] = json.loads(out)
    assert code == 0 and listed["name"] == "exp" and listed["path"] == str(made.path)
    assert listed["state"] == "done" and listed["runs"] == 2
    _, out, _ = told("show", "exp", "--json")
    shown = json.loads(out, parse_constant=pytest.fail)
    assert {key: shown[key] for key in ("name", "state", "path")} == {
        "name": "exp",
        "state": "done",
        "path": str(made.path),
    }
    assert [list(run) for run in shown["runs"]] == [FIELDS, FIELDS]
    assert shown["runs"][0]["knobs"]["hub_token"] == HIDDEN
    assert shown["runs"][0]["metrics"] == {"loss": 1.5, "eval_loss": None}
    assert shown["runs"][1]["error"] == "out of memory"
    for wanted in ("1", "a"):
        _, out, _ = told("show", "exp", wanted, "--json")
        one = json.loads(out)
        assert list(one) == [*FIELDS, "curves"]
        assert one["curves"] == {"loss": [[1, 2.0], [2, 1.5]], "eval_loss": [[2, None]]}


def test_tables_align_and_show_every_knob(told, make):
    knobs = {"training_args.learning_rate": 1e-4, "peft_config.r": 8, "api_key": "sk-aaaaaaaaaaaa"}
    make(
        Run(0, "lr=[1e-4\x1b[31m\n", state="done", knobs=knobs, metrics={"loss": 1.23456}, final="/f"),
        Run(0, "b", state="failed", error="out of\nmemory", parent=1),
    )
    code, out, _ = told("show", "exp")
    lines = out.splitlines()
    assert code == 0 and lines[0].startswith("exp: done, 2 runs")
    assert lines[1].split()[:7] == ["ID", "NAME", "STATE", "CHUNK", "STEP", "EPOCH", "LOSS"]
    assert lines[1].split()[-3:] == ["lr", "r", "api_key"] and HIDDEN in lines[2]
    assert lines[1].index("STATE") == lines[2].index("done") == lines[3].index("failed")
    assert lines[4] == "run 2: out of memory" and "\x1b" not in out
    _, out, _ = told("show", "exp", "1")
    assert "1.235" in out and "/f" in out and "sk-" not in out
    assert told("ls")[1].splitlines()[1].split() == ["exp", "done", "2", "0", "1", "1"]


def test_running_is_never_shown_where_no_scheduler_runs(told, make):
    states = ("running", "waiting", "stopping", "stopped", "queued")
    made = make(*(Run(0, state, state=state, device="cpu") for state in states))
    with made.lock():
        shown = json.loads(told("show", "exp", "--json")[1])
        assert shown["state"] == "running"
        assert [(run["state"], run["device"]) for run in shown["runs"]] == [(state, "cpu") for state in states]
    shown = json.loads(told("show", "exp", "--json")[1])
    assert shown["state"] == json.loads(told("ls", "--json")[1])[0]["state"] == "interrupted"
    after = ["waiting", "waiting", "stopped", "stopped", "queued"]
    assert [(run["state"], run["device"]) for run in shown["runs"]] == [(state, None) for state in after]


def test_an_experiment_whose_last_run_was_stopping_has_ended(told, make):
    make(Run(0, "a", state="stopping"), Run(0, "b", state="done"))
    assert json.loads(told("ls", "--json")[1])[0]["state"] == "done"
    code, out, _ = told("open", "exp", "--headless")
    assert code == 0 and "nothing left to train" in out


def test_the_states_of_an_experiment(told, make):
    def state():
        return json.loads(told("ls", "--json")[1])[0]["state"]

    made = make(Run(0, "a"))
    assert state() == "interrupted"
    with made.lock():
        assert state() == "loading"
        store = Store(made.db)
        store.save_run(Run(1, "a", state="stopped"))
        store.close()
        assert state() == "idle"
    assert state() == "done"


def test_what_is_not_there_is_told_in_one_line(told, make):
    assert told("ls")[0] == 0 and json.loads(told("ls", "--json")[1]) == []
    make(Run(0, "a"), Run(0, "twin"), Run(0, "twin"))
    for arguments, text in [
        (["show", "nothing"], "there are: exp"),
        (["open", "nothing"], "there are: exp"),
        (["show", "exp", "99"], "there are: 1, 2, 3"),
        (["show", "exp", "twin"], "several runs are called 'twin': 2, 3"),
        (["stop", "exp", "99"], "there are: 1, 2, 3"),
    ]:
        code, out, err = told(*arguments)
        assert (code, out, err.count("\n")) == (1, "", 1) and text in err and err.startswith("rftui: ")


def test_a_database_that_cannot_be_read_does_not_hide_the_others(told, make):
    make(Run(0, "a"))
    make(name="broken").db.write_bytes(b"no database at all" * 100)
    code, out, err = told("ls")
    assert code == 0 and "exp" in out and "broken" in err and "Traceback" not in err
    assert told("show", "broken")[0] == 1


def test_an_experiment_that_was_killed_before_its_runs_were_written_is_not_done(told, make):
    made = make()
    advice = f"exp was interrupted before its runs were written: run its script again, and remove {made.path}"
    assert [each["state"] for each in json.loads(told("ls", "--json")[1])] == ["interrupted"]
    assert told("ls")[1].splitlines()[-1] == advice
    assert advice in told("show", "exp")[1].splitlines()
    assert told("open", "exp") == told("open", "exp", "--headless") == (1, "", f"rftui: {advice}\n")
    with made.lock():
        assert [each["state"] for each in json.loads(told("ls", "--json")[1])] == ["loading"]
        assert advice not in told("show", "exp")[1]
