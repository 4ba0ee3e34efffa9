"""What a warm clone starts with: its parent's next loss, a schedule, fresh or continued, and the weights of a rank."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import get_scheduler

from rftui import messages
from rftui.automl import RFLoraConfig, RFModelConfig, RFSFTConfig
from rftui.checkpoints import checkpoint_marker
from tests.training.engine import TINY, Engine, logged, of


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def engine(tmp_path_factory, one_thread):
    """A parent without dropout that has ended its first chunk, and from there is both pinned, for clones 2 to 9, and
    trained on."""
    args = {"learning_rate": 5e-3, "per_device_train_batch_size": 2, "num_train_epochs": 1, "logging_steps": 1}
    args |= {"eval_strategy": "no"}
    group = RFModelConfig(
        TINY,
        peft_config=RFLoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "v_proj"]),
        training_args=RFSFTConfig(**args, max_length=48, seed=1, lr_scheduler_type="cosine", warmup_steps=2),
    )
    engine = Engine(tmp_path_factory.mktemp("home"), group, num_chunks=2)
    engine.start(1)
    engine.turn(1)
    engine.before = engine.until(1, messages.TurnEnded)
    assert engine.order(messages.SnapshotWeights(1, list(range(2, 10))))
    engine.before += engine.until(1, messages.WeightsReady)
    engine.after = engine.train(1)
    return engine


def clone(engine, number, changes=None, **how):
    """Train a warm clone of run 1 to its end; its reports."""
    marker = checkpoint_marker(engine.experiment.run(number).start)
    position = {"start_step": marker["step"], "start_epoch": marker["epoch"], "start_row": marker["row"]}
    engine.start(number, config_index=0, parent=1, warm=True, changes=changes or {}, **position, **how)
    return engine.train(number)


def adapter(engine, number):
    return load_file(engine.experiment.run(number).final / "adapter_model.safetensors")


def test_its_first_loss_is_its_parents_next(engine):
    seen = engine.seen_of_2 = clone(engine, 2)
    assert logged(seen, "loss")[0][1] == logged(engine.after, "loss")[0][1]
    assert logged(engine.before, "loss")[0][1] > logged(engine.after, "loss")[0][1]


def test_its_epochs_are_counted_on_from_its_parents_start(engine):
    """The first half of its parent's only epoch was done where it starts; with its last row the whole of it is."""
    [begun], stepped = of(engine.seen_of_2, messages.Begun), of(engine.seen_of_2, messages.Stepped)
    start, stop, rows = (begun.grid[name] for name in ("start", "stop", "rows"))
    assert begun.epoch == start / rows > 0 and stop == rows
    assert stepped[-1].epoch == 1.0
    assert checkpoint_marker(engine.experiment.run(2).checkpoints / f"step-{stepped[-1].step}")["epoch"] == 1.0


def test_the_typed_learning_rate_is_the_one_that_trains(engine):
    """The schedule is fresh, over the steps that are left."""
    rates = logged(clone(engine, 3, {"training_args.learning_rate": 1e-3}), "learning_rate")
    steps = len(rates)
    assert steps == len(logged(engine.after, "learning_rate"))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    schedule = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=steps)
    expected = []
    for step in range(1, steps + 1):
        expected.append((step, schedule.get_last_lr()[0]))
        optimizer.step()
        schedule.step()
    assert rates == expected


def test_a_larger_rank_starts_with_its_parents_next_loss_to_float_order(engine):
    seen = clone(engine, 4, {"peft_config.r": 16, "peft_config.lora_alpha": 32})
    assert logged(seen, "loss")[0][1] == pytest.approx(logged(engine.after, "loss")[0][1], abs=1e-5)
    assert {tensor.shape[0] for name, tensor in adapter(engine, 4).items() if "lora_A" in name} == {16}


def test_a_continued_schedule_is_the_parents_training_itself(engine):
    """With nothing changed the clone makes its parent's bytes; with another rate it follows the parent's curve."""
    seen = clone(engine, 5, continue_schedule=True)
    assert [value for _, value in logged(seen, "loss")] == [value for _, value in logged(engine.after, "loss")]
    rates = [value for _, value in logged(engine.after, "learning_rate")]
    assert [value for _, value in logged(seen, "learning_rate")] == rates
    ours, parents = adapter(engine, 5), adapter(engine, 1)
    assert all(torch.equal(ours[name], parents[name]) for name in parents)
    halved = logged(clone(engine, 6, {"training_args.learning_rate": 2.5e-3}, continue_schedule=True), "learning_rate")
    assert [value for _, value in halved] == pytest.approx([rate / 2 for rate in rates])


def test_a_continued_schedule_outlasts_a_stop(engine):
    whole = clone(engine, 7, continue_schedule=True)
    marker = checkpoint_marker(engine.experiment.run(8).start)
    position = {"start_step": marker["step"], "start_epoch": marker["epoch"], "start_row": marker["row"]}
    how = {"config_index": 0, "parent": 1, "warm": True, "continue_schedule": True, **position}
    engine.start(8, **how)
    engine.turn(8)
    engine.until(8, messages.Stepped, holds=lambda message: message.step == 2)
    engine.order(messages.Halt(8))
    before = engine.until(8, messages.Halted)
    engine.start(8, resume=True, **how)
    after = engine.train(8)
    step = of(before, messages.Halted)[0].step
    assert logged(after, "loss") == [point for point in logged(whole, "loss") if point[0] > step]
    ours, theirs = adapter(engine, 8), adapter(engine, 7)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_schedule_that_follows_the_losses_is_not_continued(engine):
    marker = checkpoint_marker(engine.experiment.run(9).start)
    plateau = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 5}
    changes = {f"training_args.{name}": value for name, value in plateau.items()}
    position = {"start_step": marker["step"], "start_row": marker["row"]}
    engine.start(9, config_index=0, parent=1, warm=True, continue_schedule=True, changes=changes, **position)
    engine.turn(9)
    [failed] = of(engine.until(9, messages.Failed), messages.Failed)
    assert "cannot be continued" in failed.error and "fresh schedule" in failed.error
