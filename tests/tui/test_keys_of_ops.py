"""Every op in every state, by its key: asked of the scheduler where the table accepts it, else refused so."""

import pytest
from fakes import snapshot

from rftui.runs import DELETED
from rftui.tui.screens.clone import CloneScreen
from tests.ops_table import GONE, STATES, TABLE, refusal, run_in

KEYS = {"stop": "s", "resume": "r", "clone": "c", "delete": "d"}
SHOWN = [state for state in STATES if state not in (DELETED, GONE)]


@pytest.mark.parametrize("op", KEYS)
async def test_a_key_does_what_the_table_says(show, op):
    runs = [run_in(state, number) for number, state in enumerate(SHOWN, 1)]
    async with show(snapshot(runs), size=(200, 50)) as shown:
        for run, state in zip(runs, SHOWN, strict=True):
            reason, sent = TABLE[op][state], len(shown.sent)
            await shown.press(KEYS[op])
            if reason:
                assert shown.message() == f"✗ {refusal(run, op, reason)}" and len(shown.sent) == sent
            elif op == "clone":
                assert isinstance(shown.app.screen, CloneScreen) and len(shown.sent) == sent
                await shown.press("escape")
            else:
                if op == "delete":
                    await shown.press("left", "enter")
                assert shown.asked()[sent:] == [(op, run.id)] and shown.sent[-1].by == "key"
            await shown.press("j")


async def test_undo_brings_back_what_was_deleted_last_and_says_what_is_gone(show):
    runs = [run_in(state, number) for number, state in enumerate(STATES, 1)]
    async with show(snapshot(runs), size=(200, 50)) as shown:
        await shown.press("u")
        assert shown.asked() == [("undo", next(run.id for run in runs if run.before))]
    gone = [run for run in runs if not run.before]
    async with show(snapshot(gone), size=(200, 50)) as shown:
        await shown.press("u")
        assert shown.sent == [] and shown.message()
