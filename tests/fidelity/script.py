"""The rftui script that trains the runs of cases.py: `python script.py CASES.json`, a list of them."""

import json
import sys

from cases import CHUNKS, SEED, TINYCHAT, rows, short, vowels
from datasets import Dataset

from rftui import Experiment
from rftui.automl import RFDPOConfig, RFGridSearch, RFGRPOConfig, RFLoraConfig, RFModelConfig, RFSFTConfig

KINDS = {"SFT": RFSFTConfig, "DPO": RFDPOConfig, "GRPO": RFGRPOConfig}


def config(case, often):
    saves = {"save_strategy": "chunk"} if often else {}
    return RFModelConfig(
        model_name=str(TINYCHAT),
        peft_config=RFLoraConfig(**case["peft_config"]) if case["peft_config"] else None,
        training_args=KINDS[case["algo"]](**case["training_args"], **saves),
        reward_funcs=[short, vowels] if case["algo"] == "GRPO" else None,
    )


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        group = RFGridSearch([config(case, often=number % 2 == 0) for number, case in enumerate(json.load(file))])
    train = Dataset.from_list(rows())
    experiment = Experiment(experiment_name="fidelity")
    experiment.run_fit(group, None, train, train.select(range(4)), num_chunks=CHUNKS, seed=SEED)
    experiment.end()
