"""GRPO's reward functions are checked as they are called."""

import asyncio
import functools

import numpy
import pytest
import torch

from rftui.errors import UserError
from rftui.training.rewards import checked


def call(function, count=2):
    return checked([function])[0](completions=["a"] * count, prompts=["p"] * count)


@pytest.mark.parametrize(
    "made", [[1, None], (0.5, True), numpy.array([1.0, 2.0]), torch.tensor([1.0, 2.0]), (n for n in (1, 2))]
)
def test_numbers_of_any_kind_pass(made):
    found = call(lambda completions, **_: made)
    assert len(found) == 2 and all(value is None or isinstance(value, float) for value in found)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([1.0], "1 rewards for 2 completions"),
        (0.5, "returned float, not a list"),
        (None, "returned NoneType, not a list"),
        ([1.0, float("nan")], "nan for completion 1"),
        ([float("inf"), 1.0], "inf for completion 0"),
        ({0: 1.0, 1: 2.0}, "returned dict, not a list"),
        ([None, None], "None for all 2 completions"),
        (["1.0", 2.0], "'1.0' for completion 0, not a number"),
        ([[1.0], 2.0], "for completion 0, not a number"),
    ],
)
def test_anything_else_is_refused_by_the_functions_name(made, said):
    def fine(completions, **_):
        return made

    with pytest.raises(UserError, match="reward function fine") as raised:
        call(fine)
    assert said in str(raised.value)


def test_names_and_kinds_stay():
    def named(completions, bonus=0, **_):
        return [bonus] * len(completions)

    async def later(completions, **_):
        return [2] * len(completions)

    rewards = checked([named, functools.partial(named, bonus=3), later, "a/model"])
    assert [getattr(reward, "__name__", reward) for reward in rewards] == ["named", "named", "later", "a/model"]
    assert rewards[1](completions=["a"]) == [3.0]
    assert asyncio.run(rewards[2](completions=["a"])) == [2.0]


def test_a_model_is_copied_for_each_trainer():
    model = torch.nn.Linear(1, 1)
    assert checked([model])[0] is not model


def test_functions_of_which_another_one_has_a_number_may_return_none_for_all():
    """Each may be meant for some of the prompts only."""
    made = {"first": [None, None], "second": [1.0, None]}

    def first(completions, **_):
        return made["first"]

    def second(completions, **_):
        return made["second"]

    rewards = checked([first, second])
    for step in ([[None, None], [1.0, None]], [[1.0, None], [None, None]], [[None, None], [1.0, 1.0]]):
        made["first"], made["second"] = step
        assert [reward(completions=["a", "b"]) for reward in rewards] == step
    made["first"] = made["second"] = [None, None]
    rewards[0](completions=["a", "b"])
    with pytest.raises(UserError, match="reward function first and second returned None for all 2 completions"):
        rewards[1](completions=["a", "b"])
