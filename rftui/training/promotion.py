"""A config moved to another base model: its target modules are matched anew, its batch is fitted to the memory."""

from __future__ import annotations

from typing import Any

import psutil
import torch

from rftui.config.generation import generation_faults
from rftui.formatting import format_bytes, format_value
from rftui.runs import changed
from rftui.training.models import LOADING, load_config, module_kinds, without_weights
from rftui.training.module_names import DEFAULT_TARGETS, hits

_ROLES = (
    {"q_proj", "query", "q_lin", "wq", "query_proj"},
    {"k_proj", "key", "k_lin", "wk", "key_proj"},
    {"v_proj", "value", "v_lin", "wv", "value_proj"},
    {"q_proj", "k_proj", "v_proj", "c_attn", "query_key_value", "qkv_proj", "Wqkv", "in_proj", "att_proj"},
    {"o_proj", "out_proj", "out_lin", "wo", "dense", "attn_out"},
    {"gate_proj", "up_proj", "gate_up_proj", "c_fc", "fc1", "fc_in", "dense_h_to_4h", "lin1", "w1", "w3"},
    {"down_proj", "c_proj", "fc2", "fc_out", "dense_4h_to_h", "lin2", "w2"},
)
"""Names that model families give to modules of the same role."""

_ACTIVATIONS = 17
"""Values kept for the backward pass for each token, layer and unit of the hidden size (34 bytes in half precision:
Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", without attention scores)."""

_HEADROOM = 0.9
_TOKENS = 1024
"""TRL's max_length where none is set."""


def promoted(config: dict[str, Any], before: str, algo: str, device: torch.device) -> tuple[dict[str, Any], list[str]]:
    """What of the config, whose `model_name` was `before`, has to change for its new model to be trained here, as
    dotted knobs, and what there is to say about it. Raises UserError where no such model can be had."""
    name, kwargs = str(config["model_name"]), config["model_kwargs"]
    loaded = load_config(name, tuple((key, kwargs[key]) for key in LOADING if key in kwargs))
    model = without_weights(name, loaded)
    changes: dict[str, Any] = {"tokenizer": name} if config["tokenizer"] == before else {}
    notices: list[str] = []
    if config["peft_config"] is not None:
        targets = config["peft_config"].get("target_modules")
        matched = _matched(targets, loaded.model_type, module_kinds(model))
        if matched != targets:
            changes["peft_config.target_modules"] = matched
            notices.append(f"target_modules {format_value(targets)} are {format_value(matched)} in {name}")
    fitted, said = _fitted(changed(config, changes), algo, model, device)
    return changes | fitted, [*notices, f"{name}: {said}"]


def _matched(targets: Any, model_type: str, modules: dict[str, str]) -> Any:
    """The target modules under the names that they have in a model with these modules."""
    if targets is None or targets == "all-linear":
        return targets if targets or model_type in DEFAULT_TARGETS else "all-linear"
    if isinstance(targets, str):
        return targets if hits(targets, modules, True) else "all-linear"
    linear = {path.rsplit(".", 1)[-1] for path, kind in modules.items() if kind == "linear"}
    alike = {
        target: [target]
        if hits(target, modules, False)
        else [name for role in _ROLES if target in role for name in sorted(role & linear)]
        for target in targets
    }
    if not any(alike.values()):
        return "all-linear"
    # A name with no counterpart stays, and is refused before the run trains.
    return list(dict.fromkeys(name for target, names in alike.items() for name in names or [target]))


def _fitted(
    config: dict[str, Any], algo: str, model: torch.nn.Module, device: torch.device
) -> tuple[dict[str, Any], str]:
    """The batch that fits, at the same rows a step, and the estimate in words."""
    args = config["training_args"]
    batch, accumulation = args.get("per_device_train_batch_size", 8), args.get("gradient_accumulation_steps", 1)
    free, count = _free(device), sum(parameter.numel() for parameter in model.parameters())
    sizes = [size for size in range(batch, 0, -1) if batch % size == 0 and _divides(args, algo, size, batch // size)]
    needs = {size: _bytes(config, algo, model, size) for size in sizes}
    size = next((size for size in sizes if needs[size] <= _HEADROOM * free), sizes[-1])
    fits = f"about {format_bytes(needs[size])} of {format_bytes(free)} free"
    said = f"{count / 1e6:.1f} M parameters, {fits} for a batch of {size}"
    if needs[size] > _HEADROOM * free:
        said += ", which may not fit"
    if size == batch:
        return {}, said
    times = accumulation * batch // size
    return {
        "training_args.per_device_train_batch_size": size,
        "training_args.gradient_accumulation_steps": times,
    }, f"{said} and accumulation {times}, instead of {batch} and {accumulation}"


def _divides(args: dict[str, Any], algo: str, size: int, times: int) -> bool:
    """Whether GRPO's generations come out even with a batch of `size`."""
    smaller = {
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": args.get("gradient_accumulation_steps", 1) * times,
    }
    return algo != "GRPO" or not generation_faults(args | smaller, evaluates=False)


def _bytes(config: dict[str, Any], algo: str, model: Any, batch: int) -> float:
    """What training takes at its peak: weights, gradients and moments of what trains, activations, logits."""
    args, kwargs = config["training_args"], config["model_kwargs"]
    dtype = str(kwargs.get("dtype", kwargs.get("torch_dtype"))).removeprefix("torch.")
    width = 2 if dtype in ("bfloat16", "float16") else 4
    shape = model.config.get_text_config()
    length = args.get("max_length") or _TOKENS
    if algo == "GRPO":
        length = (args.get("max_completion_length") or _TOKENS // 2) + _TOKENS // 2
    tokens = batch * length * (2 if algo == "DPO" else 1)
    layers = shape.num_hidden_layers
    # Checkpointing, which is TRL's default, keeps one value for each layer, and the activations of one at a time.
    kept = layers + _ACTIVATIONS if args.get("gradient_checkpointing", True) else layers * _ACTIVATIONS
    activations = tokens * shape.hidden_size * kept * (2 if args.get("bf16") or args.get("fp16") else width)
    logits = 3 * 4 * tokens * shape.vocab_size
    whole = sum(parameter.numel() for parameter in model.parameters())
    trained = whole if config["peft_config"] is None else _adapter(config["peft_config"], model)
    return whole * width + trained * 16 + activations + logits


def _adapter(peft: dict[str, Any], model: Any) -> int:
    """Parameters of the adapter."""
    kinds, targets, rank = module_kinds(model), peft.get("target_modules"), peft.get("r", 8)
    if targets is None:
        targets = list(DEFAULT_TARGETS.get(model.config.model_type, ()))
    paths: set[str] = set()
    if targets == "all-linear":
        paths = {path for path, kind in kinds.items() if kind == "linear"}
    else:
        for target in [targets] if isinstance(targets, str) else targets:
            paths |= set(hits(target, kinds, isinstance(targets, str)))
    return sum(rank * sum(weight.shape) for path in paths for weight in [model.get_submodule(path).weight])


def _free(device: torch.device) -> int:
    """Bytes that training may take on the device."""
    if device.type == "cpu":
        return int(psutil.virtual_memory().available)
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + held
