"""Every op in every state, whoever asks: the scheduler's answers, and what becomes of the run."""

import pytest
from test_races import RATE, Quiet, Rig

from rftui import messages
from rftui.paths import create
from rftui.runs import DELETED, FAILED, OPS, QUEUED, RUNNING, STOPPED, STOPPING, WAITING, why_not
from rftui.scheduler import loop
from rftui.store import Store
from tests.ops_table import ACCEPTED, GONE, REFUSED, STATES, TABLE, refusal, run_in

WHO = ("key", "cli", "python", "rule halving")

AFTER = {
    "stop": {QUEUED: STOPPED, RUNNING: STOPPING, WAITING: STOPPING},
    "resume": {STOPPED: QUEUED, FAILED: QUEUED},
    "clone": {},
    "delete": dict.fromkeys(STATES, DELETED),
    "undo": {DELETED: STOPPED},
}
"""The state of the run once the op is answered, where it is another one."""


@pytest.fixture
def rig(tmp_path, monkeypatch):
    """A scheduler, turned by hand, with one run in that state; a run that has begun is held by its worker."""
    monkeypatch.setattr(loop, "start_tracking", lambda experiment: Quiet())
    rigs = []

    def made(state):
        experiment = create(tmp_path, "exp")
        store = Store.create(experiment.db)
        store.add_fit(num_chunks=3, chunk_size=None, seed=1, rows=60, eval_rows=0)
        run = run_in(QUEUED if state in (RUNNING, WAITING, STOPPING) else state)
        run.name = run_in(state).name
        store.add_run(run)
        store.close()
        rig = Rig(experiment)
        rigs.append(rig)
        run = rig.registry.runs[1]
        rig.ready()
        run.before = run_in(state).before  # by this scheduler, not by an earlier one
        if state in (QUEUED, RUNNING, WAITING, STOPPING):
            rig.turns.assign()
            assert run.state == RUNNING
        if state in (WAITING, STOPPING):
            rig.says(messages.Begun(1, 0, 6, 0, 3, 0.0), messages.Stepped(1, 2, 1, 1.0))
            rig.turns.open = False  # it stays between two turns
            rig.says(messages.TurnEnded(1, 2, 1, 1.0, 0.1))
            assert run.state == WAITING
        if state == STOPPING:
            assert rig.ask("stop", 1).ok
        if state == QUEUED:
            run.state = QUEUED
            rig.turns.placements[1].free()
            rig.turns.open = False
        assert run.state == (DELETED if state == GONE else state)
        return rig

    yield made
    for rig in rigs:
        if not rig.closed:
            rig.scheduler.server.close()
            rig.scheduler.store.close()


def test_the_table_is_whole():
    assert set(TABLE) == set(OPS) and all(set(states) == set(STATES) for states in TABLE.values())


@pytest.mark.parametrize(("op", "state"), REFUSED)
def test_a_refusal_is_told_in_the_same_words_to_everybody_and_changes_nothing(rig, op, state):
    made = rig(state)
    run, tasks = made.registry.runs[1], list(made.tasks)
    before = vars(run).copy()
    said = {made.ask(op, 1, {RATE: 1.0} if op == "clone" else None, by=who).text for who in WHO}
    assert said == {refusal(run, op, TABLE[op][state])} == {refusal(run, op, why_not(run, op))}
    assert vars(run) == before and made.tasks == tasks and len(made.registry.runs) == 1


@pytest.mark.parametrize(("op", "state"), ACCEPTED)
@pytest.mark.parametrize("who", WHO)
def test_an_accepted_op_does_the_same_whoever_asks(rig, op, state, who):
    made = rig(state)
    made.turns.open = False  # so that what it does first is seen
    answer = made.ask(op, 1, {RATE: 1.0} if op == "clone" else None, by=who)
    assert answer.ok, answer.text
    assert made.registry.runs[1].state == AFTER[op].get(state, state)
    assert len(made.registry.runs) == (2 if op == "clone" else 1)
    shown = {"key": "by key", "cli": "from the shell", "python": "from Python"}.get(who, f"by {who}")
    assert shown in made.registry.store.events()[-1].text
    assert made.registry.store.accepted("unknown") is None


@pytest.mark.parametrize("op", OPS)
def test_a_command_that_comes_twice_is_done_once_and_answered_twice(rig, op):
    made = rig(next(state for asked, state in ACCEPTED if asked == op))
    first = made.ask(op, 1, {RATE: 1.0} if op == "clone" else None, id="same")
    tasks, runs = list(made.tasks), len(made.registry.runs)
    again = made.ask(op, 1, {RATE: 1.0} if op == "clone" else None, id="same")
    assert again == first and made.tasks == tasks and len(made.registry.runs) == runs
