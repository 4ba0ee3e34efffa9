"""`rules`."""

import json

import pytest
from test_ops import Scheduler

from rftui import launching
from rftui.automl import RFEarlyStopping, rules
from rftui.messages import Reply
from rftui.runs import Run
from rftui.store import Store


@pytest.fixture
def experiment(make):
    made = make(Run(0, "a", state="running"))
    store = Store(made.db)
    store.set_meta("rules", rules.written(rules.switches(RFEarlyStopping(4))[0]))
    store.close()
    return made


@pytest.fixture
def scheduler(experiment):
    made = Scheduler(experiment, lambda command: Reply(command.id, command.name != "median", f"{command.name}: done"))
    yield made.commands
    made.end()


def test_they_are_listed_without_a_scheduler(told, experiment, monkeypatch):
    monkeypatch.setattr(launching, "spawn", pytest.fail)
    code, out, _ = told("rules", "exp")
    title, *rows = out.splitlines()
    assert code == 0 and title.split() == ["RULE", "IS", "WITH", "WHAT", "IT", "DOES"]
    assert [row.split()[:2] for row in rows] == [["halving", "off"], ["median", "off"], ["early", "on"]]
    assert "patience 4, min_delta 0" in rows[2] and "4 chunk ends in a row" in rows[2]
    listed = json.loads(told("rules", "exp", "--json")[1])
    assert [list(rule) for rule in listed] == [["name", "on", "about", "parameters"]] * 3
    assert listed[2]["on"] is True and listed[2]["parameters"]["patience"] == 4


def test_all_are_off_where_nothing_was_said(told, make):
    make(Run(0, "a"), name="old")
    assert [rule["on"] for rule in json.loads(told("rules", "old", "--json")[1])] == [False] * 3


def test_a_switch_reaches_the_scheduler_and_its_answer_is_printed(told, scheduler):
    assert told("rules", "exp", "on", "halving", "--set", "reduction_factor=3", "--set", "metric=eval_f1") == (
        0, "halving: done\n", "",
    )  # fmt: skip
    assert told("rules", "exp", "off", "median") == (1, "", "rftui: median: done\n")
    code, out, _ = told("rules", "exp", "off", "early", "--json")
    assert code == 0 and json.loads(out) == {"ok": True, "text": "early: done"}
    assert [(command.op, command.name, command.changes, command.by) for command in scheduler] == [
        ("rule", "halving", {"on": True, "reduction_factor": 3, "metric": "eval_f1"}, "cli"),
        ("rule", "median", {"on": False}, "cli"),
        ("rule", "early", {"on": False}, "cli"),
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["on"], "which rule? rftui rules exp on RULE: halving, median, early"),
        (["on", "halfing"], "there is no rule 'halfing'; did you mean 'halving'?"),
        (
            ["on", "halving", "--set", "reduction_factor=1"],
            "reduction_factor must be a whole number, 2 or more, not 1",
        ),
        (["on", "halving", "--set", "reduction_factor"], "write it as PARAMETER=VALUE"),
        (["on", "early", "--set", "patience=long"], "patience must be a whole number, 1 or more, not 'long'"),
        (["on", "early", "--set", "min_runs=2"], "has no 'min_runs'"),
        (["on", "early", "--readonly"], "can't switch rules with --readonly"),
        (["maybe", "early"], "invalid choice: 'maybe'"),
    ],
)
def test_what_cannot_be_is_refused_and_starts_no_scheduler(told, experiment, monkeypatch, words, line):
    monkeypatch.setattr(launching, "spawn", pytest.fail)
    code, out, err = told("rules", "exp", *words)
    assert (code, out) == (2, "") and line in err and err.count("\n") == 1


def test_where_the_scheduler_has_no_word_for_it_any_more_the_next_one_is_asked(told, experiment, monkeypatch):
    started = []

    def reopen(which):
        started.append(Scheduler(which, lambda command: Reply(command.id, True, "on")))
        return launching.Launch("exp", experiment=which)

    monkeypatch.setattr(launching, "reopen", reopen)
    old = Scheduler(experiment, lambda _: None)
    assert told("rules", "exp", "on", "halving") == (0, "on\n", "")
    assert [command.name for command in started[0].commands] == ["halving"]
    old.end()
    started[0].end()


def test_show_tells_which_runs_a_rule_stopped(told, make):
    make(Run(0, "a", state="stopped", stopped_by="rule early: it has not become better"), name="pruned")
    assert "run 1: stopped by rule early: it has not become better" in told("show", "pruned")[1]
    assert "rule early: it has not become better" in told("show", "pruned", "1")[1]
