"""Ejected scripts of runs that end early, clones whose adapter grew or that keep their parent's schedule, full
fine-tunes, and what a user's script gave.

The scripts of runs that train to their ends are run where those are trained, in the other tests.
"""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rftui import messages
from rftui.automl import RFGRPOConfig, RFLoraConfig, RFModelConfig, RFSFTConfig
from rftui.checkpoints import checkpoint_marker, link_checkpoint
from rftui.config.spec import plain
from rftui.store import Store
from tests.fidelity.cases import short, vowels
from tests.fidelity.compare import Ejected
from tests.training.engine import TINY, Engine, of

COMMON = {"learning_rate": 5e-3, "per_device_train_batch_size": 4, "num_train_epochs": 1, "logging_steps": 2}
EVALUATED = COMMON | {"eval_strategy": "steps", "eval_steps": 2}
LORA = RFLoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])


def create(config):
    model = AutoModelForCausalLM.from_pretrained(config["model_name"], dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(config["model_name"])


def conversation(row):
    return {"messages": row["prompt"] + row["completion"]}


class Trained:
    """Runs of an engine, kept in a store as the scheduler would keep them."""

    def __init__(self, engine):
        self._engine = engine
        self._store = Store.create(engine.experiment.db)
        self.runs = {}

    def _keep(self, run, seen):
        run.total_steps = of(seen, messages.Begun)[0].total_steps
        run.final = next((message.final for message in of(seen, messages.Finished)), None)
        run.config = plain(self._engine.run_configs[run.config_index])
        self._store.add_run(run)
        self._store.commit()
        self.runs[run.id] = run

    def stopped(self, number):
        """Train a run into its second chunk."""
        run = self._engine.start(number)
        self._engine.turn(number)
        seen = self._engine.until(number, messages.TurnEnded)
        self._engine.turn(number)
        seen += self._engine.until(number, messages.Stepped)
        self._engine.order(messages.Halt(number))
        self._engine.until(number, messages.Halted)
        self._keep(run, seen)

    def clone(self, number, parent, continue_schedule=False, **changes):
        """Train a warm clone of a stopped run to its end."""
        start = self._engine.experiment.run(number).start
        [checkpoint] = self._engine.experiment.run(parent).checkpoints.iterdir()
        link_checkpoint(checkpoint, start)
        marker = checkpoint_marker(start)
        fields = {"parent": parent, "warm": True, "start_step": marker["step"], "start_row": marker["row"]}
        run = self._engine.start(
            number, config_index=parent - 1, changes=changes, continue_schedule=continue_schedule, **fields
        )
        self._keep(run, self._engine.train(number))


@pytest.mark.slow
def test_the_scripts_of_stopped_runs_and_of_their_clones_give_the_same_bytes(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    group = [
        RFModelConfig(TINY, peft_config=LORA, training_args=RFSFTConfig(**EVALUATED), formatting_func=conversation),
        RFModelConfig(
            TINY,
            peft_config=LORA,
            training_args=RFGRPOConfig(**EVALUATED, num_generations=2, max_completion_length=6),
            reward_funcs=[short, vowels],
        ),
        RFModelConfig(TINY, training_args=RFSFTConfig(**COMMON)),
    ]
    try:
        trained = Trained(engine := Engine(tmp_path, group, create))
        for number in (1, 2, 3):
            trained.stopped(number)
        trained.clone(4, 1, **{"peft_config.r": 8, "training_args.learning_rate": 1e-3})
        trained.clone(5, 3)
        trained.clone(6, 1, continue_schedule=True, **{"training_args.learning_rate": 1e-3})
    finally:
        torch.set_num_threads(before)
    clones = [trained.runs[number] for number in (4, 5, 6)]
    assert all(0 < clone.start_step < trained.runs[clone.parent].total_steps and clone.final for clone in clones)
    ejected = Ejected(engine.experiment, tmp_path / "ejected")
    assert ejected.differing([trained.runs[2], *clones]) == []
