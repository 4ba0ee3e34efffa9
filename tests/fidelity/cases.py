"""The runs that are compared with plain TRL, and their rows: what both the rftui script and plain.py are made from."""

from pathlib import Path

TINYCHAT = Path(__file__).parents[2] / "sample_experiments" / "tinychat"
ROWS, EPOCHS, CHUNKS, SEED = 26, 2, 3, 7
"""Neither batch sizes nor chunks divide the rows."""

LORA = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.05, "target_modules": ["q_proj", "v_proj"]}
COMMON = {"num_train_epochs": EPOCHS, "logging_steps": 2, "warmup_steps": 2}


def case(algo, args, peft=LORA):
    return {"algo": algo, "training_args": COMMON | args, "peft_config": peft}


SFT = [
    case("SFT", {"learning_rate": 5e-3, "per_device_train_batch_size": 4, "max_length": 48}),
    case(
        "SFT",
        {
            "learning_rate": 2e-3,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 3,
            "neftune_noise_alpha": 5,
            "dataloader_num_workers": 1,
            "gradient_checkpointing": False,
            "max_length": 48,
        },
        LORA | {"r": 8, "lora_dropout": 0.2},
    ),
    case(
        "SFT",
        {"learning_rate": 1e-3, "per_device_train_batch_size": 1, "packing": True, "max_length": 64, "bf16": True},
        LORA | {"r": 16, "target_modules": "all-linear"},
    ),
    case("SFT", {"learning_rate": 1e-4, "per_device_train_batch_size": 3, "max_length": 48, "seed": 5}, None),
]
DPO = [
    case("DPO", {"learning_rate": 5e-3, "per_device_train_batch_size": 4}),
    case(
        "DPO",
        {"learning_rate": 1e-3, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "beta": 0.5},
        LORA | {"r": 8},
    ),
    case("DPO", {"learning_rate": 2e-3, "per_device_train_batch_size": 3, "loss_type": ["ipo"], "logging_steps": 3}),
    case(
        "DPO",
        {"learning_rate": 1e-3, "per_device_train_batch_size": 5, "precompute_ref_log_probs": True, "seed": 5},
        LORA | {"target_modules": "all-linear", "lora_dropout": 0.0},
    ),
]
GENERATES = {"max_completion_length": 6, "learning_rate": 5e-3}
GRPO = [
    case("GRPO", GENERATES | {"per_device_train_batch_size": 8, "num_generations": 2}),
    case(
        "GRPO",
        GENERATES
        | {
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 3,
            "num_generations": 4,
            "beta": 0.1,
            "temperature": 0.7,
        },
        LORA | {"r": 8, "lora_dropout": 0.0},
    ),
    case(
        "GRPO",
        GENERATES
        | {
            "per_device_train_batch_size": 4,
            "num_generations": 2,
            "steps_per_generation": 2,
            "num_iterations": 2,
            "logging_steps": 3,
        },
    ),
    case(
        "GRPO",
        GENERATES
        | {
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "num_generations": 2,
            "steps_per_generation": 3,
            "reward_weights": [1.0, 0.5],
            "loss_type": "grpo",
        },
    ),
]
ALL = [run for trio in zip(SFT, DPO, GRPO, strict=True) for run in trio]


def rows():
    """Conversations that SFT, DPO and GRPO can all be trained on."""
    return [
        {
            "prompt": [{"role": "user", "content": f"What is {n} plus {n * 7 % 11}?"}],
            "completion": [{"role": "assistant", "content": f"It is {n + n * 7 % 11}, " + "I think. " * (n % 5)}],
            "chosen": [{"role": "assistant", "content": f"It is {n + n * 7 % 11}."}],
            "rejected": [{"role": "assistant", "content": f"I do not know {n}, " + "sorry. " * (n % 3)}],
            "answer": n + n * 7 % 11,
        }
        for n in range(ROWS)
    ]


def short(completions, **_):
    return [-len(completion[0]["content"]) / 20 for completion in completions]


def vowels(completions, answer, **_):
    return [
        sum(completion[0]["content"].count(letter) for letter in "aeiou") / (1 + number % 3)
        for completion, number in zip(completions, answer, strict=True)
    ]
