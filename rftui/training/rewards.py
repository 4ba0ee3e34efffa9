"""GRPO's reward functions, checked as they are called: one finite number, or None, for each completion."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from trl.trainer.utils import get_callable_name, is_async_callable

from rftui.errors import UserError


def checked(rewards: Any) -> list[Any]:
    """The reward functions of a config as one trainer gets them: a list of its own, whose functions are checked.

    The names of reward models stay as they are; a model itself is copied, since the trainer prepares it.
    """
    return [
        reward
        if isinstance(reward, str)
        else copy.deepcopy(reward)
        if isinstance(reward, torch.nn.Module)
        else _checked(reward)
        for reward in listed(rewards)
    ]


def listed(rewards: Any) -> list[Any]:
    """The reward functions of a config, which may hold one alone."""
    return list(rewards) if isinstance(rewards, (list, tuple)) else [rewards]


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which raises UserError where what it returns is no list of finite numbers, one for each
    completion."""
    name = get_callable_name(function)

    @wraps(function)
    def call(*, completions: list[Any], **inputs: Any) -> list[float | None]:
        return _numbers(name, function(completions=completions, **inputs), len(completions))

    @wraps(function)
    async def call_async(*, completions: list[Any], **inputs: Any) -> list[float | None]:
        return _numbers(name, await function(completions=completions, **inputs), len(completions))

    wrapper = call_async if is_async_callable(function) else call
    wrapper.__name__ = name  # a partial has none that `wraps` could take over
    return wrapper


def _numbers(name: str, made: Any, wanted: int) -> list[float | None]:
    try:
        rewards = list(made)
    except TypeError:
        raise UserError(f"reward function {name} returned {type(made).__name__}, not a list of numbers") from None
    if len(rewards) != wanted:
        raise UserError(
            f"reward function {name} returned {len(rewards)} rewards for {wanted} completions, not one each"
        )
    return [None if reward is None else _number(name, reward, index) for index, reward in enumerate(rewards)]


def _number(name: str, reward: Any, index: int) -> float:
    try:
        if isinstance(reward, (str, bytes)):
            raise TypeError
        number = float(reward)
    except (TypeError, ValueError):
        raise UserError(
            f"reward function {name} returned {reward!r:.60} for completion {index}, not a number"
        ) from None
    if not math.isfinite(number):
        raise UserError(f"reward function {name} returned {number} for completion {index}: rewards must be finite")
    return number
