"""Promotion: the best runs, or the marked ones, on another base model."""

from __future__ import annotations

import pytest
from alone import MARKUP, OPEN, Over, settled, shown_over, visible
from fakes import FIELDS, made, some_runs
from textual.pilot import Pilot

from rftui.runs import Run
from rftui.tui.screens.promote import PromoteRequest, PromoteScreen

SCHEMA = {"SFT": FIELDS}


def screen(runs: list[Run] | None = None, *, chosen: bool = False) -> PromoteScreen:
    return PromoteScreen(runs or some_runs(), SCHEMA, chosen=chosen, ascii=True)


async def press(app: Over, pilot: Pilot[None], *keys: str) -> str:
    await pilot.press(*keys)
    await settled(app, pilot)
    return " ".join(visible(app).replace("|", " ").split())


async def test_the_best_run_by_its_eval_loss() -> None:
    async with shown_over(screen()) as (app, pilot):
        text = await press(app, pilot, *"bigchat")
        assert "Best by eval_loss, each started from scratch: 4 sft-lr5e-05-r8 0.9 tinychat" in text
        assert "the batch is fitted to memory, at the same effective size" in text
        await pilot.press("enter")
    assert isinstance(app.answer, PromoteRequest)
    assert [run.id for run in app.answer.runs] == [4]
    assert app.answer.changes == {"model_name": "bigchat"} and app.answer.sweep == {}


async def test_the_best_few() -> None:
    async with shown_over(screen()) as (app, pilot):
        text = await press(app, pilot, *"bigchat", "down", "end", "backspace", "3")
        assert "4 sft" in text and "1 sft" in text and "2 sft" in text and "3 sft" not in text
        await pilot.press("enter")
    assert [run.id for run in app.answer.runs] == [4, 1, 2]


async def test_the_marked_ones() -> None:
    runs = [made(5), made(6, "queued", step=0)]
    async with shown_over(screen(runs, chosen=True)) as (app, pilot):
        text = await press(app, pilot, *"bigchat")
        assert "Marked runs, each started" in text and "how many" not in text
        await pilot.press("enter")
    assert app.answer.runs == runs


async def test_several_models() -> None:
    async with shown_over(screen()) as (app, pilot):
        await press(app, pilot, *"bigchat;huge", "enter")
    assert app.answer.changes == {} and app.answer.sweep == {"model_name": ["bigchat", "huge"]}


async def test_runs_that_are_on_that_model_are_no_candidates() -> None:
    big = made(1, metrics={"eval_loss": 0.1})
    big.config["model_name"] = "bigchat"
    async with shown_over(screen([big, made(2)])) as (app, pilot):
        assert "1 sft" in await press(app, pilot)
        text = await press(app, pilot, *"bigchat")
        assert "1 sft" not in text and "2 sft" in text
        await pilot.press("enter")
    assert [run.id for run in app.answer.runs] == [2]


@pytest.mark.parametrize(
    ("runs", "chosen", "keys", "reason"),
    [
        (None, False, [], "Enter a base model"),
        (None, False, [*"big", "down", "end", "backspace"], "How many? Enter a number"),
        (None, False, [*"big", "down", "end", "backspace", "0"], "How many? Enter a number"),
        ([made(6, "queued", step=0)], False, [*"big"], "No run on another model has a loss yet"),
        ([made(6)], True, [*"tinychat"], "The marked runs already use that model"),
    ],
)
async def test_what_is_refused(runs: list[Run], chosen: bool, keys: list[str], reason: str) -> None:
    async with shown_over(screen(runs, chosen=chosen)) as (app, pilot):
        assert reason in await press(app, pilot, *keys, "enter") and app.answer is OPEN
        await pilot.press("escape")
    assert app.answer is None


@pytest.mark.parametrize("size", [(80, 24), (40, 10)])
@pytest.mark.parametrize("name", MARKUP)
async def test_names_are_only_text(name: str, size: tuple[int, int]) -> None:
    async with shown_over(screen([made(1, name=name)] * 30, chosen=True), size) as (app, pilot):
        text = await press(app, pilot)
        assert f"1 {name}" in text or size == (40, 10)
        assert visible(app).isascii()
