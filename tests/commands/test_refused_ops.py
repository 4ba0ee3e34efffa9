"""Every op that a state refuses, from the shell and from Python: in the same words, and no scheduler is started."""

import pytest

import rftui
from rftui import launching
from rftui.errors import UserError
from rftui.runs import QUEUED, RUNNING, STOPPED, STOPPING, WAITING
from tests.ops_table import REFUSED, STATES, TABLE, refusal, run_in

LEFT = {RUNNING: WAITING, STOPPING: STOPPED}
"""What is made of a run's state where no scheduler is alive."""


@pytest.fixture
def runs(make, monkeypatch):
    """An experiment, which no scheduler holds, with a run in each state."""
    monkeypatch.setattr(launching, "spawn", pytest.fail)
    made = [run_in(state) for state in STATES]
    make(*made)
    return dict(zip(STATES, made, strict=True))


@pytest.mark.parametrize(("op", "state"), [each for each in REFUSED if TABLE[each[0]][LEFT.get(each[1], each[1])]])
def test_a_refusal_is_told_in_the_same_words_from_the_shell_and_from_python(told, runs, op, state):
    run = runs[state]
    reason = TABLE[op][LEFT.get(state, state)]
    line = refusal(run, op, reason)
    assert told(op, "exp", str(run.id), *(["--yes"] if op == "delete" else [])) == (1, "", f"rftui: {line}\n")
    with rftui.connect("exp") as experiment, pytest.raises(UserError) as fault:
        getattr(experiment, op)(run.id)
    assert fault.value.lines == (line,)


def test_states_that_no_scheduler_holds_are_those_that_the_next_one_makes(runs):
    experiment = rftui.connect("exp")
    assert [run.state for run in experiment.runs[:4]] == [QUEUED, WAITING, WAITING, STOPPED]
