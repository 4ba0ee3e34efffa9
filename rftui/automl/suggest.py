"""What to try where a run failed or goes wrong: a clone, filled in, with the reason. Pure.

A suggestion is made only where a curve is clearly so; a run that learns gets none, however noisy its curve is. Curves
are looked at as eight windows of at least three points each, by their medians, so that a few outliers decide nothing:

- *Rising*: the last two windows lie above the lowest one by half of all that was gained, by a tenth of the lowest, and
  by eight times what chance moves a window (told by the typical jump from point to point).
- *Swinging*: in the second half the typical jump is more than four tenths of the first half's level (noise of 20 %
  makes less), and the last quarter is no lower than the one before.
- *Overfitting*: the last three evals or more rise, the last one is 2 % above the lowest, and the loss went on falling
  by 2 % meanwhile.
- *Flat and high*: a quarter of the steps or more is done, the loss is above nine tenths of its start and moved less
  than 1 % between the last two quarters, and the evals differ by less than 2 %.
- *GRPO*: in all of the last steps at least 95 % of the completions are cut off, or the rewards have no spread (and
  have not risen: else it is won). How many steps that are does not depend on how often they are logged. Its losses
  say nothing, so nothing is concluded from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import isfinite, sqrt
from statistics import median
from typing import Any

from rftui.config.validate import clone_faults
from rftui.formatting import format_number
from rftui.messages import Field
from rftui.runs import DELETED, DONE, FAILED, QUEUED, Run, Suggestion, flatten

Curve = list[tuple[int, float]]
"""Step and value, in step order."""


_LR, _RANK, _ALPHA = "training_args.learning_rate", "peft_config.r", "peft_config.lora_alpha"
_BATCH, _ACCUMULATION = "training_args.per_device_train_batch_size", "training_args.gradient_accumulation_steps"
_STEPS_PER_GENERATION, _GENERATIONS = "training_args.steps_per_generation", "training_args.num_generations"
_TEMPERATURE, _COMPLETION = "training_args.temperature", "training_args.max_completion_length"
_TARGETS = "peft_config.target_modules"

_KNOBS = [
    Field(_LR, "float", 2e-5),
    Field(_BATCH, "int", 8),
    Field(_ACCUMULATION, "int", 1),
    Field(_STEPS_PER_GENERATION, "int", None, optional=True),
    Field(_GENERATIONS, "int", 8),
    Field(_TEMPERATURE, "float", 1.0),
    Field(_COMPLETION, "int", 512),
    Field(_RANK, "int", 8),
    Field(_ALPHA, "int", 8),
    Field(_TARGETS, "list", None, optional=True),
]
"""The knobs that are turned here, with what trains where they are not set."""

_LOWEST_RATE = {"SFT": 1e-5, "DPO": 1e-6, "GRPO": 1e-6}
_HIGHEST_RATE = {"SFT": 1e-3, "DPO": 1e-4, "GRPO": 1e-4}
"""Learning rates below which a lower one is no remedy, and the highest usual ones."""

_STEPS = 40
"""Steps of GRPO by which its rewards are judged; of a short run the last quarter, but at least 8."""


def suggestion(run: Run, curve: Callable[[str], Curve]) -> Suggestion | None:
    """What to try instead of `run`, by its error and its curves; None where nothing is clear. `curve`: metric -> all
    its points."""
    if run.state in (DELETED, QUEUED):
        return None
    values = {field.name: field.default for field in _KNOBS} | flatten(run.config)

    def finite(metric: str) -> Curve:
        return [point for point in curve(metric) if isfinite(point[1])]

    if run.state == FAILED:
        found = _of_failure(run, values, finite)
    elif run.algo == "GRPO":
        found = _of_completions(run, values, finite)
    else:
        found = _of_losses(run, values, finite("loss"), finite("eval_loss"))
    return next((able for each in found if (able := _able(run, each))), None)


def _able(run: Run, wanted: Suggestion) -> Suggestion | None:
    """The suggestion, or the same from the beginning, if such a clone can be made."""
    cold = replace(wanted, warm=False, from_step=None)
    for each in (wanted, cold) if wanted.warm else (wanted,):
        if each.changes and not clone_faults(run, each.changes, each.warm, _KNOBS, from_step=each.from_step):
            return each
    return None


def _of_failure(run: Run, values: dict[str, Any], finite: Callable[[str], Curve]) -> Iterator[Suggestion]:
    if run.failure == "memory" and values[_BATCH] > 1:
        whole = values[_BATCH] * values[_ACCUMULATION]
        batch = max(size for size in range(1, values[_BATCH] // 2 + 1) if whole % size == 0)
        changes = {_BATCH: batch, _ACCUMULATION: whole // batch}
        if steps := values[_STEPS_PER_GENERATION]:
            changes[_STEPS_PER_GENERATION] = steps * values[_BATCH] // batch
        told = f"it ran out of memory: a batch of {batch} and {whole // batch} of them a step need less"
        yield Suggestion(changes, run.checkpoint is not None, None, told)
    elif run.failure == "diverged":
        loss = finite("loss")
        if (lowest := _rises_since(loss)) is None:
            yield _calmer(run, values, "it diverged", run.checkpoint is not None)
        else:  # what was saved last is spoiled already
            step = _checkpoint_near(run, lowest, loss[-1][0])
            yield _calmer(run, values, "it diverged", step is not None, step)


def _calmer(run: Run, values: dict[str, Any], what: str, warm: bool, from_step: int | None = None) -> Suggestion:
    """A lower learning rate, or larger steps where it is low already."""
    rate, highest = _third(values[_LR]), _HIGHEST_RATE.get(run.algo, 1e-3)
    if rate > 10 * highest:
        typed, usual = format_number(values[_LR]), format_number(highest)
        told = f"{what}: a learning rate of {typed} is far beyond the usual ones; {usual} is the highest"
        return Suggestion({_LR: highest}, warm, from_step, told)
    if rate >= _LOWEST_RATE.get(run.algo, 1e-5):
        return Suggestion(
            {_LR: rate}, warm, from_step, f"{what}: a third of the learning rate ({format_number(rate)})"
        )
    accumulation = 2 * values[_ACCUMULATION]
    told = f"{what} at a low learning rate: {accumulation} batches a step make it steadier"
    return Suggestion({_ACCUMULATION: accumulation}, warm, from_step, told)


def _third(rate: float) -> float:
    return float(f"{rate / 3:.1e}")


def _checkpoint_near(run: Run, step: int, now: int) -> int | None:
    """The checkpoint nearest to a step after which it went wrong; None where all that are left are far behind it."""
    near = [each for each in run.checkpoints if each <= step + (now - step) // 4]
    return min(near, key=lambda each: abs(each - step), default=None)


# ---------------------------------------------------------------- losses


def _of_losses(run: Run, values: dict[str, Any], loss: Curve, evals: Curve) -> Iterator[Suggestion]:
    windows = _windows(loss)
    if (lowest := _rises_since(loss)) is not None:
        step = _checkpoint_near(run, lowest, loss[-1][0])
        yield _calmer(run, values, f"its loss rises since about step {lowest}", step is not None, step)
    elif windows and _swinging(loss, windows):
        yield _calmer(run, values, "its loss swings and does not fall", True)
    elif (since := _overfits(loss, evals)) is not None:
        yield from _less_fitted(run, values, since, evals[-1][0])
    elif windows and _stuck(run, loss, windows, evals):
        yield from _more_room(run, values)


def _windows(curve: Curve) -> list[float]:
    """The medians of eight equal parts; none where they are too few points to tell anything."""
    size = len(curve) // 8
    parts = [curve[len(curve) - size * n :][:size] for n in range(8, 0, -1)]
    return [median(value for _, value in part) for part in parts] if size >= 3 else []


def _late_quarters(windows: list[float]) -> tuple[float, float]:
    return sum(windows[4:6]) / 2, sum(windows[6:]) / 2


def _jump(curve: Curve) -> float:
    return median(abs(after - before) for (_, before), (_, after) in zip(curve, curve[1:], strict=False))


def _rises_since(loss: Curve) -> int | None:
    """About the step since which the loss rises; None where it does not."""
    windows = _windows(loss)
    if not windows:
        return None
    lowest, size = min(windows), len(loss) // 8
    rise = max((windows[0] - lowest) / 2, abs(lowest) / 10, 8 * _jump(loss) / sqrt(size))
    return loss[-size * (8 - windows.index(lowest))][0] if min(windows[-2:]) > lowest + rise else None


def _swinging(loss: Curve, windows: list[float]) -> bool:
    third, last = _late_quarters(windows)
    return _jump(loss[len(loss) // 2 :]) > 0.4 * abs(median(windows[:4])) and last > 0.98 * third


def _overfits(loss: Curve, evals: Curve) -> int | None:
    """The step of the lowest eval loss, where all later ones rise while the loss falls."""
    if len(evals) < 4:
        return None
    at = min(range(len(evals)), key=lambda number: evals[number][1])
    step, lowest = evals[at]
    later = [value for _, value in evals[at:]]
    rises = len(later) >= 3 and all(before <= after for before, after in zip(later, later[1:], strict=False))
    since = [value for reached, value in loss if reached > step]
    half = len(since) // 2
    if not rises or later[-1] < 1.02 * lowest or half < 3:
        return None
    return step if median(since[half:]) < 0.98 * median(since[:half]) else None


def _less_fitted(run: Run, values: dict[str, Any], lowest: int, now: int) -> Iterator[Suggestion]:
    """From a checkpoint near the lowest eval loss, more carefully; else with a lower rank from the beginning."""
    told = f"its eval loss rises since step {lowest} while its loss falls"
    if (step := _checkpoint_near(run, lowest, now)) is not None:
        rate = _third(values[_LR])
        reason = f"{told}: from the checkpoint of step {step}, a third of the learning rate ({format_number(rate)})"
        yield Suggestion({_LR: rate}, True, step, reason)
    if _has_adapter(values) and values[_RANK] >= 8:
        rank = values[_RANK] // 2
        yield Suggestion(_ranked(values, rank), False, None, f"{told}: a lower rank ({rank}), from the beginning")


def _stuck(run: Run, loss: Curve, windows: list[float], evals: Curve) -> bool:
    if len(evals) < 3 or 4 * run.step < run.total_steps:
        return False
    start, values = median(value for _, value in loss[:3]), [value for _, value in evals]
    third, last = _late_quarters(windows)
    return (
        last > 0.9 * start > 0
        and abs(last - third) < 0.01 * last
        and max(values) - min(values) < 0.02 * abs(min(values))
    )


def _more_room(run: Run, values: dict[str, Any]) -> Iterator[Suggestion]:
    if not _has_adapter(values):
        return
    changes = _ranked(values, 2 * values[_RANK]) if values[_RANK] < 64 else {}
    words = [f"a higher rank ({changes[_RANK]})"] if changes else []
    if values[_TARGETS] != "all-linear":
        changes[_TARGETS] = "all-linear"
        words.append("adapters in all linear modules")
    yield Suggestion(changes, run.state != DONE, None, f"its losses stay high and flat: {' and '.join(words)}")


def _has_adapter(values: dict[str, Any]) -> bool:
    return values.get("peft_config", ...) is not None


def _ranked(values: dict[str, Any], rank: int) -> dict[str, Any]:
    """Another rank, at the same scale of the adapter."""
    return {_RANK: rank, _ALPHA: max(1, values[_ALPHA] * rank // values[_RANK])}


# ---------------------------------------------------------------- completions


def _of_completions(run: Run, values: dict[str, Any], finite: Callable[[str], Curve]) -> Iterator[Suggestion]:
    steps = min(_STEPS, max(8, run.total_steps // 4))
    clipped = _last(finite("completions/clipped_ratio"), steps)
    if clipped and min(clipped) >= 0.95 and values[_COMPLETION]:
        length = 2 * values[_COMPLETION]
        told = f"nearly all completions are cut off: {length} tokens let them come to their end"
        yield Suggestion({_COMPLETION: length}, True, None, told)
    spread = _last(finite("reward_std"), steps)
    if spread and max(spread) < 1e-6 and not _won(finite("reward")):
        told = "all completions of a prompt get the same reward, so nothing is learned"
        warmer = round(min(values[_TEMPERATURE] + 0.2, 1.4), 2)
        if values[_TEMPERATURE] < warmer:
            yield Suggestion({_TEMPERATURE: warmer}, True, None, f"{told}: a higher temperature ({warmer:g})")
        number = 2 * (values[_GENERATIONS] or 8)
        more = {_GENERATIONS: number}
        for changes in (more, more | {_ACCUMULATION: 2 * values[_ACCUMULATION]}):
            yield Suggestion(changes, True, None, f"{told}: {number} completions a prompt")


def _won(reward: Curve) -> bool:
    """Whether the reward has risen, from the first to the last quarter of the steps."""
    if len(reward) < 2:
        return False
    quarter = (reward[-1][0] - reward[0][0]) / 4
    first = [value for step, value in reward if step <= reward[0][0] + quarter]
    last = [value for step, value in reward if step >= reward[-1][0] - quarter]
    return median(last) > median(first)


def _last(curve: Curve, steps: int) -> list[float]:
    """The points that tell of so many last steps; none where there are not so many. A point is the mean of all steps
    since the point before."""
    if not curve or curve[-1][0] < steps:
        return []
    since = curve[-1][0] - steps
    return [value for step, value in curve if step > since]
