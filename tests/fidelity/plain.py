"""A run as plain TRL code, alone in a process: `python plain.py CASE.json OUT`. Nothing of rftui is imported.

CASE.json: model, rows (a JSON file), seed, training_args, peft_config, threads, steps (optional: rows and adapter of
a warm start). OUT gets the adapter and `history.json`.
"""

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer


def main(case: dict, out: Path) -> None:
    torch.set_num_threads(case["threads"])
    model = AutoModelForCausalLM.from_pretrained(case["model"], dtype=torch.float32)
    peft_config = LoraConfig(**case["peft_config"])
    if "adapter" in case:
        model = PeftModel.from_pretrained(model, case["adapter"], is_trainable=True)
        peft_config = None
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=str(out / "trainer"),
            report_to="none",
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            disable_tqdm=True,
            data_seed=case["seed"],
            **case["training_args"],
        ),
        train_dataset=Dataset.from_list(json.loads(Path(case["rows"]).read_text())),
        processing_class=AutoTokenizer.from_pretrained(case["model"]),
        peft_config=peft_config,
    )
    if "order" in case:
        trainer.train_dataset = trainer.train_dataset.select(case["order"])
    trainer.train()
    trainer.save_model(str(out))
    (out / "history.json").write_text(json.dumps(trainer.state.log_history))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
