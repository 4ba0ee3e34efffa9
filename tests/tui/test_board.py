"""What a viewer knows: snapshots and updates in, rows and columns out."""

from __future__ import annotations

import math

import pytest
from fakes import NOW, made, snapshot

from rftui.curves import POINTS
from rftui.messages import Device, Event, Update
from rftui.tui.board import Board, Change, summary


def board(*runs, **more) -> Board:
    made_board = Board()
    made_board.reset(snapshot(list(runs) or None, **more))
    return made_board


def test_a_snapshot_replaces_everything():
    one = board()
    one.marked = {1, 5}
    change = one.reset(snapshot([made(1), made(9)], curves={9: {"loss": [(1, 2.0)]}}))
    assert one.shown == [1, 9] and list(one.curves) == [9] and one.curves.points(9, "loss") == [(1, 2.0)]
    assert one.marked == {1}, "a run that is no more is not marked"
    assert change.layout and change.runs == {1, 9}


def test_an_update_tells_what_it_changed():
    one = board(made(1), made(2))
    change = one.apply(Update(11, points=[(1, "loss", 105, 1.5)]))
    assert change == Change(runs={1}, curves={1})
    assert one.curves.points(1, "loss")[-1] == (105, 1.5)
    event, device = Event(4, NOW, "x"), Device("gpu1", "ready")
    change = one.apply(Update(12, events=[event], devices=[device], runs=[made(2, "stopped")]))
    assert change == Change(runs={2}, events=True, devices=True)
    assert one.events[-1] is event and one.devices["gpu1"] is device and list(one.devices) == ["cpu", "gpu1"]


def test_a_new_a_deleted_and_a_changed_run_rearrange_the_rows():
    one = board(made(1), made(2))
    assert one.apply(Update(11, runs=[made(3, lr=5e-4)])).layout
    assert one.shown == [1, 2, 3] and one.knobs == ["training_args.learning_rate"]
    assert one.apply(Update(12, runs=[made(2, "deleted")])).layout
    assert one.shown == [1, 3] and [run.id for run in one.alive] == [1, 3]
    assert not one.apply(Update(13, runs=[made(1, step=105)])).layout


def test_curves_are_bounded_and_keep_their_ends():
    one = board(made(1), curves={})
    for step in range(5000):
        one.apply(Update(step, points=[(1, "loss", step, float(step))]))
        curve = one.curves.points(1, "loss")
        assert len(curve) <= POINTS and curve[0] == (0, 0.0) and curve[-1] == (step, float(step))
    assert len(curve) > POINTS // 3
    assert curve == sorted(curve)


def test_a_rewound_run_loses_the_points_past_its_step():
    one = board(made(1), made(2), curves={1: {"loss": [(5, 2.0), (10, 1.9), (15, 1.8)]}, 2: {"loss": [(15, 1.0)]}})
    change = one.apply(Update(11, rewound={1: 10}, points=[(1, "loss", 12, 1.7)]))
    assert one.curves.points(1, "loss") == [(5, 2.0), (10, 1.9), (12, 1.7)]
    assert one.curves.points(2, "loss") == [(15, 1.0)]
    assert change.runs == {1}


def test_the_event_log_is_bounded():
    one = board(made(1))
    one.apply(Update(11, events=[Event(n, NOW, str(n)) for n in range(2000)]))
    assert len(one.events) == 500 and one.events[-1].text == "1999"


@pytest.mark.parametrize(
    ("text", "found"),
    [("", [1, 7, 2, 3, 4, 5, 6]), ("WARM", [7]), ("stopped", [3]), ("lr0.01", [5]), ("[/b", []), ("nothing", [])],
)
def test_the_filter_looks_at_id_name_and_state(text, found):
    one = board()
    one.set_filter(text)
    assert one.shown == found


def test_a_filter_by_state_follows_the_runs():
    one = board(made(1), made(2, "waiting"))
    one.set_filter("waiting")
    assert one.shown == [2]
    assert one.apply(Update(11, runs=[made(1, "waiting")])).layout
    assert one.shown == [1, 2]


def test_sort_puts_runs_without_a_finite_loss_last():
    runs = [made(1), made(2), made(3), made(4, step=0), made(5)]
    for run, loss in zip(runs, (2.0, math.nan, 1.0, None, math.inf), strict=True):
        run.metrics = {} if loss is None else {"loss": loss}
    one = board(*runs)
    one.sort_by("loss")
    assert one.shown[:2] == [3, 1] and set(one.shown[2:]) == {2, 4, 5}
    assert one.apply(Update(11, runs=[made(1, metrics={"loss": 0.5})])).layout
    assert one.shown[:2] == [1, 3]
    assert not one.apply(Update(12, runs=[made(1, metrics={"loss": 0.4})])).layout
    one.sort_by(None)
    assert one.shown == [1, 2, 3, 4, 5]


def test_clones_stand_under_their_parents():
    runs = [made(1), made(2), made(3, parent=1), made(4, parent=3), made(5, parent=1), made(6, parent=99)]
    one = board(*runs)
    assert one.shown == [1, 3, 4, 5, 2, 6]
    assert [len(one.branches[run]) for run in one.shown] == [0, 1, 2, 1, 0, 0]
    one.apply(Update(11, runs=[made(3, "deleted", parent=1)]))
    assert one.shown == [1, 4, 5, 2, 6], "what was cloned from a deleted run stands under the next ancestor"


def test_ops_act_on_the_marked_runs_else_on_the_one_under_the_cursor():
    one = board()
    assert [run.id for run in one.targets(3)] == [3]
    assert one.targets(None) == [] and one.targets(99) == []
    one.marked = {2, 7}
    assert [run.id for run in one.targets(3)] == [7, 2]
    one.set_filter("waiting")
    assert [run.id for run in one.targets(3)] == [7, 2]
    one.set_filter("stopped")
    assert [run.id for run in one.targets(3)] == [3], "a mark that is not seen does not act"


def test_what_is_plotted():
    few = board()
    assert few.plotted(3) == [run for run in few.shown if run != 6], "run 6 has no curve yet"
    few.marked = {4}
    assert few.plotted(3) == [4]
    queued = board(*(made(n, step=25 if n < 9 else 0) for n in range(1, 21)))
    assert queued.plotted(15) == list(range(1, 9)), "those that have not begun push none of the others out"
    many = board(*(made(n) for n in range(1, 21)))
    assert many.plotted(5) == [5] and many.plotted(None) == [1]
    assert Board().plotted(None) == []


def test_only_varying_knobs_are_columns_rate_and_rank_first():
    runs = [made(1), made(2, r=8)]
    for run, dropout in zip(runs, (0.0, 0.1), strict=True):
        run.knobs = {"peft_config.lora_dropout": dropout, "training_args.seed": 1} | run.knobs
    one = board(*runs)
    assert one.knobs == ["peft_config.r", "peft_config.lora_dropout"]
    assert board(made(1)).knobs == []


def test_metrics_start_with_the_losses():
    one = board(made(1), curves={1: {"grad_norm": [], "eval_loss": [], "loss": [], "accuracy": []}})
    assert one.metrics() == ["loss", "eval_loss", "accuracy", "grad_norm"]


def test_what_was_asked_for_is_settled_by_a_change_of_state_alone():
    one = board(made(1), made(2))
    one.asked = {1: ("stopping", "running"), 2: ("stopping", "running")}
    one.apply(Update(11, runs=[made(1, step=105)]))
    assert set(one.asked) == {1, 2}
    one.apply(Update(12, runs=[made(1, "stopping")]))
    assert set(one.asked) == {2}
    one.reset(snapshot([made(1), made(2, "stopped")]))
    assert not one.asked


def test_changes_add_up():
    change = Change(runs={1}, events=True)
    change.merge(Change(runs={2}, curves={2}, layout=True))
    assert change == Change(runs={1, 2}, curves={2}, events=True, layout=True)


def test_the_summary_says_how_the_runs_stand_and_how_to_come_back():
    lines = summary(board())
    assert len(lines) == 8
    assert lines[0].split() == ["1", "sft-lr0.0002-r16", "running", "4/16", "loss", "1.7", "eval", "1.8"]
    assert lines[-1] == "Reopen with: rftui open tinychat-sft --home /nowhere"
    assert summary(Board()) == []


def test_an_empty_experiment():
    one = Board()
    one.reset(snapshot([], events=[], devices=[]))
    assert one.shown == [] and one.knobs == [] and one.metrics() == [] and one.active == 0
