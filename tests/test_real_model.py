"""A real chat model on a CPU: SmolLM2-135M, fetched by the test itself. `pytest -m real_model`."""

import pytest

from tests.e2e.program import Program
from tests.real_models import smollm2

SCRIPT = """
from rftui import Experiment
from rftui.automl import List, RFGridSearch, RFLoraConfig, RFModelConfig, RFSFTConfig

rows = [
    {"prompt": [{"role": "user", "content": f"What does the parrot say {n} times?"}],
     "completion": [{"role": "assistant", "content": " ".join(["squawk"] * n) + ", said the parrot."}]}
    for n in range(1, 13)
]
configs = RFModelConfig(
    model_name=MODEL,
    peft_config=RFLoraConfig(r=List([4, 8]), lora_alpha=16, target_modules=["q_proj", "v_proj"]),
    training_args=RFSFTConfig(
        learning_rate=List([1e-3, 3e-3]), num_train_epochs=1, per_device_train_batch_size=2, max_length=64,
        logging_steps=1, gradient_checkpointing=False,
    ),
)
experiment = Experiment(experiment_name="tiny")
experiment.run_fit(RFGridSearch(configs), None, rows[:8], rows[8:], num_chunks=2)
"""


def untrained_loss(model, rows):
    """What TRL's own evaluation says of the base."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    args = SFTConfig("unused", use_cpu=True, bf16=False, report_to="none", max_length=64, per_device_eval_batch_size=8)
    trainer = SFTTrainer(
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        args,
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model),
    )
    return trainer.evaluate()["eval_loss"]


@pytest.mark.real_model
def test_four_adapters_of_smollm2_learn_and_load(tmp_path, monkeypatch):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = smollm2()
    monkeypatch.chdir(tmp_path)
    program = Program(tmp_path)
    program.script.write_text(SCRIPT.replace("MODEL", repr(str(model))))
    print(program.call("run", program.script, "--headless"))
    runs = program.show()["runs"]
    assert len(runs) == 4 and all(run["state"] == "done" and run["chunks"] == 2 for run in runs)
    rows: dict = {}
    exec(SCRIPT.split("configs =")[0].replace("from rftui", "# "), rows)
    before = untrained_loss(model, rows["rows"][8:])
    after = [run["metrics"]["eval_loss"] for run in runs]
    print(f"eval loss untrained {before:.3f}, trained {after}")
    assert all(loss < before for loss in after)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for run in runs:
        tuned = PeftModel.from_pretrained(base, run["final"])
        tokenizer = AutoTokenizer.from_pretrained(run["final"])
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": "What does the parrot say 2 times?"}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        made = tuned.generate(**prompt, max_new_tokens=8, do_sample=False)
        assert tokenizer.decode(made[0][prompt["input_ids"].shape[1] :]).strip()
        base = tuned.unload()
