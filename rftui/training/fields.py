"""The knobs of a config, as TRL's and PEFT's own classes tell them."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from peft import LoraConfig

from rftui.config.managed import MANAGED, REFUSED
from rftui.messages import Field
from rftui.training.arguments import config_class

_FIRST = (
    "learning_rate num_train_epochs per_device_train_batch_size gradient_accumulation_steps max_steps warmup_steps "
    "lr_scheduler_type weight_decay max_grad_norm max_length beta loss_type num_generations max_completion_length "
    "temperature r lora_alpha lora_dropout target_modules use_rslora "
    "seed eval_strategy eval_steps early_stopping_patience save_strategy model_name"
).split()
"""The knobs that people turn most, in the order in which a form shows them; the others follow in TRL's order."""

_NO_KNOBS = {
    *MANAGED,
    *REFUSED,
    *("accelerator_config", "activation_checkpointing", "activation_checkpointing_kwargs", "debug", "ddp_backend"),
    *("ddp_broadcast_buffers", "ddp_bucket_cap_mb", "ddp_find_unused_parameters", "ddp_static_graph", "ddp_timeout"),
    *("average_tokens_across_devices", "eval_use_gather_object", "ignore_data_skip", "log_on_each_node"),
    *("log_level", "log_level_replica", "restore_callback_states_from_checkpoint", "pad_token"),
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "megatron_config", "megatron_core", "peft_type"),
    *("peft_version", "revision", "runtime_config"),
    *("ds3_gather_for_generation", "ref_model_mixup_alpha", "ref_model_sync_steps", "use_transformers_paged"),
    *("log_multimodal", "log_unique_prompts", "num_completions_to_print", "max_tool_calling_iterations"),
}
"""Fields that say nothing about a run on one device, or that only their own library sets."""

_OURS = [
    Field("model_name", "text", help="A directory, or a name on the Hugging Face hub."),
    Field("model_kwargs.dtype", "choice", "float32", ["auto", "float32", "bfloat16", "float16"], help="Of the base."),
    Field("model_kwargs.attn_implementation", "choice", "sdpa", ["eager", "sdpa", "flash_attention_2"]),
    Field("generation_config.max_new_tokens", "int", 20, help="Tokens generated for compute_metrics."),
    Field("generation_config.do_sample", "bool", False, help="Sample instead of taking the likeliest token."),
    Field("generation_config.temperature", "float", 1.0, help="Of sampling."),
    Field("generation_config.top_p", "float", 1.0, help="The share of probability that sampling draws from."),
    Field(
        "training_args.early_stopping_patience",
        "int",
        optional=True,
        help="End the run after so many evaluations without a better eval loss.",
    ),
]

_OVERRIDES: dict[str, dict[str, Any]] = {
    "eval_strategy": {
        "default": "chunk",
        "choices": ["chunk", "steps", "epoch", "no"],
        "help": 'When to evaluate, where there is an eval set; "chunk" is at every chunk end.',
    },
    "save_strategy": {
        "default": "no",
        "choices": ["no", "chunk"],
        "help": 'With "chunk" a checkpoint at every chunk end; else as often as it costs little.',
    },
    "task_type": {"default": "CAUSAL_LM"},
    "init_lora_weights": {
        "choices": "true false gaussian eva olora pissa pissa_niter_16 corda loftq orthogonal mica".split()
    },
    "data_seed": {"help": "Shuffles this run's rows; unset it is the experiment's seed, the same for all runs."},
    "logging_steps": {"help": "Steps between two points of a curve; below 1 a share of all steps."},
    "warmup_steps": {"help": "Steps of linear warm-up; below 1 a share of all steps."},
}


def describe(algos: list[str]) -> dict[str, list[Field]]:
    """The fields of each algo's configs, those that are turned most first."""
    return {algo: _described(algo) for algo in algos}


def _described(algo: str) -> list[Field]:
    ours = [field for field in _OURS if algo != "GRPO" or not field.name.startswith("generation_config.")]
    fields = [*_fields(config_class(algo), "training_args"), *_fields(LoraConfig, "peft_config"), *ours]
    for field in fields:
        if field.name == "training_args.bf16":
            field.default = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
            field.kind, field.optional = "bool", False
    return sorted(fields, key=_rank)


def _rank(field: Field) -> int:
    last = field.name.rsplit(".", 1)[-1]
    return _FIRST.index(last) if last in _FIRST else len(_FIRST)


def _fields(config: type, section: str) -> Iterator[Field]:
    hints = get_type_hints(config)
    for knob in dataclasses.fields(config):
        if knob.name in _NO_KNOBS or knob.name.startswith("vllm_") or not knob.init:
            continue
        kind, choices, optional = _kind(hints[knob.name], knob.metadata.get("choices"))
        if not kind:
            continue
        default = None if knob.default is dataclasses.MISSING else knob.default
        help_text = " ".join(str(knob.metadata.get("help", "")).replace("%%", "%").split())
        field = Field(f"{section}.{knob.name}", kind, default, choices, optional or default is None, help_text)
        yield dataclasses.replace(field, **_OVERRIDES.get(knob.name, {}))


def _kind(hint: Any, listed: Any) -> tuple[str, list[str], bool]:
    """A knob's kind ("" where a form cannot hold it), choices and whether None is a value, from its type."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    optional = type(None) in parts
    parts = tuple(part for part in parts if part is not type(None))
    choices = [str(choice) for choice in listed or ()]
    for part in parts:
        if isinstance(part, type) and issubclass(part, Enum):
            choices += [str(choice.value) for choice in part]
        elif get_origin(part) is Literal:
            choices += [str(choice) for choice in get_args(part)]
    if choices:
        return "choice", (["true", "false"] if bool in parts else []) + choices, optional
    for kind, wanted in (("float", {float}), ("int", {int}), ("bool", {bool})):
        if set(parts) == wanted:
            return kind, [], optional
    if list[str] in parts:
        return "list", [], optional
    return ("text" if str in parts else ""), [], optional
