"""Adapters: a LoRA on a base, begun from another run's weights where it is a warm clone, and the `final/` of a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from peft import PeftModel
from transformers import Trainer

from rftui.errors import UserError
from rftui.redaction import redact
from rftui.runs import Run
from rftui.training import saving
from rftui.training.plain_trl import take_over_adapter


def warm(model: PeftModel, start: Path) -> None:
    """Have the fresh adapter of `model` compute what the adapter in `start` computes.

    Raises UserError where the new adapter lacks a part of the old.
    """
    try:
        take_over_adapter(model, start)
    except ValueError as error:
        raise UserError(str(error)) from error


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
    saving.commit(work, final, {"step": trainer.state.global_step, "run": run.id})
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
