"""Warm clones of warm clones: what the check accepts has rows left to train on, and what it refuses has none."""

from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rftui.chunks import Grid
from rftui.config.validate import clone_faults
from rftui.config.warm import last_row
from rftui.messages import Field
from rftui.runs import DONE, STOPPED, Run

EPOCHS, STEPS = "training_args.num_train_epochs", "training_args.max_steps"
BATCH, ACCUMULATION = "training_args.per_device_train_batch_size", "training_args.gradient_accumulation_steps"
DROP = "training_args.dataloader_drop_last"
FIELDS = [
    Field(EPOCHS, "float", 3.0),
    Field(STEPS, "int", -1),
    Field(BATCH, "int", 8),
    Field(ACCUMULATION, "int", 1),
    Field(DROP, "bool", False),
]


def begun(number, args, used, start=None, stop=None):
    """A run whose trainer stands; a warm clone's goes from row `start` to `stop`."""
    batch = args[BATCH] * args[ACCUMULATION]
    rows = used if start is None else stop - start
    passes = 1 if start is not None else args[EPOCHS]
    steps = -(-rows // batch) * passes
    grid = Grid(used, min(4, used), batch, steps, start or 0, stop)
    config = {"model_name": "m", "peft_config": None, "training_args": {}}
    config["training_args"] = {name.partition(".")[2]: value for name, value in args.items()}
    return Run(number, f"run {number}", config=config, total_steps=steps, grid=asdict(grid))


def standing(run, step):
    run.step, run.state, run.checkpoint = step, DONE if step == run.total_steps else STOPPED, "c"
    run.checkpoints = [step]
    return run


@settings(deadline=None)
@given(
    rows=st.integers(3, 40),
    drop=st.booleans(),
    first=st.tuples(st.integers(1, 5), st.integers(1, 2), st.integers(1, 3)),
    chain=st.lists(
        st.tuples(
            st.floats(0, 1), st.integers(1, 5), st.integers(1, 2), st.one_of(st.integers(1, 5), st.sampled_from([1.5]))
        ),
        min_size=1,
        max_size=4,
    ),
    last_steps=st.one_of(st.none(), st.integers(1, 40)),
)
def test_accepted_is_what_has_rows_left(rows, drop, first, chain, last_steps):
    batch, accumulation, epochs = first
    drop = drop and batch <= rows
    args = {BATCH: batch, ACCUMULATION: accumulation, EPOCHS: epochs, STEPS: -1, DROP: drop}
    used = rows - rows % batch if drop else rows
    run, done, place = begun(1, args, used), 0, 0
    for number, (share, batch, accumulation, epochs) in enumerate(chain, 2):
        standing(run, max(1, round(share * run.total_steps)))
        # The place by hand: whole steps of each epoch, or of the one pass of a warm clone; the last may be ragged.
        whole = args[BATCH] * args[ACCUMULATION]
        if run.grid["stop"] is None:
            per_epoch = -(-used // whole)
            place = used * (run.step // per_epoch) + whole * (run.step % per_epoch)
        else:
            place = min(run.grid["stop"], run.grid["start"] + whole * run.step)
        done += run.step
        args = {BATCH: batch, ACCUMULATION: accumulation, EPOCHS: epochs, STEPS: -1, DROP: drop}
        if number == len(chain) + 1 and last_steps:
            args[STEPS] = last_steps
        asked = {name: value for name, value in args.items() if name != DROP}
        left = last_steps - done if args[STEPS] > 0 else int(epochs * used) - place
        if drop and args[STEPS] < 0:
            left -= max(left, 0) % batch
        faults = clone_faults(run, asked, True, FIELDS)
        assert bool(faults) == (left <= 0), (faults, left)
        clone = Run(number, "c", start_step=run.start_step + run.step, start_row=place, start_epoch=place / used)
        assert clone.start_step == done
        plain = {name.partition(".")[2]: value for name, value in args.items()}
        assert (last_row(clone, plain, used) > place) == (left > 0)
        if faults or args[STEPS] > 0:
            return
        run = begun(number, args, used, place, last_row(clone, plain, used))
        run.warm, run.start_step, run.start_row, run.start_epoch = True, done, place, place / used


def chain_of_three():
    """10 rows at batch 2: a root stopped at its end of 1 epoch, and a warm clone that trained a second one."""
    args = {BATCH: 2, ACCUMULATION: 1, EPOCHS: 2, STEPS: -1}
    run = begun(2, args, 10, 10, 20)
    run.warm, run.start_step, run.start_row, run.start_epoch = True, 5, 10, 1.0
    return standing(run, 5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "must be more than the 2 epochs already done"),
        ({EPOCHS: 2}, "must be more than the 2 epochs already done"),
        ({STEPS: 10}, "must be more than the 10 steps already done"),
        ({EPOCHS: 2.5}, None),
        ({STEPS: 11}, None),
    ],
)
def test_lengths_count_from_the_first_ancestor(changes, said):
    faults = clone_faults(chain_of_three(), changes, True, FIELDS)
    assert (said in next(iter(faults.values()))) if said else not faults


def test_too_few_rows_for_a_batch_are_no_rows():
    run = standing(begun(1, {BATCH: 4, ACCUMULATION: 1, EPOCHS: 1, STEPS: -1, DROP: True}, 12), 2)
    assert "fewer than the 8" in clone_faults(run, {BATCH: 8}, True, FIELDS)[EPOCHS]
    assert not clone_faults(run, {BATCH: 8, EPOCHS: 2}, True, FIELDS)


@pytest.mark.parametrize("passes", [0.0, 0.25, 1.0])
def test_epochs_of_a_warm_clone_count_on(passes):
    assert Grid(10, 4, 2, 5, 10, 20).epoch(passes) == 1 + passes
    assert Grid(10, 4, 2, 5).epoch(passes) == passes


def test_a_failed_parent_stands_at_its_last_checkpoint():
    """It failed in its last step; its weights are those of an earlier one, from which rows are left."""
    run = begun(1, {BATCH: 2, ACCUMULATION: 1, EPOCHS: 1, STEPS: -1}, 10)
    run.step, run.state, run.checkpoint, run.checkpoints = 5, "failed", "c", [3]
    assert not clone_faults(run, {BATCH: 1}, True, FIELDS)
