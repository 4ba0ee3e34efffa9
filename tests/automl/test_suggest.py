"""What is suggested where a run fails or goes wrong, and that nothing is where it learns."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rftui.automl import suggest
from rftui.config.validate import clone_faults
from rftui.messages import Field
from rftui.runs import DELETED, DONE, FAILED, QUEUED, RUNNING, STOPPED, WAITING, Run

LR, BATCH, ACCUM = (
    "training_args.learning_rate",
    "training_args.per_device_train_batch_size",
    "training_args.gradient_accumulation_steps",
)
R, ALPHA, TARGETS = "peft_config.r", "peft_config.lora_alpha", "peft_config.target_modules"
FIELDS = [
    Field(LR, "float", 2e-5),
    Field(BATCH, "int", 8),
    Field(ACCUM, "int", 1),
    Field("training_args.num_generations", "int", 8, optional=True),
    Field("training_args.steps_per_generation", "int", None, optional=True),
    Field("training_args.temperature", "float", 1.0),
    Field("training_args.max_completion_length", "int", 512, optional=True),
    Field("training_args.warmup_steps", "float", 0),
    Field(R, "int", 8),
    Field(ALPHA, "int", 8),
    Field(TARGETS, "list", None, optional=True),
]
OOM, DIVERGED = "memory", "diverged"


def run(state=RUNNING, algo="SFT", args=None, peft=True, **fields):
    config = {"model_name": "m", "training_args": {"learning_rate": 3e-4, "num_train_epochs": 2} | (args or {})}
    config["peft_config"] = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]} if peft else None
    position = {"step": 200, "total_steps": 400, "epoch": 1.0}
    return Run(1, "one", algo, state=state, config=config, **(position | fields))


def suggestion(of_run, curves):
    return suggest.suggestion(of_run, lambda metric: curves.get(metric, []))


def curve(values, every=5):
    return [(every * (number + 1), value) for number, value in enumerate(values)]


def noise(count, level, spread, seed=0):
    chance = random.Random(seed)
    return [level + chance.gauss(0, spread) for _ in range(count)]


def falling(count=40, start=2.5, end=1.2):
    return [end + (start - end) * 0.9**number for number in range(count)]


def test_out_of_memory_halves_the_batch():
    found = suggestion(run(FAILED, failure=OOM), {})
    assert found.changes == {BATCH: 4, ACCUM: 2} and not found.warm and "out of memory" in found.reason
    assert suggestion(run(FAILED, failure=OOM, checkpoint="c", checkpoints=[100]), {}).warm
    odd = suggestion(run(FAILED, failure=OOM, args={"per_device_train_batch_size": 5}), {})
    assert odd.changes == {BATCH: 1, ACCUM: 5}, "the rows of a step stay as they are"
    assert suggestion(run(FAILED, failure=OOM, args={"per_device_train_batch_size": 1}), {}) is None


@pytest.mark.parametrize("steps", [None, 4])
def test_out_of_memory_in_grpo_keeps_the_generation(steps):
    args = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 8}
    found = suggestion(run(FAILED, "GRPO", args | {"steps_per_generation": steps}, failure=OOM), {})
    assert found.changes[BATCH] == 2 and found.changes[ACCUM] == 4
    assert found.changes.get("training_args.steps_per_generation") == (8 if steps else None)


def test_a_diverged_run_gets_a_lower_learning_rate():
    found = suggestion(run(FAILED, failure=DIVERGED), {"loss": curve([1.0, 9.0])})
    assert (found.changes, found.warm) == ({LR: 1e-4}, False) and "it diverged" in found.reason
    assert suggestion(run(FAILED, failure=DIVERGED, checkpoint="c", checkpoints=[100]), {}).warm
    low = suggestion(run(FAILED, failure=DIVERGED, args={"learning_rate": 2e-5}), {})
    assert low.changes == {ACCUM: 2} and "low learning rate" in low.reason


def test_a_diverged_run_starts_before_its_loss_rose():
    curves = {"loss": curve([*falling(30), *(1.3 + 0.1 * n for n in range(20))])}
    failed = run(FAILED, failure=DIVERGED, step=250, checkpoint="c", checkpoints=[225, 250])
    assert not suggestion(failed, curves).warm, "those weights are spoiled"
    failed.checkpoints = [125, 250]
    assert suggestion(failed, curves).from_step == 125


@pytest.mark.parametrize("error", ["reward function f returned nan for completion 3", "KeyError: 'text'", None])
def test_other_failures_are_not_guessed_at(error):
    rising = {"loss": curve([*falling(), *(3.0 + n for n in range(20))])}
    assert suggestion(run(FAILED, error=error), rising) is None


def test_a_loss_that_rises():
    curves = {"loss": curve([*falling(30), *(1.3 + 0.1 * n for n in range(20))])}
    found = suggestion(run(step=250), curves)
    assert found.changes == {LR: 1e-4} and not found.warm and "rises since about step 1" in found.reason
    found = suggestion(run(step=250, checkpoints=[125, 250]), curves)
    assert (found.warm, found.from_step) == (True, 125)
    assert not suggestion(run(step=250, checkpoints=[225, 250]), curves).warm, "those are of the wrong time"


def test_a_loss_that_swings():
    found = suggestion(run(), {"loss": curve([2.0 + (-1) ** number for number in range(40)])})
    assert found.changes == {LR: 1e-4} and found.warm and "swings" in found.reason


def test_an_eval_loss_that_rises_while_the_loss_falls():
    curves = {"loss": curve(falling(40)), "eval_loss": curve([1.6, 1.4, 1.45, 1.5, 1.6, 1.7], every=30)}
    found = suggestion(run(), curves)
    assert found.changes == {R: 8, ALPHA: 16} and not found.warm and "since step 60" in found.reason
    found = suggestion(run(checkpoints=[75, 180]), curves)
    assert (found.changes, found.warm, found.from_step) == ({LR: 1e-4}, True, 75)
    assert not suggestion(run(checkpoints=[150, 180]), curves).warm, "those are overfitted, too"
    finished = run(DONE, step=400, epoch=2.0, checkpoints=[75, 400])
    assert suggestion(finished, curves).from_step == 75
    assert suggestion(run(peft=False), curves) is None


def test_losses_that_stay_high():
    curves = {"loss": curve(noise(40, 2.5, 0.03)), "eval_loss": curve([2.5, 2.49, 2.5], every=60)}
    found = suggestion(run(), curves)
    assert found.changes == {R: 32, ALPHA: 64, TARGETS: "all-linear"} and found.warm and "flat" in found.reason
    assert suggestion(run(step=50), curves) is None, "it has hardly begun"
    assert suggestion(run(), {"loss": curves["loss"]}) is None, "there is no eval loss to agree"
    assert not suggestion(run(DONE, step=400, epoch=2.0), curves).warm
    widest = run()
    widest.config["peft_config"] |= {"r": 64, "target_modules": "all-linear"}
    assert suggestion(widest, curves) is None


def test_grpo_without_a_spread_of_rewards():
    curves = {"reward_std": curve([0.0] * 8), "reward": curve([0.5] * 8)}
    found = suggestion(run(algo="GRPO"), curves)
    assert found.changes == {"training_args.temperature": 1.2} and found.warm and "same reward" in found.reason
    hot = suggestion(run(algo="GRPO", args={"temperature": 1.4}), curves)
    assert hot.changes == {"training_args.num_generations": 16, ACCUM: 2}, "16 do not divide a batch of 8"
    assert suggestion(run(algo="GRPO"), curves | {"reward": curve([0.1] * 4 + [1.0] * 4)}) is None, "it is won"
    assert suggestion(run(algo="GRPO"), {"reward_std": curve([0.0] * 7)}) is None


def test_grpo_whose_completions_are_cut_off():
    curves = {"completions/clipped_ratio": curve([0.5, *[1.0] * 8]), "reward_std": curve([0.3] * 9)}
    found = suggestion(run(algo="GRPO"), curves)
    assert found.changes == {"training_args.max_completion_length": 1024} and "cut off" in found.reason
    curves["completions/clipped_ratio"][-1] = (45, 0.9)
    assert suggestion(run(algo="GRPO"), curves) is None


@pytest.mark.parametrize(("every", "points"), [(1, 40), (5, 8), (50, 1)])
def test_grpo_is_judged_by_steps_however_often_they_are_logged(every, points):
    cut_off = {"completions/clipped_ratio": curve([1.0] * points, every)}
    stuck = {"reward_std": curve([0.0] * points, every), "reward": curve([0.5] * points, every)}
    assert "cut off" in suggestion(run(algo="GRPO"), cut_off).reason
    assert "same reward" in suggestion(run(algo="GRPO"), stuck).reason
    fewer = {metric: values[: points - 1] for metric, values in (cut_off | stuck).items()}
    assert suggestion(run(algo="GRPO"), fewer) is None
    short = run(algo="GRPO", total_steps=30, step=8)
    assert suggestion(short, {"reward_std": curve([0.0] * 8, 1)}) and every


def test_grpo_whose_completions_are_all_cut_off_is_not_told_to_be_warmer():
    """They get the same reward because none comes to its end."""
    curves = {"completions/clipped_ratio": curve([1.0] * 8), "reward_std": curve([0.0] * 8)}
    found = suggestion(run(algo="GRPO"), curves)
    assert found.changes == {"training_args.max_completion_length": 1024} and "cut off" in found.reason
    unlimited = suggestion(run(algo="GRPO", args={"max_completion_length": None}), curves)
    assert "training_args.temperature" in unlimited.changes


@pytest.mark.parametrize("state", [QUEUED, DELETED])
def test_runs_that_are_not_there(state):
    assert suggestion(run(state, failure=OOM), {"loss": curve(noise(40, 2.5, 1.5))}) is None


# ---------------------------------------------------------------- silence


@settings(deadline=None)
@given(
    start=st.floats(0.5, 12),
    fall=st.floats(0.15, 0.99),
    rate=st.floats(0.7, 0.98),
    count=st.integers(0, 200),
    chance=st.integers(0, 1000),
    spread=st.floats(0, 0.04),
    state=st.sampled_from([RUNNING, WAITING, STOPPED]),
)
def test_a_run_that_learns_gets_none(start, fall, rate, count, chance, spread, state):
    """However fast its loss falls, in whatever part of it, with the noise of small batches."""
    end = start * (1 - fall)
    clean = [end + (start - end) * rate**number for number in range(count)]
    uncertain = random.Random(chance)
    loss = [value * (1 + uncertain.gauss(0, spread)) for value in clean]
    evals = clean[:: max(1, count // 8)]
    curves = {"loss": curve(loss), "eval_loss": curve(evals, every=5 * max(1, count // 8))}
    assert suggestion(run(state), curves) is None
    assert suggestion(run(state, "GRPO"), curves | {"reward_std": curve([0.2] * count)}) is None


@pytest.mark.parametrize("spread", [0.05, 0.1, 0.2])
def test_chance_is_no_rise(spread):
    told = [suggestion(run(), {"loss": curve(noise(60, 1.5, 1.5 * spread, seed))}) for seed in range(300)]
    assert not any(told)


# ---------------------------------------------------------------- soundness

NUMBERS = st.lists(st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 3), max_size=60)


@settings(deadline=None)
@given(
    state=st.sampled_from([RUNNING, STOPPED, DONE, FAILED]),
    algo=st.sampled_from(["SFT", "DPO", "GRPO"]),
    failure=st.sampled_from(["", OOM, DIVERGED]),
    args=st.fixed_dictionaries(
        {},
        optional={
            "learning_rate": st.sampled_from([1e-7, 1e-5, 1e-3]),
            "per_device_train_batch_size": st.integers(1, 9),
            "gradient_accumulation_steps": st.integers(1, 4),
            "num_generations": st.integers(2, 8) | st.none(),
            "steps_per_generation": st.integers(1, 4) | st.none(),
            "max_completion_length": st.sampled_from([None, 16]),
            "temperature": st.sampled_from([0.7, 1.0, 1.4]),
            "warmup_steps": st.sampled_from([0, 0.1, 150, 500]),
            "max_steps": st.sampled_from([-1, 400]),
        },
    ),
    peft=st.booleans(),
    checkpoints=st.lists(st.integers(1, 200), max_size=3, unique=True).map(sorted),
    curves=st.fixed_dictionaries(
        {},
        optional={
            "loss": NUMBERS | st.just([*falling(30), *range(2, 22)]) | st.just([2.0] * 40),
            "eval_loss": NUMBERS | st.just([2.0, 1.0, 1.1, 1.2, 1.3]) | st.just([2.0] * 5),
            "reward_std": NUMBERS | st.just([0.0] * 9),
            "completions/clipped_ratio": st.just([1.0] * 9),
        },
    ),
)
def test_whatever_is_suggested_can_be_done(state, algo, failure, args, peft, checkpoints, curves):
    """By the validator, with the fields of the form; and it says in one line why."""
    whole = {"step": 400, "epoch": 2.0} if state == DONE else {}
    checkpoint = str(checkpoints[-1]) if checkpoints else None
    origin = run(state, algo, args, peft, failure=failure, checkpoints=checkpoints, checkpoint=checkpoint, **whole)
    found = suggestion(origin, {metric: curve(map(float, values)) for metric, values in curves.items()})
    if found:
        assert not clone_faults(origin, found.changes, found.warm, FIELDS, from_step=found.from_step)
        assert found.reason and "\n" not in found.reason
