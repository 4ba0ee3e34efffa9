"""The viewer's screens, each alone over an empty app, driven by keys."""

from __future__ import annotations

import pytest
from alone import MARKUP, SIZES, TARGETS, R, flat, shown_over, visible
from fakes import made

from rftui.redaction import HIDDEN
from rftui.runs import changed
from rftui.tui.screens.confirm import ConfirmScreen
from rftui.tui.screens.detail import DetailScreen
from rftui.tui.screens.help import HelpScreen
from rftui.tui.screens.quit import QuitScreen

# ---------------------------------------------------------------- the questions


@pytest.mark.parametrize(
    "keys, answer",
    [
        (["y"], True),
        (["n"], False),
        (["escape"], False),
        (["enter"], False),
        (["right", "enter"], True),
        (["tab", "enter"], True),
        (["down", "up", "enter"], False),
    ],
)
async def test_confirm(keys: list[str], answer: bool) -> None:
    async with shown_over(ConfirmScreen("Delete run 7?", "Its files go.", ascii=True)) as (app, pilot):
        await pilot.press(*keys)
    assert app.answer is answer


@pytest.mark.parametrize("size", [*SIZES, (40, 10)])
@pytest.mark.parametrize("name", MARKUP)
async def test_confirm_shows_its_keys_however_long_the_question_is(name: str, size: tuple[int, int]) -> None:
    screen = ConfirmScreen(f"Delete {name}?", f"{name} goes. " * 90 + "The end.", yes=name, ascii=True)
    async with shown_over(screen, size) as (app, pilot):
        assert f"Delete {name}?" in visible(app)
        assert "n  Cancel" in visible(app) and f"y  {name}" in visible(app)
        assert visible(app).count("+") == 4, "all four corners of the box"
        await pilot.press(*["pagedown"] * 20)
        await pilot.pause()
        assert "The end." in flat(app)


@pytest.mark.parametrize("key, answer", [("l", "leave"), ("s", "interrupt"), ("escape", None), ("q", None)])
async def test_quit(key: str, answer: str | None) -> None:
    async with shown_over(QuitScreen(3, "rftui open tinychat-sft", ascii=True), (60, 20)) as (app, pilot):
        assert "3 runs are still training" in visible(app)
        assert "rftui open tinychat-sft" in visible(app)
        await pilot.press(key)
    assert app.answer == answer


@pytest.mark.parametrize("name", MARKUP)
async def test_quit_names_its_experiment_as_it_is(name: str) -> None:
    async with shown_over(QuitScreen(1, f"rftui open {name}")) as (app, _):
        assert f"rftui open {name}" in visible(app)
        assert "1 run is still training" in visible(app)


# ---------------------------------------------------------------- the pages

LONG: list[tuple[str, str, str | None]] = [("ctrl+d ctrl+u", "half a page", None), *[("[", "a [red]key", None)] * 40]
GROUPS = [("runs", [("s", "stop", None), ("r", "resume", "it is already running [/b]")]), ("[/b]", LONG)]


@pytest.mark.parametrize("key", ["escape", "q", "question_mark"])
async def test_help_closes(key: str) -> None:
    async with shown_over(HelpScreen(GROUPS, ascii=True)) as (app, pilot):
        assert "(not now: it is already running [/b])" in visible(app)
        assert "ctrl+d ctrl+u  half a page" in visible(app)
        await pilot.press(key)
    assert app.answer is None


@pytest.mark.parametrize("size", SIZES)
async def test_pages_scroll(size: tuple[int, int]) -> None:
    async with shown_over(HelpScreen(GROUPS, ascii=True), size) as (app, pilot):
        top = visible(app)
        await pilot.press("j")
        await pilot.pause()
        assert visible(app) != top
        await pilot.press("G")
        await pilot.pause()
        assert "stop" not in visible(app)
        await pilot.press("g")
        await pilot.pause()
        assert visible(app) == top


@pytest.mark.parametrize("key", ["escape", "q", "enter"])
async def test_detail_closes(key: str) -> None:
    async with shown_over(DetailScreen(made(1), {}, [])) as (app, pilot):
        await pilot.press(key)
    assert app.answer is None


async def test_detail_has_everything_of_a_run() -> None:
    parent = made(7, name="lr=[1e-4", parent=3)
    run = made(9, "failed", lr=4e-4, parent=7, warm=True, start_step=60, start_epoch=0.6, error="nan [/b] at step 9")
    run.config = changed(run.config, {"training_args.hub_token": "hf_abcdefgh1234", "training_args.seed": 1})
    run.checkpoint, run.final = "/runs/9/checkpoint-100", "/runs/9/final"
    tail = ["first [/b]", "\x1b[31mred\x1b[0m", *(f"line {n}" for n in range(90))]
    async with shown_over(DetailScreen(run, {7: parent}, tail, ascii=True), (120, 200)) as (app, _):
        text = visible(app)
    for part in (
        "error: nan [/b] at step 9",
        "failed, SFT",
        "chunk 4/16, step 100/400, epoch 1.00",
        "clone of run 7, warm from step 60 (epoch 0.60)",
        "  7 lr=[1e-4 ",
        "> `-9 sft-lr0.0004-r16  failed    warm @step 60: lr 2e-4 -> 4e-4, ",
        "/runs/9/checkpoint-100",
        "/runs/9/final",
        "2e-4 -> 4e-4",
        "unset -> 1",
        "model_name",
        "eval_loss",
        HIDDEN,
        "line 89",
    ):
        assert part in text
    assert "hf_abc" not in text and "first" not in text


async def test_detail_shows_the_whole_family() -> None:
    runs = {n: made(n, parent=parent) for n, parent in {1: None, 2: 1, 3: None, 4: 1, 5: 2, 6: 4, 7: 4}.items()}
    runs[2].state, runs[4].continue_schedule, runs[4].warm = "deleted", True, True
    runs[6].config = changed(runs[6].config, {R: 64, TARGETS: "all-linear"})
    async with shown_over(DetailScreen(runs[4], runs, []), (120, 60)) as (app, _):
        lines = [line[2:-2].rstrip() for line in visible(app).splitlines()]
        at = lines.index("lineage")
        tree = [" ".join(line[:8].rstrip().split(" ")) for line in lines[at + 1 : at + 7]]
        assert tree == ["  1 sft-", "  ├ 2 sf", "  │ └ 5", "> └ 4 sf", "    ├ 6", "    └ 7"]
        assert "deleted" in lines[at + 2] and "r 16 → 64, targets q_proj,v_proj → all-linear" in lines[at + 5]
        assert "cold: none" in lines[at + 6]
        assert "schedule continued" in visible(app)


async def test_detail_shows_no_codes_of_a_log() -> None:
    async with shown_over(DetailScreen(made(1), {}, ["\x1b[2J\x1b[31mred [/b]\x1b[0m"]), (80, 60)) as (app, _):
        assert "red [/b]" in visible(app) and "\x1b" not in visible(app)


async def test_detail_is_brought_up_to_date_where_it_is_scrolled_to() -> None:
    run = made(1)
    async with shown_over(DetailScreen(run, {}, ["old"] * 60, ascii=True)) as (app, pilot):
        await pilot.press("j", "j")
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, DetailScreen)
        screen.update(made(1, "stopped", step=125), ["new"] * 60)
        await pilot.pause()
        assert "chunk 5/16, step 125/400" not in visible(app)
        await pilot.press("g")
        await pilot.pause()
        assert "stopped" in visible(app) and "chunk 5/16, step 125/400" in visible(app)
