"""Runs as plain TRL code, each alone in a process of its own: `python plain.py CASES.json OUT`.

CASES.json: a list of cases as in cases.py, each with a `name`, and for a warm start `adapter` and `order` (rows).
OUT/<name>/ gets the adapter (or the model) and `history.json`. Nothing of rftui is imported. The processes are forked
from this one, which has imported the libraries and used none of them.
"""

import json
import os
import sys
from pathlib import Path

import torch
import trl
from cases import SEED, TINYCHAT, rows, short, vowels
from datasets import Dataset
from peft import LoraConfig, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOTrainer, GRPOTrainer, SFTTrainer

TRAINERS = {"SFT": SFTTrainer, "DPO": DPOTrainer, "GRPO": GRPOTrainer}


def train(case: dict, out: Path) -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    algo = case["algo"]
    args = {"bf16": False, "data_seed": SEED} | ({"seed": SEED} if algo == "GRPO" else {}) | case["training_args"]
    trainer = TRAINERS[algo](
        model=AutoModelForCausalLM.from_pretrained(TINYCHAT, dtype=torch.float32),
        args=getattr(trl, f"{algo}Config")(
            output_dir=str(out / "trainer"),
            report_to="none",
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            **args,
        ),
        train_dataset=Dataset.from_list(rows()),
        processing_class=AutoTokenizer.from_pretrained(TINYCHAT),
        peft_config=LoraConfig(task_type="CAUSAL_LM", **case["peft_config"]) if case["peft_config"] else None,
        **({"reward_funcs": [short, vowels]} if algo == "GRPO" else {}),
    )
    if "adapter" in case:
        set_peft_model_state_dict(trainer.model, load_file(Path(case["adapter"]) / "adapter_model.safetensors"))
        trainer.train_dataset = trainer.train_dataset.select(case["order"])
    trainer.train()
    trainer.save_model(str(out))
    (out / "history.json").write_text(json.dumps(trainer.state.log_history))


def main(cases: list[dict], out: Path, train=train) -> int:
    running, failed, waiting = set(), 0, list(cases)
    while waiting or running:
        while waiting and len(running) < 2:
            case = waiting.pop(0)
            (out / case["name"]).mkdir(parents=True)
            if not (pid := os.fork()):
                train(case, out / case["name"])
                os._exit(0)
            running.add(pid)
        pid, status = os.wait()
        running.discard(pid)
        failed |= status
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))))
