"""Adapters: a LoRA on a base, begun from another run's weights where it is a warm clone, and the `final/` of a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import Trainer

from rftui.faults import Fault
from rftui.runs import Run, redact
from rftui.training import checkpoints


def warm(model: PeftModel, start: Path) -> None:
    """Have the fresh adapter of `model` compute what the adapter in `start` computes.

    A larger rank and more target modules are sound: new rows of A stay at their random init, new columns of B are
    zero, and B is rescaled by the ratio of the scalings. Raises Fault where the new adapter lacks a part of the old.
    """
    parent = PeftConfig.from_pretrained(str(start))
    old = load_file(start / "adapter_model.safetensors")
    new = get_peft_model_state_dict(model)
    missing = sorted(set(old) - set(new))
    if missing:
        raise Fault(f"a warm start needs every module that the parent adapted; {_module(missing[0])} is not targeted")
    scale = _scaling(parent) / _scaling(model.active_peft_config)
    grown = {name: _grown(name, old[name], tensor, scale) if name in old else tensor for name, tensor in new.items()}
    set_peft_model_state_dict(model, grown)


def _grown(name: str, old: torch.Tensor, new: torch.Tensor, scale: float) -> torch.Tensor:
    """`old` in the shape of the new adapter's tensor; A is [rank, in], B is [out, rank]."""
    if "lora_A" not in name and "lora_B" not in name:
        return old
    dim = 1 if "lora_B" in name else 0
    if old.shape[dim] > new.shape[dim]:
        raise Fault("a warm start cannot shrink the rank: the smaller adapter would compute something else")
    grown = torch.zeros_like(new) if dim else new.clone()
    grown.narrow(dim, 0, old.shape[dim]).copy_(old if scale == 1 or dim == 0 else old * scale)
    return grown


def _module(name: str) -> str:
    return name.removeprefix("base_model.model.").partition(".lora_")[0]


def _scaling(config: Any) -> float:
    return config.lora_alpha / (config.r**0.5 if config.use_rslora else config.r)


def warm_full(model: torch.nn.Module, start: Path) -> None:
    """Give a full fine-tune's `model` the weights of the checkpoint in `start`."""
    state: dict[str, torch.Tensor] = {}
    for file in sorted(start.glob("model*.safetensors")):
        state |= load_file(file)
    model.load_state_dict(state, strict=False)  # tied weights are stored once


def write_final(trainer: Trainer, run: Run, final: Path) -> Path:
    """Commit `final/`: the adapter or model, tokenizer, config, a model card with knobs and curves, and the trainer's
    history; returns its path."""
    work = final.with_name(".final")
    shutil.rmtree(work, ignore_errors=True)
    trainer.save_model(str(work))
    (work / "training_args.bin").unlink(missing_ok=True)
    trainer.state.save_to_json(str(work / "trainer_state.json"))
    (work / "config.rftui.json").write_text(json.dumps(redact(run.config), indent=2, default=str))
    (work / "README.md").write_text(_card(trainer, run), encoding="utf-8")
    checkpoints.commit(work, final, {"step": trainer.state.global_step, "run": run.id})
    return final


def _card(trainer: Trainer, run: Run) -> str:
    base = str(run.config.get("model_name") or "")
    adapter = bool(run.config.get("peft_config"))
    head = ["---", f"library_name: {'peft' if adapter else 'transformers'}", "tags:", "- trl", f"- {run.algo.lower()}"]
    head += [f"base_model: {json.dumps(base)}"] if base and not Path(base).exists() else []
    knobs = [f"| {name} | {value} |" for name, value in redact(run.knobs).items()]
    points = [entry for entry in trainer.state.log_history if "loss" in entry or "eval_loss" in entry]
    every = max(1, len(points) // 40)
    curve = [
        f"| {entry['step']} | {entry.get('loss', '')} | {entry.get('eval_loss', '')} |"
        for number, entry in enumerate(points)
        if number % every == 0 or "eval_loss" in entry or number == len(points) - 1
    ]
    return "\n".join(
        [
            *head,
            "---",
            "",
            f"# {run.name}",
            "",
            f"{run.algo} of {base or 'a model of the user'}{' with LoRA' if adapter else ''}, "
            f"{trainer.state.global_step} steps.",
            "",
            *(["| knob | value |", "| --- | --- |", *knobs, ""] if knobs else []),
            "| step | loss | eval_loss |",
            "| --- | --- | --- |",
            *curve,
            "",
        ]
    )
