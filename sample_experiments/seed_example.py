"""A program written for RapidFire AI, running here with its import changed.

    rftui run seed_example.py                  as it was printed: TinyLlama and a data set, from the Hub
    rftui run seed_example.py -- --offline     with tinychat and the sample data, without the network

Only the import and the command line differ from the printed program.
"""

import argparse
from pathlib import Path

from datasets import Dataset, DatasetDict, load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from rftui import Experiment
from rftui.automl import List, RFGridSearch, RFLoraConfig, RFModelConfig, RFSFTConfig

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", help="Hub id or directory")
parser.add_argument("--dataset", help="Hub id, or a .jsonl file of instruction and response rows")
parser.add_argument("--offline", action="store_true", help="use tinychat and the sample data")
args = parser.parse_args()

if args.offline:
    MODEL = args.model or str(Path(__file__).resolve().parent / "tinychat")
else:
    MODEL = args.model or "TinyLlama/TinyLlama-1.1B-Chat-v1.0"


def load() -> DatasetDict:
    """The rows that the command line asks for: 128 or more, each an instruction and a response."""
    if args.dataset and args.dataset.endswith(".jsonl"):
        return load_dataset("json", data_files=args.dataset)
    if args.offline and not args.dataset:
        from qa_pairs import qa_pairs

        rows = [{"instruction": question, "response": answer} for question, answer in qa_pairs()]
        return DatasetDict(train=Dataset.from_list(rows))
    return load_dataset(args.dataset or "bitext/Bitext-customer-support-llm-chatbot-training-dataset")


# fmt: off
# Load the data
dataset = load()
train_dataset = dataset["train"].select(range(128)).shuffle(seed=42)

def formatting_function(row):
    return {
        "prompt": [{"role": "system", "content": "You are a helpful customer support assistant."},
                   {"role": "user", "content": row["instruction"]}],
        "completion": [{"role": "assistant", "content": row["response"]}]
    }

dataset = dataset.map(formatting_function)

# Several configurations
config_set = List([
    RFModelConfig(
        model_name=MODEL,
        peft_config=RFLoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"]),
        training_args=RFSFTConfig(learning_rate=1e-3, max_steps=128, fp16=True)
    ),
    RFModelConfig(
        model_name=MODEL,
        peft_config=RFLoraConfig(r=32, lora_alpha=64, target_modules=["q_proj", "v_proj"]),
        training_args=RFSFTConfig(learning_rate=1e-4, max_steps=128, fp16=True),
        formatting_func=formatting_function,
    )
])

experiment = Experiment(experiment_name="sft-comparison")
config_group = RFGridSearch(configs=config_set, trainer_type="SFT")

def create_model(model_config):
    model = AutoModelForCausalLM.from_pretrained(model_config["model_name"], device_map="auto", torch_dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(model_config["model_name"])
    return model, tokenizer

experiment.run_fit(config_group, create_model, train_dataset, num_chunks=4, seed=42)
experiment.end()
