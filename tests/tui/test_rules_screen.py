"""The rules on the screen: switched by key, and what they did told where it is looked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import made, snapshot, some_rules

from rftui.messages import Update
from rftui.tui.screens.rule_list import RulesScreen

WHY = "rule halving: eval_loss 2.31 after chunk 2 of 16 is 9th of 12; 6 go on"


def row(shown, name) -> str:
    return next(line for line in shown.lines() if f"] {name}" in line)


@pytest.mark.parametrize("key", ["space", "enter"])
async def test_a_rule_is_switched_by_key_and_shown_as_it_then_is(show, key):
    async with show() as shown:
        await shown.press("R")
        assert "[✔]" in row(shown, "halving") and "reduction_factor 2  min_chunks 1" in row(shown, "halving")
        assert "[ ]" in row(shown, "early") and "after chunk 1, 2, 4, ... the best 1 in 2 go on" in shown.text()
        await shown.press("down", "j", "down", key)
        [command] = shown.sent
        assert (command.op, command.name, command.changes, command.by) == ("rule", "early", {"on": True}, "key")
        assert "[ ]" in row(shown, "early"), "not before the scheduler says so"
        info = replace(shown.app.board.experiment, rules=some_rules(halving=True, early=True))
        await shown.give(Update(11, experiment=info))
        await shown.until(lambda: "[✔]" in row(shown, "early"))
        shown.viewer.reply(True, "rule early is on: it judges each run from its next chunk end on")
        await shown.until(lambda: "rule early is on" in shown.message())
        await shown.press("k", "k", key)
        assert (shown.sent[1].name, shown.sent[1].changes) == ("halving", {"on": False})
        await shown.press("escape")
        assert not isinstance(shown.app.screen, RulesScreen)


async def test_a_refusal_is_said(show):
    async with show() as shown:
        await shown.press("R", "space")
        shown.viewer.reply(False, "rule halving: no")
        await shown.until(lambda: "✗ rule halving: no" in shown.message())


@pytest.mark.parametrize(
    ("how", "lost", "why"), [({"readonly": True}, False, "--readonly"), ({}, True, "the scheduler has ended")]
)
async def test_where_they_cannot_be_switched_they_are_shown_and_why_is_said(show, how, lost, why):
    async with show(**how) as shown:
        if lost:
            shown.viewer.lose()
            await shown.until(lambda: shown.app.session.ended)
        await shown.press("R", "space")
        assert "[✔]" in row(shown, "halving") and not shown.sent
        assert "Can't change rule halving" in shown.message() and why in shown.message()


async def test_a_name_is_not_markup_and_ascii_is_ascii(show):
    rules = some_rules(halving=True)
    rules[1].parameters["metric"] = "eval_[b]x"
    first = snapshot()
    first.experiment.rules = rules
    async with show(first, ascii=True) as shown:
        await shown.press("R")
        assert "metric eval_[b]x" in row(shown, "median") and "> [x] halving" in shown.text()
        assert shown.text().isascii()


async def test_a_run_that_a_rule_stopped_says_so_under_the_cursor_and_on_its_page(show):
    runs = [made(1), made(2, "stopped", stopped_by=WHY), made(3, exempt=True)]
    async with show(snapshot(runs), size=(120, 34)) as shown:
        await shown.press("j")
        assert shown.message() == f"✔ Run 2 stopped by {WHY}; r resumes it"
        await shown.press("enter")
        await shown.until(lambda: f"stopped by  {WHY}" in shown.text())
        await shown.press("escape", "j", "enter")
        await shown.until(lambda: "off for this run" in shown.text())
