"""Keys that move, order, fold and leave, in a table with more runs than its screen has rows."""

from __future__ import annotations

import pytest
from fakes import NOW, made, snapshot
from textual.events import Key

from rftui.errors import USAGE
from rftui.messages import Event, Update
from rftui.tui.screens.log import LogScreen
from rftui.tui.screens.quit import QuitScreen


def many() -> list:
    return [made(number) for number in range(1, 41)]


@pytest.mark.parametrize(
    ("keys", "cursor"),
    [
        (("down", "down", "up"), 2),
        (("j", "j", "k"), 2),
        (("end",), 40),
        (("G", "home"), 1),
        (("G", "g"), 1),
        (("end", "down"), 40),
    ],
)
async def test_the_cursor_moves_where_the_table_scrolls(show, keys, cursor):
    async with show(snapshot(many())) as shown:
        await shown.press(*keys)
        assert shown.app.table.cursor == cursor
        assert any(line[1:2] == ">" and f" {cursor} " in line[:8] for line in shown.lines())


@pytest.mark.parametrize(("down", "up"), [("pagedown", "pageup"), ("ctrl+d", "ctrl+u")])
async def test_a_page_is_what_is_seen(show, down, up):
    async with show(snapshot(many())) as shown:
        rows = shown.app.table.page
        await shown.press(down)
        assert shown.app.table.cursor == 1 + rows
        await shown.press(down, up, up)
        assert shown.app.table.cursor == 1


async def test_the_order_can_be_turned_round(show):
    runs = [made(1, metrics={"loss": 2.0}), made(2, metrics={"loss": 1.0}), made(3, metrics={})]
    async with show(snapshot(runs)) as shown:
        await shown.press("O")
        assert shown.app.board.shown == [1, 2, 3] and "by loss, highest first" in shown.text()
        await shown.press("O")
        assert shown.app.board.shown == [2, 1, 3] and "highest first" not in shown.text()


async def test_the_runs_alone_and_with_the_panels(show):
    async with show(size=(120, 34)) as shown:
        await shown.press("1")
        assert "3 Events" not in shown.text()
        await shown.press("1")
        await shown.until(lambda: "3 Events" in shown.text() and "2 loss" in shown.text())


async def test_the_log_is_followed(show, tmp_path):
    log = tmp_path / "runs" / "1" / "log.txt"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {number}\n" for number in range(100)) + "\x1b[31mred [/b]\n")
    first = snapshot()
    first.experiment.path = str(tmp_path)
    async with show(first) as shown:
        await shown.press("l")
        assert isinstance(shown.app.screen, LogScreen)
        await shown.until(lambda: "red [/b]" in shown.text())
        with log.open("a") as file:
            file.write("the newest\n")
        await shown.give(Update(11, runs=[made(1, step=105)]))
        await shown.until(lambda: "the newest" in shown.text())
        await shown.press("escape")
        assert not isinstance(shown.app.screen, LogScreen)


async def test_a_log_that_is_not_there(show):
    async with show() as shown:
        await shown.press("l")
        await shown.until(lambda: "No output yet" in shown.text())


# ---------------------------------------------------------------- keys that come in one piece, as over a slow line


async def burst(shown, *keys: str) -> None:
    """All keys are there before the first one acts."""
    for key in keys:
        shown.app.post_message(Key(key, key if len(key) == 1 else None))
    await shown.pilot.pause()
    await shown.pilot.pause()


async def test_what_is_typed_right_after_clearing_a_field_stays(show):
    async with show() as shown:
        await shown.press("c")
        await burst(shown, "end", "ctrl+u", *"1e-3", "left", "left", "left", "backspace", *"5", "down", *"80")
        assert "lr 2e-4 → 5e-3" in shown.text() and "r 16 → 80" in shown.text()


async def test_a_launch_takes_what_was_typed_right_before_it(show):
    async with show() as shown:
        await shown.press("c")
        await burst(shown, "end", "ctrl+u", *"1e-3", "enter", "end", "ctrl+u", *"32", "ctrl+s")
        assert shown.sent[0].changes == {"training_args.learning_rate": 1e-3, "peft_config.r": 32}


async def test_a_knob_that_is_found_takes_what_is_typed_right_after(show):
    async with show() as shown:
        await shown.press("c")
        shown.app.screen.query_one("#more").focus()
        await burst(shown, *"adam_beta2", "enter", *"0.9", "down", *"decay", "enter", *"0.1", "ctrl+s")
        await shown.until(lambda: shown.sent, "rows take a while to stand")
        assert shown.sent[0].changes == {"training_args.adam_beta2": 0.9, "training_args.weight_decay": 0.1}


async def test_commas_on_a_choice(show):
    async with show() as shown:
        await shown.press("c")
        await burst(shown, *"1e-4,5e-4", "down", "down", "comma", "right", "ctrl+s")
        assert shown.sent[0].sweep == {
            "training_args.learning_rate": [1e-4, 5e-4],
            "training_args.lr_scheduler_type": ["linear", "constant"],
        }


async def test_a_promotion_in_one_piece(show):
    async with show() as shown:
        await burst(shown, "p", *"big", "down", "3", "enter", "u")
        assert [(command.op, command.run) for command in shown.sent] == [("clone", 4), ("clone", 1), ("clone", 2)]
        await burst(shown, "c", "ctrl+p", *"big", "ctrl+s", "g", "d", "y", "u")
        assert [command.op for command in shown.sent[3:]] == ["clone", "delete", "undo"]


async def test_a_filter_is_no_ops(show):
    async with show() as shown:
        await burst(shown, "slash", *"srcdq", "backspace", "ctrl+u", *"stopped", "enter", "j", "r")
        assert shown.app.board.filter == "stopped" and shown.app.board.shown == [3]
        assert [(command.op, command.run) for command in shown.sent] == [("resume", 3)]


async def test_a_question_takes_its_answer_only(show):
    async with show() as shown:
        await burst(shown, "d", "n", "j", "j")
        assert shown.sent == [] and len(shown.app.screen_stack) == 1
        await shown.press("d")
        await burst(shown, "right", "enter")
        assert [command.op for command in shown.sent] == ["delete"]


async def test_control_c_asks_as_q_does(show):
    async with show() as shown:
        await shown.press("ctrl+c")
        assert isinstance(shown.app.screen, QuitScreen)


async def test_faults_before_the_first_step_end_the_viewer_and_are_told(show):
    first = snapshot([made(1, "queued", step=0), made(2, "queued", step=0)], state="loading", events=[])
    async with show(first) as shown:
        await shown.give(Update(11, events=[Event(9, NOW, "lr must be a number", 2, "error")]))
        shown.viewer.lose()
        await shown.until(lambda: shown.app.return_value == USAGE)
        assert shown.app.board.faults == ["run 2 sft-lr0.0002-r16: lr must be a number"]


async def test_only_changed_cells_are_drawn_anew(show, monkeypatch):
    async with show() as shown:
        regions = []
        monkeypatch.setattr(shown.app.table, "refresh", lambda *given, **how: regions.extend(given))
        run = made(1, step=100)
        run.metrics = run.metrics | {"loss": 1.234}
        await shown.give(Update(11, runs=[run]))
        assert regions and all(region.width < 12 and region.height == 1 for region in regions)
