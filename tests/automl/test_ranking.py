"""Which runs are the best."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rftui.automl.ranking import best, more_is_better, usual_metric
from rftui.runs import DELETED, FAILED, RUNNING, Run


def run(number, state=RUNNING, algo="SFT", **metrics):
    return Run(number, str(number), algo, state=state, metrics=metrics)


@pytest.mark.parametrize(
    ("metric", "more"),
    [("eval_loss", False), ("loss", False), ("reward", True), ("eval_reward", True), ("rewards/accuracies", True)]
    + [("mean_token_accuracy", True), ("eval_bleu", True), ("reward_std", False), ("entropy", False)],
)
def test_what_is_better(metric, more):
    assert more_is_better(metric) == more


@pytest.mark.parametrize(
    ("runs", "metric"),
    [
        ([run(1, loss=1.0), run(2, loss=2.0, eval_loss=2.0)], "eval_loss"),
        ([run(1, loss=1.0), run(2, loss=2.0, eval_loss=math.nan)], "loss"),
        ([run(1, algo="GRPO", loss=1.0, reward=0.1)], "reward"),
        ([run(1, algo="GRPO", eval_loss=1.0, eval_reward=0.1)], "eval_reward"),
        ([], "loss"),
    ],
)
def test_the_usual_metric(runs, metric):
    assert usual_metric(runs) == metric


def test_deleted_failed_and_unmeasured_runs_are_never_the_best():
    runs = [run(1, DELETED, loss=0.1), run(2, FAILED, loss=0.1), run(3), run(4, loss=math.inf), run(5, loss=2.0)]
    assert [each.id for each in best(runs, None, 3)] == [5]


RUNS = st.lists(st.floats(-1e6, 1e6), max_size=8).map(lambda them: [run(n, m=v, score=v) for n, v in enumerate(them)])


@given(RUNS, st.sampled_from(["m", "score"]), st.integers(-1, 9))
def test_none_of_the_others_is_better(runs, metric, k):
    chosen = best(runs, metric, k)
    assert len(chosen) == max(0, min(k, len(runs)))
    values = [each.metrics[metric] for each in chosen]
    assert values == sorted(values, reverse=metric == "score")
    others = [each.metrics[metric] for each in runs if each not in chosen]
    if values and others:
        assert values[-1] >= max(others) if metric == "score" else values[-1] <= min(others)


@given(RUNS, st.integers(0, 8))
def test_the_best_few_begin_the_best_of_more(runs, k):
    assert best(runs, "m", k) == best(runs, "m", k + 1)[:k]
