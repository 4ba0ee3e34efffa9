"""What the rules decide, from plain data; and their parameters."""

import math
from statistics import mean, median

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rftui.automl import RFEarlyStopping, RFMedianStopping, RFSuccessiveHalving, rules
from rftui.automl.verdicts import KEEP, PASS, STOP, End, chunk_value, decide
from rftui.errors import UserError
from rftui.runs import DELETED, DONE, FAILED, QUEUED, RUNNING, STOPPED, STOPPING, WAITING, Run

PER = 10
"""Optimizer steps of a chunk."""


def made(number, state=WAITING, *, chunks=8, warmup=None, **more):
    run = Run(number, f"r{number}", state=state, chunks=chunks, total_steps=chunks * PER)
    run.config = {"training_args": {} if warmup is None else {"warmup_steps": warmup}}
    for name, value in more.items():
        setattr(run, name, value)
    return run


def ended(*values, metric="eval_loss"):
    """The chunk ends of a run with these values; None: nothing was logged."""
    return {chunk: End(chunk * PER, {} if value is None else {metric: value}) for chunk, value in enumerate(values, 1)}


def ask(rule, runs, ends, taken=None, after=None):
    """run -> outcome, and the verdicts."""
    verdicts = decide(rule, runs, ends, taken or {}, after or {})
    return {verdict.run: verdict.outcome for verdict in verdicts}, verdicts


def stopped(rule, runs, ends, taken=None, after=None):
    return {run for run, outcome in ask(rule, runs, ends, taken, after)[0].items() if outcome == STOP}


# ---------------------------------------------------------------- successive halving


def twelve(values=range(12), **how):
    return [made(n, **how) for n in range(1, 13)], {n: ended(float(value)) for n, value in enumerate(values, 1)}


def test_the_better_half_goes_on_and_the_reason_says_why():
    runs, ends = twelve()
    outcomes, verdicts = ask(RFSuccessiveHalving(), runs, ends)
    assert outcomes == {n: KEEP if n < 7 else STOP for n in range(1, 13)}
    assert verdicts[8].reason == "eval_loss 8 after chunk 1 of 8 is 9th of 12; 6 go on"


@pytest.mark.parametrize(("factor", "kept"), [(2, [6, 3, 2, 1]), (3, [6, 2, 1, 1]), (100, [6, 1, 1, 1])])
def test_the_first_rung_keeps_half_and_the_later_ones_one_in_factor(factor, kept):
    rule, taken, (runs, _) = RFSuccessiveHalving(factor), {}, twelve(chunks=10**9)
    rungs = rule.rungs()
    for left in kept:
        rung = next(rungs)
        active = [run for run in runs if run.state == WAITING]
        ends = {run.id: {rung: End(rung * PER, {"eval_loss": run.id / 10})} for run in active}
        for verdict in decide(rule, runs, ends, taken, {}):
            taken[verdict.run, rung] = verdict.outcome
            runs[verdict.run - 1].state = STOPPED if verdict.outcome == STOP else WAITING
        assert [run.id for run in runs if run.state == WAITING] == list(range(1, left + 1))


@pytest.mark.parametrize("late", [QUEUED, RUNNING, WAITING])
def test_a_rung_waits_for_every_active_run_of_the_fit(late):
    runs, ends = twelve()
    runs[4].state = late
    del ends[5]
    assert ask(RFSuccessiveHalving(), runs, ends) == ({}, [])


@pytest.mark.parametrize("gone", [STOPPING, STOPPED, FAILED, DELETED, DONE])
def test_a_rung_does_not_wait_for_a_run_that_is_not_coming(gone):
    runs, ends = twelve()
    runs[4].state = gone
    del ends[5]
    assert len(stopped(RFSuccessiveHalving(), runs, ends)) == 5


def test_a_rung_does_not_wait_for_clones_exempt_runs_other_fits_or_one_that_is_two_chunks_behind():
    runs, ends = twelve()
    runs += [made(13, parent=1), made(14, exempt=True), made(15, fit=2), made(16, algo="DPO")]
    assert len(stopped(RFSuccessiveHalving(), runs, ends)) == 6
    runs, ends = twelve()
    runs.append(made(13))
    assert not stopped(RFSuccessiveHalving(), runs, ends)
    ends[1] = ended(0.0, 0.0, 0.0)
    assert len(stopped(RFSuccessiveHalving(), runs, ends)) == 6


def test_a_run_that_comes_late_is_judged_against_those_that_were_judged_there():
    runs, ends = twelve()
    taken = {(n, 1): KEEP if n < 7 else STOP for n in range(1, 13)}
    for run in runs[6:]:
        run.state = STOPPED
    runs += [made(13, parent=1), made(14, parent=2)]
    ends |= {13: ended(2.5), 14: ended(9.5)}
    outcomes, verdicts = ask(RFSuccessiveHalving(), runs, ends, taken)
    assert outcomes == {13: KEEP, 14: STOP}
    assert verdicts[1].reason == "eval_loss 9.5 after chunk 1 of 8 is 11th of 13; 7 go on"


def test_a_warm_clone_is_not_judged_at_rungs_that_it_never_trained_to():
    runs, ends = twelve()
    taken = {(n, 1): KEEP if n < 7 else STOP for n in range(1, 13)}
    ends[13] = {3: End(0, {}), 4: End(5, {"eval_loss": 99.0})}
    assert not stopped(RFSuccessiveHalving(), [*runs, made(13, parent=1)], ends, taken)


def test_where_one_step_ended_several_chunks_the_run_is_judged_by_its_value_there():
    runs, ends = [made(1), made(2)], {1: {2: End(9, {"eval_loss": 5.0})}, 2: ended(1.0)}
    assert stopped(RFSuccessiveHalving(), runs, ends) == {1}


def test_a_rung_is_passed_over_where_a_run_is_in_its_warm_up():
    runs, ends = twelve()
    runs[0] = made(1, warmup=PER + 1)
    outcomes, verdicts = ask(RFSuccessiveHalving(), runs, ends)
    assert set(outcomes.values()) == {PASS} and "run 1 is still in its warm-up" in verdicts[0].reason
    taken = dict.fromkeys(((n, 1) for n in range(1, 13)), PASS)
    clone, ends[13] = made(13, parent=1), ended(99.0)
    assert ask(RFSuccessiveHalving(), [*runs, clone], ends, taken)[0] == {13: PASS}
    ends = {n: ended(0.0, float(n)) for n in range(1, 13)}
    assert len(stopped(RFSuccessiveHalving(4), [made(n) for n in range(1, 13)], ends, taken)) == 0, "rungs 1, 4, 16"
    ends = {n: ended(0.0, 0.0, 0.0, float(n)) for n in range(1, 13)}
    assert stopped(RFSuccessiveHalving(4), runs, ends, taken) == set(range(7, 13)), "the first that is decided"


@pytest.mark.parametrize(
    ("warmup", "in_it"), [(None, False), (0, False), (10, False), (11, True), (0.13, True), (0.125, False)]
)
def test_warm_up_is_in_steps_or_a_share_of_all(warmup, in_it):
    runs, ends = [made(1, warmup=warmup), made(2)], {1: ended(1.0), 2: ended(2.0)}
    assert stopped(RFSuccessiveHalving(), runs, ends) == (set() if in_it else {2})


def test_a_clone_that_goes_on_with_its_parents_schedule_has_its_warm_up_behind_it():
    ends = {1: ended(1.0), 2: {1: End(3, {"eval_loss": 2.0})}}
    clone = {"parent": 1, "warmup": 15, "start_step": 12}
    assert stopped(RFSuccessiveHalving(), [made(1), made(2, continue_schedule=True, **clone)], ends) == {2}
    assert not stopped(RFSuccessiveHalving(), [made(1), made(2, **clone)], ends)


def test_runs_that_tie_with_the_last_one_that_goes_on_go_on_too():
    runs, ends = twelve([1, 2, 3, 4, 5, 6, 6, 6, 7, 8, 9, 10])
    assert stopped(RFSuccessiveHalving(), runs, ends) == {9, 10, 11, 12}


def test_nan_is_the_worst_and_a_run_without_a_value_goes_on():
    runs, ends = [made(n) for n in range(1, 6)], {n: ended(math.nan) for n in range(1, 6)}
    ends[5] = ended(100.0)
    assert stopped(RFSuccessiveHalving(), runs, ends) == {3, 4}
    ends = {1: ended(2.0), 2: ended(None), 3: ended(None), 4: ended(3.0), 5: ended(1.0)}
    outcomes, _ = ask(RFSuccessiveHalving(), runs, ends)
    assert outcomes == {1: KEEP, 2: KEEP, 3: KEEP, 4: STOP, 5: KEEP}


def test_a_metric_that_nobody_logs_stops_nobody_and_is_told():
    runs, ends = twelve()
    outcomes, verdicts = ask(RFSuccessiveHalving(metric="eval_f1"), runs, ends)
    assert set(outcomes.values()) == {KEEP}
    assert verdicts[0].reason == "nothing is decided after chunk 1: no run has logged eval_f1"


def test_runs_that_are_done_are_compared_with_and_left_as_they_are():
    runs, ends = twelve(reversed(range(12)))
    runs[11].state = DONE
    outcomes, _ = ask(RFSuccessiveHalving(), runs, ends)
    assert 12 not in outcomes and outcomes == {n: STOP if n < 7 else KEEP for n in range(1, 12)}


def test_what_ended_before_the_rule_was_switched_on_is_not_judged():
    runs, ends = [made(n) for n in range(1, 5)], {n: ended(*[float(n)] * 3) for n in range(1, 5)}
    after = {1: 3, 2: 2, 3: 3, 4: 3}
    assert ask(RFSuccessiveHalving(), runs, ends, after=after) == ({}, [])
    ends = {n: ended(*[float(n)] * 4) for n in range(1, 5)}
    outcomes, verdicts = ask(RFSuccessiveHalving(4), runs, ends, after=after)
    assert outcomes == {1: KEEP, 2: KEEP, 3: STOP, 4: STOP} and {verdict.rung for verdict in verdicts} == {4}


def test_each_algo_is_halved_by_itself_and_grpo_by_its_reward():
    runs = [made(1), made(2), made(3, algo="GRPO"), made(4, algo="GRPO"), made(5, algo="DPO"), made(6, algo="DPO")]
    ends = {
        1: ended(1.0), 2: ended(2.0),
        3: ended(0.9, metric="reward"), 4: ended(0.1, metric="reward"),
        5: ended(0.7, metric="loss"), 6: ended(0.6, metric="loss"),
    }  # fmt: skip
    assert stopped(RFSuccessiveHalving(), runs, ends) == {2, 4, 5}


@pytest.mark.parametrize(
    ("metric", "mode", "greater"),
    [
        ("eval_loss", None, False), ("loss", "max", True), ("eval_accuracy", None, True), ("eval_f1", None, True),
        ("rewards/accuracies", None, True), ("eval_rougeL", None, True), ("mean_token_accuracy", None, True),
        ("entropy", None, False), ("eval_perplexity", None, False), ("eval_accuracy", "min", False),
    ],
)  # fmt: skip
def test_whether_more_is_better_is_told_or_guessed(metric, mode, greater):
    runs, ends = [made(1), made(2)], {1: ended(1.0, metric=metric), 2: ended(2.0, metric=metric)}
    assert stopped(RFSuccessiveHalving(metric=metric, mode=mode), runs, ends) == {1 if greater else 2}


# ---------------------------------------------------------------- successive halving, whatever comes

scores = st.one_of(st.none(), st.floats(allow_nan=True), st.sampled_from([0.0, 1.0, 2.0]))
members = st.lists(
    st.fixed_dictionaries(
        {
            "state": st.sampled_from([QUEUED, RUNNING, WAITING, WAITING, WAITING, STOPPED, DONE, FAILED]),
            "exempt": st.booleans(),
            "parent": st.sampled_from([None, None, None, 1]),
            "warmup": st.sampled_from([None, None, None, 15, 0.5]),
            "values": st.lists(scores, max_size=8),
        }
    ),
    min_size=1,
    max_size=10,
)
halvings = st.builds(
    RFSuccessiveHalving, st.integers(2, 4), st.integers(1, 3), mode=st.sampled_from([None, "min", "max"])
)
anyrule = st.one_of(
    halvings,
    st.builds(RFMedianStopping, st.integers(1, 3), st.integers(1, 3)),
    st.builds(RFEarlyStopping, st.integers(1, 3), st.floats(0, 1)),
)


def given_runs(members):
    runs, ends = [], {}
    for number, member in enumerate(members, 1):
        fields = dict(member)
        ends[number] = ended(*fields.pop("values"))
        runs.append(made(number, **fields))
    return runs, ends


def told(verdicts):
    return sorted((verdict.run, verdict.rung, verdict.outcome, verdict.reason) for verdict in verdicts)


@given(halvings, members)
@settings(deadline=None)
def test_half_stays_at_the_first_rung_and_at_least_one_always(rule, members):
    runs, ends = given_runs(members)
    taken = {}
    first = True
    while verdicts := decide(rule, runs, ends, taken, {}):
        (rung,) = {verdict.rung for verdict in verdicts}
        out = {verdict.run for verdict in verdicts if verdict.outcome == STOP}
        if out:
            there = [run for run in runs if (run.id in {verdict.run for verdict in verdicts} or run.state == DONE)]
            there = [run for run in there if rung in ends[run.id]]
            stay = [run for run in there if run.id not in out]
            late = any(other == rung for _, other in taken)
            assert stay or late
            if first and not late:
                assert len(stay) * 2 >= len(there)
            if not late:
                assert len(stay) * rule.reduction_factor >= len(there)
        first = first and all(verdict.outcome == PASS for verdict in verdicts)
        for verdict in verdicts:
            assert (verdict.run, rung) not in taken, "decided twice"
            taken[verdict.run, rung] = verdict.outcome
            if verdict.outcome == STOP:
                runs[verdict.run - 1].state = STOPPED


@given(halvings, members)
@settings(deadline=None)
def test_those_that_stop_are_worse_than_those_that_stay(rule, members):
    runs, ends = given_runs(members)
    verdicts = decide(rule, runs, ends, {}, {})
    sign = -1 if rule.mode == "max" else 1

    def score(verdict):
        value = ends[verdict.run][verdict.rung].values.get("eval_loss")
        return None if value is None else math.inf if math.isnan(value) else sign * value

    assume(not any("loss" in end.values for of_run in ends.values() for end in of_run.values()))
    kept = [score(verdict) for verdict in verdicts if verdict.outcome == KEEP]
    for verdict in verdicts:
        if verdict.outcome == STOP:
            assert score(verdict) is not None
            assert all(other is None or other < score(verdict) or other == math.inf for other in kept)


@given(anyrule, members)
@settings(deadline=None)
def test_nobody_stops_who_is_exempt_in_its_warm_up_or_not_training(rule, members):
    runs, ends = given_runs(members)
    for verdict in decide(rule, runs, ends, {}, {}):
        run = runs[verdict.run - 1]
        assert not run.exempt and run.state in (QUEUED, RUNNING, WAITING)
        warmup = run.config["training_args"].get("warmup_steps") or 0
        warmup = warmup * run.total_steps if warmup < 1 else warmup
        assert verdict.outcome != STOP or ends[run.id][verdict.rung].step >= warmup


@given(anyrule, members, st.data())
@settings(deadline=None)
def test_the_order_in_which_runs_and_ends_come_makes_no_difference(rule, members, data):
    runs, ends = given_runs(members)
    order = data.draw(st.permutations(runs))
    turned = {run.id: dict(reversed(ends[run.id].items())) for run in order}
    assert told(decide(rule, runs, ends, {}, {})) == told(decide(rule, order, turned, {}, {}))


@given(anyrule, members)
@settings(deadline=None)
def test_what_is_decided_is_decided_once(rule, members):
    runs, ends = given_runs(members)
    taken = {}
    for _ in range(100):
        verdicts = decide(rule, runs, ends, taken, {})
        assert not {(verdict.run, verdict.rung) for verdict in verdicts} & taken.keys()
        if not verdicts:
            return
        taken |= {(verdict.run, verdict.rung): verdict.outcome for verdict in verdicts}
    raise AssertionError("it never comes to an end")


@given(anyrule, members, st.integers(0, 9))
@settings(deadline=None)
def test_nothing_is_judged_that_ended_before_the_rule_was_on(rule, members, past):
    runs, ends = given_runs(members)
    for verdict in decide(rule, runs, ends, {}, {run.id: past for run in runs}):
        assert verdict.rung > past


# ---------------------------------------------------------------- median, early stopping


def test_a_run_stops_whose_best_is_worse_than_the_median_of_the_others_averages():
    runs = [made(n) for n in range(1, 5)]
    ends = {1: ended(3.0, 1.0), 2: ended(4.0, 2.0), 3: ended(5.0, 3.0), 4: ended(9.0, 3.5)}
    outcomes, verdicts = ask(RFMedianStopping(), runs, ends)
    others = median([mean([3.0, 1.0]), mean([4.0, 2.0]), mean([5.0, 3.0])])
    assert others == 3.0 and outcomes == {1: KEEP, 2: KEEP, 3: KEEP, 4: STOP}
    assert verdicts[3].reason == (
        "its best eval_loss in 2 of 8 chunks, 3.5, is worse than 3, the median of the averages of 3 others"
    )


def test_the_median_wants_enough_others_at_that_chunk_whatever_became_of_them():
    runs = [made(1), made(2, STOPPED), made(3, DONE), made(4)]
    ends = {1: ended(9.0), 2: ended(1.0), 3: ended(1.0, 1.0), 4: {}}
    assert ask(RFMedianStopping(), runs, ends) == ({}, [])
    assert stopped(RFMedianStopping(min_runs=2), runs, ends) == {1}
    runs[1].state = DELETED
    assert ask(RFMedianStopping(min_runs=2), runs, ends) == ({}, [])


def test_the_median_spares_the_first_chunks_and_a_run_in_its_warm_up():
    runs, ends = [made(n) for n in range(1, 6)], {n: ended(float(n)) for n in range(1, 6)}
    assert stopped(RFMedianStopping(), runs, ends) == {4, 5}
    assert ask(RFMedianStopping(min_chunks=2), runs, ends) == ({}, [])
    runs[4] = made(5, warmup=11)
    assert stopped(RFMedianStopping(), runs, ends) == {4}


@pytest.mark.parametrize(
    ("values", "patience", "delta", "stops"),
    [
        ([3.0, 2.0, 2.1, 2.2], 2, 0.0, True),
        ([3.0, 2.0, 2.1, 2.2], 3, 0.0, False),
        ([3.0, 2.0, 2.0, 2.0], 2, 0.0, True),
        ([3.0, 2.9, 2.8, 2.7], 3, 0.5, True),
        ([3.0, 2.9, 2.8, 2.4], 3, 0.5, False),
        ([1.0, math.nan, math.nan], 2, 0.0, True),
        ([math.nan, 1.0], 1, 0.0, False),
        ([1.0, 2.0, None], 1, 0.0, False),
        ([1.0, None, 2.0], 1, 0.0, True),
        ([1.0], 1, 0.0, False),
    ],
)
def test_a_run_stops_that_has_not_become_better(values, patience, delta, stops):
    outcome = stopped(RFEarlyStopping(patience, delta), [made(1)], {1: ended(*values)})
    assert outcome == ({1} if stops else set())


def test_early_stopping_says_what_it_saw_and_does_not_count_the_warm_up():
    _, (verdict,) = ask(RFEarlyStopping(2, 0.1), [made(1)], {1: ended(2.0, 1.95, 2.5)})
    assert verdict.reason == (
        "eval_loss 2.5 after chunk 3 of 8; it has not become better by more than 0.1 at the last 2 chunk ends, "
        "its best is 2 after chunk 1"
    )
    _, (verdict,) = ask(RFEarlyStopping(1, mode="max"), [made(1)], {1: ended(2.0, 1.0)})
    assert "at the last chunk end, its best is 2 after chunk 1" in verdict.reason
    assert not stopped(RFEarlyStopping(2), [made(1, warmup=21)], {1: ended(1.0, 2.0, 3.0, 3.5)})


def test_a_chunks_value_is_the_mean_of_the_training_and_the_last_of_the_evaluations():
    assert chunk_value("loss", [1.0, 3.0]) == 2.0
    assert chunk_value("eval_loss", [1.0, 3.0]) == 3.0
    assert math.isnan(chunk_value("loss", [1.0, math.nan]))


# ---------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (RFSuccessiveHalving(1), "reduction_factor must be a whole number, 2 or more, not 1"),
        (RFSuccessiveHalving(min_chunks=0), "min_chunks must be a whole number, 1 or more, not 0"),
        (RFMedianStopping(min_runs=True), "min_runs must be a whole number, 1 or more, not True"),
        (RFMedianStopping(mode="up"), "mode must be 'min' or 'max', not 'up'"),
        (RFEarlyStopping(1.5), "patience must be a whole number, 1 or more, not 1.5"),
        (RFEarlyStopping(min_delta=math.nan), "min_delta must be a number, 0 or more, not nan"),
        (
            RFEarlyStopping(metric=" "),
            "metric must be the name of a metric that is logged, such as eval_loss, not ' '",
        ),
    ],
)
def test_parameters_that_make_no_sense_are_told_in_a_line(rule, line):
    assert rules.faults(rule) == [line]
    made, lines = rules.switches([rule])
    assert lines == [f"{type(rule).__name__}: {line}"] and made[rule.name].on


def test_what_run_fit_is_given_is_on_and_everything_else_is_off():
    made, lines = rules.switches(RFEarlyStopping(5))
    assert not lines and {name: switch.on for name, switch in made.items()} == {
        "halving": False, "median": False, "early": True,
    }  # fmt: skip
    assert made["early"].rule.patience == 5 and rules.switches(None)[0]["early"].rule.patience == 3
    _, lines = rules.switches(["halving", RFEarlyStopping(1), RFEarlyStopping(2)])
    assert lines == [
        "rules holds 'halving'; it can hold RFSuccessiveHalving, RFMedianStopping, RFEarlyStopping",
        "rules holds RFEarlyStopping twice: one of each is enough",
    ]


def test_what_is_kept_comes_back():
    made, _ = rules.switches([RFSuccessiveHalving(3, metric="eval_f1"), RFMedianStopping()])
    made["median"].after = {4: 2}
    assert rules.read(rules.written(made)) == made
    assert rules.read(None) == rules.switches(None)[0]


def test_a_rule_is_switched_and_changed():
    off = rules.switches(None)[0]["halving"]
    on = rules.switched(off, {"on": True, "reduction_factor": 3}, {1: 2})
    assert (on.on, on.rule.reduction_factor, on.after) == (True, 3, {1: 2})
    again = rules.switched(on, {"on": True}, {1: 5})
    assert again == on, "what is on stays as it is"
    assert rules.switched(on, {"min_chunks": 2}, {1: 5}).after == {1: 5}
    assert rules.switched(on, {"on": False}, {1: 5}).on is False
    for changes, line in [
        ({"on": "yes"}, "rule halving: on must be true or false, not 'yes'"),
        ({"factor": 3}, "rule halving: has no 'factor' (it has reduction_factor, min_chunks, metric, mode)"),
        (
            {"min_chunk": 3},
            "rule halving: has no 'min_chunk'; did you mean 'min_chunks'? (it has reduction_factor, "
            "min_chunks, metric, mode)",
        ),
        ({"min_chunks": 0}, "rule halving: min_chunks must be a whole number, 1 or more, not 0"),
    ]:
        with pytest.raises(UserError) as fault:
            rules.switched(on, changes, {})
        assert str(fault.value) == line
    with pytest.raises(UserError, match="did you mean 'halving'"):
        rules.kind("halfing")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("patience", " 4 ", 4), ("min_delta", "1e-3", 1e-3), ("patience", "many", "many"), ("metric", "auto", None),
        ("metric", "7", "7"), ("mode", "max", "max"), ("metric", "none", None),
    ],
)  # fmt: skip
def test_what_is_typed_is_read(name, text, value):
    assert rules.parse(name, text) == value


def test_each_rule_says_what_it_does_and_how_it_is_set():
    starts = {name: rule().about[:11] for name, rule in rules.RULES.items()}
    assert starts == {"halving": "after chunk", "median": "a run stops", "early": "a run stops"}
    assert RFSuccessiveHalving(3, 2).about.startswith("after chunk 2, 6, 18, ... the best 1 in 3")
    assert rules.format_rule(RFEarlyStopping(metric="loss")) == "patience 3, min_delta 0, metric loss"
