"""How optimizer steps, rows and (for GRPO) generations of completions hang together. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rftui.chunks import span

GENERATION = ("num_generations", "generation_batch_size", "steps_per_generation", "num_iterations")
"""The training arguments that only GRPO has and that the sizes below follow from."""


@dataclass(frozen=True)
class Generation:
    """One generation of GRPO's completions: `prompts` unique prompts, trained on in `micro_batches` micro-batches."""

    prompts: int
    micro_batches: int
    accumulation: int

    @classmethod
    def of(cls, args: dict[str, Any]) -> Generation:
        """That of training arguments without `generation_faults`; TRL's defaults stand for what is not set."""
        batch, accumulation, size, steps, generations = _sizes(args)
        steps = size // batch if size else steps or accumulation
        iterations = args.get("num_iterations") or 1
        return cls(batch * steps // generations, steps * iterations, accumulation)

    @property
    def span(self) -> int:
        """Optimizer steps between two moments at which a generation and a step end together."""
        return span(self.micro_batches, self.accumulation)

    @property
    def span_prompts(self) -> int:
        """Unique prompts that a span takes."""
        return self.prompts * self.span * self.accumulation // self.micro_batches


def steps_apart(algo: str, args: dict[str, Any]) -> int:
    """Optimizer steps between two moments at which a run with these training arguments can be saved."""
    return Generation.of(args).span if algo == "GRPO" else 1


def rows_per_step(algo: str, args: dict[str, Any]) -> Fraction:
    """Rows that an optimizer step takes; for GRPO unique prompts, of which one may last several steps."""
    if algo == "GRPO":
        generation = Generation.of(args)
        return Fraction(generation.span_prompts, generation.span)
    batch, accumulation, *_ = _sizes(args)
    return Fraction(batch * accumulation)


def rows_at_once(algo: str, args: dict[str, Any]) -> int:
    """The rows of which an epoch takes a whole multiple, leaving out the rest."""
    if algo == "GRPO":
        return Generation.of(args).prompts
    return _sizes(args)[0] if args.get("dataloader_drop_last") else 1


def generation_faults(args: dict[str, Any], evaluates: bool) -> dict[str, str]:
    """Why GRPO cannot train with these training arguments: name -> the end of a sentence that starts with it."""
    batch, accumulation, size, steps, generations = _sizes(args)
    if size and steps:
        return {"generation_batch_size": "and steps_per_generation say the same: set one of them"}
    if size and size % batch:
        return {"generation_batch_size": f"of {size} must be a multiple of the batch size: {_multiples(batch)}, ..."}
    if generations < 2:
        return {
            "num_generations": f"must be 2 or more, since completions of one prompt are compared; it is {generations}"
        }
    whole = size or batch * (steps or accumulation)
    faults = {}
    if whole % generations:
        valid = [number for number in range(2, whole + 1) if whole % number == 0]
        shown = f"it can be {_listed(valid)}" if valid else "make the batch larger"
        faults["num_generations"] = (
            f"of {generations} does not divide the {whole} completions of a generation: {shown}"
        )
    of_eval = args.get("num_generations_eval") or generations
    eval_batch = args.get("per_device_eval_batch_size")
    if evaluates and eval_batch and eval_batch % of_eval:
        faults["per_device_eval_batch_size"] = (
            f"of {eval_batch} must be a multiple of the {of_eval} completions of an evaluated prompt: "
            f"{_multiples(of_eval)}, ..."
        )
    return faults


def eval_batch_size(args: dict[str, Any]) -> int:
    """The evaluation batch size of GRPO where none is set: TRL's 8, or the next multiple of a prompt's completions."""
    of_eval = args.get("num_generations_eval") or args.get("num_generations") or 8
    return -(-8 // of_eval) * of_eval


def _sizes(args: dict[str, Any]) -> tuple[int, int, int, int, int]:
    """Batch size, accumulation, generation batch size and steps a generation (0: not set), completions a prompt."""
    return (
        args.get("per_device_train_batch_size") or 8,
        args.get("gradient_accumulation_steps") or 1,
        args.get("generation_batch_size") or 0,
        args.get("steps_per_generation") or 0,
        8 if args.get("num_generations") is None else args["num_generations"],
    )


def _multiples(number: int) -> str:
    return ", ".join(str(number * factor) for factor in (1, 2, 3))


def _listed(numbers: list[int]) -> str:
    *most, last = [str(number) for number in numbers]
    return f"{', '.join(most)} or {last}" if most else last
