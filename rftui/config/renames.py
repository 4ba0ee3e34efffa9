"""Arguments that newer releases of TRL renamed or removed, and what stands for them now."""

from __future__ import annotations

from typing import Any

RENAMED = {
    "max_seq_length": "max_length",
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "warmup_ratio": "warmup_steps",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
}
"""Old name -> new name. A `warmup_steps` below 1 is read as the ratio that `warmup_ratio` was."""

DROPPED = {
    "overwrite_output_dir": "rftui never overwrites an experiment",
    "logging_dir": "logs lie in the experiment's directory",
    "save_safetensors": "weights are always saved as safetensors",
    "tokenizer": "give it to RFModelConfig(tokenizer=...)",
    "dataset_batch_size": "the data is prepared once, in batches of its own",
    "include_tokens_per_second": "rftui shows steps per second",
    "use_mps_device": "it is found by itself",
    "past_index": "no supported model uses it",
    "jit_mode_eval": "TRL removed it",
}
"""Arguments that are left out, and why nothing is lost or what to use instead."""

_OF_ALGO = {
    "DPO": {
        "max_prompt_length": "TRL removed it; max_length limits prompt and answer together",
        "max_completion_length": "TRL removed it; max_length limits prompt and answer together",
        "model_adapter_name": "a run has one adapter",
        "ref_adapter_name": "the reference is the model with its adapter disabled",
        "force_use_ref_model": "the reference is the model with its adapter disabled",
        "generate_during_eval": "TRL removed it",
        "label_pad_token_id": "TRL removed it; labels that do not count are -100",
        "padding_value": "TRL removed it; the tokenizer's pad token is used",
        "is_encoder_decoder": "the models are decoders",
    },
    "GRPO": {"max_prompt_length": "TRL removed it; leave rows with too long prompts out of the dataset"},
}
"""What is left out for one algo alone."""


def modern(config: dict[str, Any], algo: str) -> tuple[dict[str, Any], list[str]]:
    """A model config's data with today's names of `algo`'s arguments, and a notice for each that was changed."""
    args, kwargs = dict(config["training_args"]), dict(config["model_kwargs"])
    notices = []
    for old, new in RENAMED.items():
        if old not in args:
            continue
        value = args.pop(old)
        if new in args:
            notices.append(f"training_args.{old} is left out: {new} is set too and wins")
            continue
        notices.append(f"training_args.{old} is now called {new}: {new}={value!r}")
        args[new] = value
    for old, reason in (DROPPED | _OF_ALGO.get(algo, {})).items():
        if old in args:
            del args[old]
            notices.append(f"training_args.{old} is left out: {reason}")
    if args.pop("group_by_length", False):
        args.setdefault("train_sampling_strategy", "group_by_length")
        notices.append("training_args.group_by_length is train_sampling_strategy='group_by_length' now")
    if "use_gradient_checkpointing" in kwargs:
        args.setdefault("gradient_checkpointing", kwargs.pop("use_gradient_checkpointing"))
        notices.append("model_kwargs.use_gradient_checkpointing is training_args.gradient_checkpointing")
    if isinstance(args.get("model_init_kwargs"), dict):
        kwargs = args.pop("model_init_kwargs") | kwargs
        notices.append("training_args.model_init_kwargs are model_kwargs of RFModelConfig")
    return config | {"training_args": args, "model_kwargs": kwargs}, notices
