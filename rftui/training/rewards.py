"""GRPO's reward functions, checked as they are called: one finite number, or None, for each completion."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from trl.trainer.utils import get_callable_name, is_async_callable

from rftui.errors import UserError


def checked(rewards: list[Any], present: Callable[[int], Any] | None = None) -> list[Any]:
    """The reward functions of a config as one trainer gets them: a list of its own, whose functions are checked.

    Where `present` is given, it tells which object is called in the place of each. The names of reward models stay as
    they are; a model itself is copied, since the trainer prepares it.
    """
    blanks = _Blanks(rewards)
    return [
        reward
        if isinstance(reward, str)
        else copy.deepcopy(reward)
        if isinstance(reward, torch.nn.Module)
        else _checked(reward, partial(present or rewards.__getitem__, number), partial(blanks.note, number))
        for number, reward in enumerate(rewards)
    ]


def listed(rewards: Any) -> list[Any]:
    """The reward functions of a config, which may hold one alone."""
    return list(rewards) if isinstance(rewards, (list, tuple)) else [rewards]


class _Blanks:
    """Refuses completions for which no reward function of a run has a number: nothing could be learned from them."""

    def __init__(self, rewards: list[Any]) -> None:
        self._functions = rewards
        self._calls = [0] * len(rewards)
        self._blank = [False] * len(rewards)

    def note(self, number: int, made: list[float | None]) -> None:
        self._calls[number] += 1
        self._blank[number] = not any(value is not None for value in made)
        if all(self._blank) and len(set(self._calls)) == 1:
            names = " and ".join(get_callable_name(function) for function in self._functions)
            raise UserError(
                f"reward function {names} returned None for all {len(made)} completions of a step: at least one must "
                "be a number"
            )


def _checked(
    reward: Any, present: Callable[[], Any], note: Callable[[list[float | None]], None]
) -> Callable[..., Any]:
    """A function for `reward`, which calls what is `present` in its place. It raises UserError where what that
    returns is no list of finite numbers, one for each completion."""
    name = get_callable_name(reward)

    @wraps(reward)
    def call(*, completions: list[Any], **inputs: Any) -> list[float | None]:
        numbers = _numbers(name, present()(completions=completions, **inputs), len(completions))
        note(numbers)
        return numbers

    @wraps(reward)
    async def call_async(*, completions: list[Any], **inputs: Any) -> list[float | None]:
        numbers = _numbers(name, await present()(completions=completions, **inputs), len(completions))
        note(numbers)
        return numbers

    wrapper = call_async if is_async_callable(reward) else call
    wrapper.__name__ = name  # a partial has none that `wraps` could take over
    return wrapper


def _numbers(name: str, made: Any, wanted: int) -> list[float | None]:
    try:
        if isinstance(made, (dict, str, bytes)):
            raise TypeError
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
