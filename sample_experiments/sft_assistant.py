"""Teach a small chat model to answer questions, in eight ways at once, and see which way works.

    rftui run sft_assistant.py                                   tinychat, a few minutes on a laptop's CPU
    rftui run sft_assistant.py -- --model HuggingFaceTB/SmolLM2-135M-Instruct

Two learning rates, two LoRA ranks and two sets of target modules make the eight runs. The loss counts the
answers only, and is evaluated on questions that no run has seen.
"""

import argparse
from pathlib import Path

from datasets import Dataset
from qa_pairs import qa_pairs, split_by_question

from rftui import Experiment
from rftui.automl import List, RFGridSearch, RFLoraConfig, RFModelConfig, RFSFTConfig

TINYCHAT = Path(__file__).resolve().parent / "tinychat"

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", default=str(TINYCHAT), help="Hub id or directory")
parser.add_argument("--dtype", default="float32", help="precision in which the base model is loaded")
parser.add_argument("--epochs", type=float, default=1)
parser.add_argument("--max-steps", type=int, default=-1, help="end each run after this many steps")
parser.add_argument("--chunks", type=int, default=8, help="chunks in an epoch")
parser.add_argument("--limit", type=int, help="use only this many questions to train, and to evaluate")
parser.add_argument("--name", default="sft-assistant", help="the experiment's name")
parser.add_argument("--seed", type=int, default=42)
args = parser.parse_args()


def as_dataset(pairs: list[tuple[str, str]]) -> Dataset:
    """Question-and-answer pairs as TRL's conversational prompt-completion rows."""
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": question}],
                "completion": [{"role": "assistant", "content": answer}],
            }
            for question, answer in pairs[: args.limit]
        ]
    )


train_pairs, eval_pairs = split_by_question(qa_pairs(), held_out=96, seed=args.seed)
targets = List([["q_proj", "v_proj"], "all-linear"])

configs = RFModelConfig(
    model_name=args.model,
    model_kwargs={"dtype": args.dtype},
    peft_config=List([RFLoraConfig(r=r, lora_alpha=2 * r, target_modules=targets) for r in (4, 16)]),
    training_args=RFSFTConfig(
        learning_rate=List([5e-4, 5e-3]),
        num_train_epochs=args.epochs,
        max_steps=args.max_steps,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=32,
        max_length=128,
        gradient_checkpointing=False,
        logging_steps=2,
    ),
)

experiment = Experiment(experiment_name=args.name)
experiment.run_fit(
    RFGridSearch(configs=configs, trainer_type="SFT"),
    train_dataset=as_dataset(train_pairs),
    eval_dataset=as_dataset(eval_pairs),
    num_chunks=args.chunks,
    seed=args.seed,
)
experiment.end()
