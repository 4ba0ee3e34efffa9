"""What a training needs besides TRL's trainers, in functions that need nothing of rftui.

Ejected scripts hold the source of these functions, so each of them stands on its own and on the libraries.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import Trainer, TrainerCallback


def take_over_adapter(model: PeftModel, start: Path) -> None:
    """Have the fresh adapter of `model` compute what the adapter in `start` computes.

    A larger rank and more target modules are sound: new rows of A stay at their random init, new columns of B are
    zero, and B is rescaled by the ratio of the scalings. Raises ValueError where the new adapter lacks a part of the
    old.
    """

    def scaling(config: Any) -> float:
        return config.lora_alpha / (config.r**0.5 if config.use_rslora else config.r)

    old = load_file(start / "adapter_model.safetensors")
    new = get_peft_model_state_dict(model)
    if missing := sorted(set(old) - set(new)):
        module = missing[0].removeprefix("base_model.model.").partition(".lora_")[0]
        raise ValueError(f"a warm start needs every module that the parent adapted; {module} is not targeted")
    scale = scaling(PeftConfig.from_pretrained(str(start))) / scaling(model.active_peft_config)
    set_peft_model_state_dict(model, {name: grown(name, new[name], old.get(name), scale) for name in new})


def grown(name: str, new: torch.Tensor, old: torch.Tensor | None, scale: float) -> torch.Tensor:
    """`old` in the shape of the new adapter's tensor; A is [rank, in], B is [out, rank]. Raises ValueError."""
    if old is None:
        return new
    if "lora_A" not in name and "lora_B" not in name:
        return old
    dim = 1 if "lora_B" in name else 0
    if old.shape[dim] > new.shape[dim]:
        raise ValueError("a warm start cannot shrink the rank: the smaller adapter would compute something else")
    larger = torch.zeros_like(new) if dim else new.clone()
    larger.narrow(dim, 0, old.shape[dim]).copy_(old if scale == 1 or dim == 0 else old * scale)
    return larger


def take_over_weights(model: torch.nn.Module, start: Path) -> None:
    """Give `model` all the weights of the one in `start`."""
    state: dict[str, torch.Tensor] = {}
    for file in sorted(start.glob("model*.safetensors")):
        state |= load_file(file)
    model.load_state_dict(state, strict=False)  # tied weights are stored once


def continue_schedule(trainer: Trainer, start: Path) -> None:
    """Have `trainer` go on with the optimizer and the schedule of the run in `start` from where they stood there.

    The learning rate, weight decay and the like are the trainer's own. Raises ValueError where the schedule is not a
    function of the step alone.
    """
    optimizer = trainer.create_optimizer()
    own = optimizer.state_dict()["param_groups"]
    state = torch.load(start / "optimizer.pt", map_location="cpu", weights_only=True)["state"]
    optimizer.load_state_dict({"state": state, "param_groups": own})
    history = json.loads((start / "trainer_state.json").read_text())
    done = torch.load(start / "scheduler.pt", weights_only=True)["last_epoch"]
    schedule = trainer.create_scheduler(done + history["max_steps"] - history["global_step"])
    if not isinstance(schedule, torch.optim.lr_scheduler.LambdaLR):
        raise ValueError(f"the schedule {trainer.args.lr_scheduler_type} cannot be continued: it follows the losses")
    trainer._created_lr_scheduler = False  # else train() would make a fresh one
    schedule.last_epoch, schedule._step_count = done, done + 1
    schedule._last_lr = [rate * at(done) for rate, at in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)]
    for group, rate in zip(optimizer.param_groups, schedule._last_lr, strict=True):
        group["lr"] = rate


def keep_schedule(trainer: Trainer, out: Path) -> None:
    """Write beside a model what `continue_schedule` needs of its trainer, which has trained."""
    assert trainer.optimizer and trainer.lr_scheduler
    torch.save(trainer.optimizer.state_dict(), out / "optimizer.pt")
    torch.save(trainer.lr_scheduler.state_dict(), out / "scheduler.pt")
    trainer.state.save_to_json(str(out / "trainer_state.json"))


def remaining_rows(
    rows: int, used: int, start: int, stop: int, seed: int, *, shuffled: bool = True, one_generator: bool = False
) -> list[int]:
    """The rows `start` to `stop`, counted over all epochs of `used` rows, in the order in which a trainer takes them.

    An epoch takes the first `used` of a permutation of all the `rows`. For SFT and DPO accelerate seeds each epoch's
    with seed + epoch; for GRPO, TRL's RepeatSampler draws one after the other from `one_generator`.
    """
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for epoch in range(-(-stop // used)):
        if not one_generator:
            generator.manual_seed(seed + epoch)
        permutation = torch.randperm(rows, generator=generator).tolist() if shuffled else list(range(rows))
        order += permutation[:used][max(0, start - epoch * used) : max(0, stop - epoch * used)]
    return order


def spread(dataset: Dataset, count: int) -> Dataset:
    """`count` rows of the dataset, evenly spread and always the same."""
    if count >= len(dataset):
        return dataset
    return dataset.select([number * len(dataset) // count for number in range(count)])


class StopAt(TrainerCallback):
    """Ends a training after an optimizer step before its last."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= self.step:
            control.should_training_stop = True


def alone(train: Callable[..., None], *folders: Path) -> None:
    """Have `train` run in a process of its own: a training leaves traces in the libraries. Exits where it fails."""
    process = get_context("spawn").Process(target=train, args=folders)
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(process.exitcode)
