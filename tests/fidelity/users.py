"""Runs whose script holds objects that training changes: a cached model and tokenizer, a reward that counts its calls,
a LoRA config that TRL extends. `python users.py plain|rftui CASES.json [OUT]`; each plain run has its own process.

A case holds `algo`, `training_args`, `peft_config`, `model` and `name`.
"""

import json
import os
import sys
from pathlib import Path

import torch
import trl
from cases import rows
from datasets import Dataset
from peft import LoraConfig
from plain import main
from transformers import AutoModelForCausalLM, AutoTokenizer

from rftui import Experiment
from rftui.automl import RFDPOConfig, RFGridSearch, RFGRPOConfig, RFLoraConfig, RFModelConfig, RFSFTConfig

MODELS = {}


def create(config):
    name = config["model_name"]
    if name not in MODELS:
        MODELS[name] = (
            AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32),
            AutoTokenizer.from_pretrained(name),
        )
    return MODELS[name]


class Counter:
    """Rewards brevity more with each call."""

    made = 0

    def __init__(self):
        self.calls = 0

    def __call__(self, completions, **_):
        type(self).made += 1
        self.calls += 1
        return [-len(text[0]["content"]) * self.calls * self.made / 20 for text in completions]


def train(case, out):
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    algo, seeds = case["algo"], {"seed": 7} if case["algo"] == "GRPO" else {"data_seed": 7}
    args = {"bf16": False} | seeds | case["training_args"]
    model, tokenizer = create({"model_name": case["model"]})
    trainer = getattr(trl, f"{algo}Trainer")(
        model=model,
        args=getattr(trl, f"{algo}Config")(
            output_dir=str(out / "trainer"),
            report_to="none",
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            **args,
        ),
        train_dataset=Dataset.from_list(rows()),
        processing_class=tokenizer,
        peft_config=LoraConfig(task_type="CAUSAL_LM", **case["peft_config"]) if case["peft_config"] else None,
        **({"reward_funcs": Counter()} if algo == "GRPO" else {}),
    )
    trainer.train()
    trainer.save_model(str(out))
    (out / "history.json").write_text(json.dumps(trainer.state.log_history))


def run_fit(cases):
    kinds = {"SFT": RFSFTConfig, "DPO": RFDPOConfig, "GRPO": RFGRPOConfig}
    counter = Counter()
    peft = {}  # one object for the cases with the same config, as in a sweep
    for case in cases:
        if case["peft_config"]:
            peft.setdefault(json.dumps(case["peft_config"]), RFLoraConfig(**case["peft_config"]))
    group = [
        RFModelConfig(
            model_name=case["model"],
            peft_config=peft.get(json.dumps(case["peft_config"])),
            training_args=kinds[case["algo"]](**case["training_args"]),
            reward_funcs=counter if case["algo"] == "GRPO" else None,
        )
        for case in cases
    ]
    train = Dataset.from_list(rows())
    experiment = Experiment(experiment_name="fidelity")
    experiment.run_fit(RFGridSearch(group), create, train, train.select(range(4)), num_chunks=3, seed=7)


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[2]).read_text())
    if sys.argv[1] == "rftui":
        run_fit(given)
    else:
        sys.exit(bool(main(given, Path(sys.argv[3]), train)))
