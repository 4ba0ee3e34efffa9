"""A stop acts at the end of the optimizer step in which it comes; in an evaluation, or in the tokenisation of rows, at
the next batch."""

import datasets
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rftui import messages
from rftui.automl import RFLoraConfig, RFModelConfig, RFSFTConfig
from tests.training.engine import TINY, Engine, logged, of


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Presser:
    """A `create_model_fn` whose models press stop in forward pass number `at` of a kind: training or evaluating."""

    def __init__(self):
        self.training = self.evaluating = 0
        self.at, self.press = None, None

    def __reduce__(self):
        return (Presser, ())

    def __call__(self, config):
        model = AutoModelForCausalLM.from_pretrained(config["model_name"], dtype=torch.float32)

        def hook(module, inputs, output):
            kind = "training" if module.training else "evaluating"
            setattr(self, kind, getattr(self, kind) + 1)
            if self.at == (kind, getattr(self, kind)):
                self.press()

        model.model.register_forward_hook(hook)
        return model, AutoTokenizer.from_pretrained(config["model_name"])


def engine(folder, presser):
    args = {"learning_rate": 5e-3, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    args |= {"num_train_epochs": 1, "logging_steps": 1, "max_length": 48, "seed": 1, "eval_strategy": "chunk"}
    group = RFModelConfig(
        TINY,
        peft_config=RFLoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]),
        training_args=RFSFTConfig(**args, per_device_eval_batch_size=1, gradient_checkpointing=False),
    )
    made = Engine(folder, group, num_chunks=2, eval_rows=6)
    made.make_models_by(presser)
    return made


@pytest.mark.parametrize(
    ("at", "step"),
    [(("training", 5), 3), (("training", 6), 3), (("training", 7), 4)],
    ids=["in its first batch", "in its last batch", "in the next step"],
)
def test_a_stop_acts_at_the_end_of_the_step_in_which_it_is_pressed(tmp_path, at, step):
    """Of two batches a step; a chunk has three or four steps."""
    presser = Presser()
    made = engine(tmp_path, presser)
    presser.at, presser.press = at, lambda: made.order(messages.Halt(1))
    made.start(1)
    made.turn(1)
    seen = made.until(1, messages.Halted)
    assert of(seen, messages.Halted)[0].step == step and presser.training == 2 * step


def test_a_stop_in_an_evaluation_acts_at_its_next_batch_and_costs_no_byte(tmp_path):
    whole = engine(tmp_path / "whole", Presser())
    whole.start(1)
    expected = whole.train(1)
    presser = Presser()
    made = engine(tmp_path / "stopped", presser)
    presser.at, presser.press = ("evaluating", 2), lambda: made.order(messages.Halt(1))
    made.start(1)
    made.turn(1)
    before = made.until(1, messages.Halted)
    assert presser.evaluating == 2, "four of the six rows are not looked at any more"
    assert not logged(before, "eval_loss")
    made.start(1, resume=True)
    after = made.train(1)
    assert logged(after, "eval_loss") == logged(expected, "eval_loss"), "it is evaluated first"
    assert logged(before, "loss") + logged(after, "loss") == logged(expected, "loss")


@pytest.mark.parametrize("resume", [False, True])
def test_a_stop_while_rows_are_tokenised_acts_at_their_next_batch(tmp_path, monkeypatch, resume):
    monkeypatch.setattr(datasets.config, "PBAR_REFRESH_TIME_INTERVAL", 0.0)
    presser = Presser()
    made = engine(tmp_path, presser)
    if resume:
        presser.at, presser.press = ("training", 3), lambda: made.order(messages.Halt(1))
        made.start(1)
        made.turn(1)
        assert of(made.until(1, messages.Halted), messages.Halted)[0].step == 2
        for cached in [*made.experiment.data(1).glob("*/cache-*")]:
            cached.unlink()
    made.start(1, resume=resume)
    made.order(messages.Halt(1))  # it waits while the run is built
    [halted] = of(made.until(1, messages.Halted), messages.Halted)
    assert (halted.step, bool(halted.path)) == ((2, True) if resume else (0, False))
    assert not list(made.experiment.data(1).glob("*/cache-*")), "the rows were tokenised to their end"
    assert not list(made.experiment.data(1).glob("*/tmp*"))
    presser.at = None
    made.start(1, resume=resume)
    assert of(made.train(1), messages.Finished)[0].step == 7
