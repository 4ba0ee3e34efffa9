"""The viewer's screens, each alone over an empty app, driven by keys."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fakes import FIELDS, made
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input

from rftui.messages import Field
from rftui.runs import HIDDEN, Run, changed
from rftui.tui.screens.clone import CloneRequest, CloneScreen
from rftui.tui.screens.clone_fields import Choice, shown
from rftui.tui.screens.confirm import ConfirmScreen
from rftui.tui.screens.detail import DetailScreen
from rftui.tui.screens.help import HelpScreen
from rftui.tui.screens.quit import QuitScreen

OPEN = object()
LR, R, TARGETS = "training_args.learning_rate", "peft_config.r", "peft_config.target_modules"
SCHED, EPOCHS = "training_args.lr_scheduler_type", "training_args.num_train_epochs"
SIZES = [(80, 24), (60, 20)]
MARKUP = ["lr=[1e-4", "[/b]", "[red]x[/]", "a[b"]


class Over(App[None]):
    """Keeps what the screen was closed with."""

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__()
        self._first = screen
        self.answer: Any = OPEN

    def on_mount(self) -> None:
        self.push_screen(self._first, self._keep)

    def _keep(self, answer: Any) -> None:
        self.answer = answer


@asynccontextmanager
async def shown_over(screen: Screen[Any], size: tuple[int, int] = (80, 24)) -> AsyncIterator[tuple[Over, Pilot[None]]]:
    app = Over(screen)
    async with app.run_test(size=size) as pilot:
        before = None
        while before != (before := visible(app)):  # it takes several rounds until all rows have their places
            await pilot.pause()
        yield app, pilot


def form(
    parent: Run, *, fields: list[Field] = FIELDS, runs: list[Run] | None = None, ascii: bool = True
) -> CloneScreen:
    return CloneScreen(parent, runs or [parent], fields, ascii=ascii)


def knobs(app: Over) -> dict[str, Any]:
    screen = app.screen
    assert isinstance(screen, CloneScreen)
    return screen._knobs


def box(app: Over, name: str) -> Input | Choice:
    return knobs(app)[name].box


async def write(app: Over, pilot: Pilot[None], name: str, text: str) -> None:
    """Put `text` in the place of what the knob's field holds, by keys."""
    field = box(app, name)
    field.focus()
    await pilot.press("end", "ctrl+u", *text)
    await pilot.pause()


def visible(app: Over) -> str:
    """What stands on the screen."""
    lines = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in line) for line in lines)


def flat(app: Over) -> str:
    """The screen's words without its line breaks and borders."""
    return " ".join(visible(app).replace("|", " ").split())


def under(app: Over, name: str) -> str:
    """The fault that is shown under a knob's field."""
    return knobs(app)[name].fault


def request(changes: dict[str, Any], warm: bool = True, **more: Any) -> CloneRequest:
    return CloneRequest(changes, warm, **({"parents": [7]} | more))


# ---------------------------------------------------------------- the form


async def test_a_warm_clone_changes_one_knob() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        assert "nothing changed yet, warm from step 100" in visible(app)
        await write(app, pilot, LR, "4e-4")
        assert "changes vs 7: lr 2e-4 -> 4e-4, warm from step 100" in visible(app)
        assert "was 2e-4" in visible(app)
        await pilot.press("ctrl+s")
    assert app.answer == request({LR: 4e-4}, True)


async def test_a_cold_clone_with_a_name_that_stops_its_parent() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        app.screen.query_one("#name").focus()
        await pilot.press(*"mine")
        await write(app, pilot, R, "8")
        assert "may grow but not shrink" in under(app, R)
        app.screen.query_one("#start").focus()
        await pilot.press("right")
        await pilot.pause()
        assert under(app, R) == ""
        await pilot.press("ctrl+t")
    assert app.answer == request({R: 8}, False, name="mine", stop_parents=True)


async def test_a_warm_clone_needs_no_change() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        await pilot.press("ctrl+s")
    assert app.answer == request({}, True)


async def test_cold_without_a_change_is_refused() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        app.screen.query_one("#start").focus()
        await pilot.press("right")
        await pilot.pause()
        assert "change something" not in visible(app)
        await pilot.press("ctrl+s")
        await pilot.pause()
        assert app.answer is OPEN
        assert "change something, or start warm" in visible(app)


async def test_a_queued_run_is_cloned_cold_only() -> None:
    async with shown_over(form(made(7, "queued", step=0))) as (app, pilot):
        assert "cold only: it has trained no step yet" in visible(app)
        assert not app.screen.query("#start")
        await pilot.press("ctrl+s")
        assert app.answer is OPEN
        await write(app, pilot, LR, "1e-3")
        await pilot.press("ctrl+s")
    assert app.answer == request({LR: 1e-3}, False)


async def test_a_failed_run_without_a_checkpoint_is_cloned_cold_only() -> None:
    async with shown_over(form(made(5, "failed", step=33))) as (app, _):
        assert "cold only: it failed before its first checkpoint" in visible(app)


async def test_a_finished_run_goes_on_warm_with_more_epochs() -> None:
    async with shown_over(form(made(4, "done", step=400))) as (app, pilot):
        assert "to start warm: epochs must be more than the 4 epochs" in flat(app)
        app.screen.query_one("#start").focus()
        await pilot.press("left")
        await pilot.pause()
        assert "must be more than the 4 epochs" in under(app, EPOCHS)
        await pilot.press("ctrl+s")
        await pilot.pause()
        assert app.answer is OPEN
        assert app.focused is box(app, EPOCHS)
        await write(app, pilot, EPOCHS, "6")
        await pilot.press("ctrl+s")
    assert app.answer == request({EPOCHS: 6.0}, parents=[4])


@pytest.mark.parametrize(
    "name, text, reason",
    [
        (LR, "fast", "must be a number such as 3e-4, not 'fast'"),
        (LR, "", "needs a value"),
        (LR, "[/b]", "must be a number such as 3e-4, not '[/b]'"),
        (R, "1.5", "must be a whole number, not '1.5'"),
        ("peft_config.lora_dropout", "2", ""),
    ],
)
async def test_faults_show_at_once_and_refuse_the_launch(name: str, text: str, reason: str) -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        await write(app, pilot, name, text)
        assert reason in under(app, name) != ""
        assert "(1 error)" in visible(app)
        app.screen.query_one("#name").focus()
        await pilot.press("ctrl+s")
        await pilot.pause()
        assert app.answer is OPEN
        assert app.focused is box(app, name)


async def test_what_is_typed_back_is_no_change() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        for text in ("3e-4", "0.0002"):
            await write(app, pilot, LR, text)
        assert "nothing changed yet" in visible(app)
        await pilot.press("ctrl+s")
    assert app.answer == request({}, True)


async def test_choices_are_stepped_through_and_picked_from_a_list() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        field = box(app, SCHED)
        assert isinstance(field, Choice) and field.value == "linear"
        field.focus()
        await pilot.press("right")
        assert field.value == "cosine"
        await pilot.press("left", "left")
        assert field.value == "polynomial"
        await pilot.press("enter", "up", "enter")
        await pilot.pause()
        assert field.value == "constant"
        await pilot.press("ctrl+s")
    assert app.answer.changes == {SCHED: "constant"}


async def test_a_switch_is_a_choice_of_true_and_false() -> None:
    parent = made(7)
    parent.knobs["training_args.bf16"] = False
    async with shown_over(form(parent)) as (app, pilot):
        box(app, "training_args.bf16").focus()
        await pilot.press("right", "ctrl+s")
    assert app.answer.changes == {"training_args.bf16": True}


async def test_a_value_that_is_no_choice_stays() -> None:
    parent = made(7)
    parent.config = changed(parent.config, {SCHED: "warmup_stable_decay"})
    async with shown_over(form(parent)) as (app, pilot):
        assert box(app, SCHED).value == "warmup_stable_decay"
        await pilot.press("ctrl+s")
    assert app.answer.changes == {}


async def test_an_optional_choice_can_be_none() -> None:
    fields = [*FIELDS, Field("training_args.packing_strategy", "choice", "bfd", ["bfd", "wrapped"], optional=True)]
    parent = made(7)
    parent.knobs["training_args.packing_strategy"] = "bfd"
    async with shown_over(form(parent, fields=fields)) as (app, pilot):
        box(app, "training_args.packing_strategy").focus()
        await pilot.press("left")
        app.screen.query_one("#start").focus()
        await pilot.press("right", "ctrl+s")
    assert app.answer == request({"training_args.packing_strategy": None}, False)


async def test_target_modules_are_a_list() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        await write(app, pilot, TARGETS, "q_proj")
        assert "must keep the parent's modules" in under(app, TARGETS)
        await write(app, pilot, TARGETS, "q_proj, v_proj, o_proj")
        assert "targets q_proj,v_proj -> q_proj,v_proj,o_proj" in flat(app)
        await pilot.press("ctrl+s")
    assert app.answer.changes == {TARGETS: ["q_proj", "v_proj", "o_proj"]}


async def test_knobs_are_the_swept_ones_first_and_each_once() -> None:
    parent, other = made(7), made(8)
    other.knobs["training_args.seed"] = 1
    async with shown_over(form(parent, runs=[parent, other])) as (app, _):
        names = list(knobs(app))
    assert names[:3] == [LR, R, "training_args.seed"]
    assert len(names) == len(set(names)) == 12


async def test_a_run_without_an_adapter_has_no_adapter_knobs() -> None:
    parent = made(7)
    del parent.config["peft_config"]
    async with shown_over(form(parent)) as (app, _):
        assert not [name for name in knobs(app) if "peft" in name]


async def test_a_form_without_knobs_can_start_warm() -> None:
    async with shown_over(form(made(7), fields=[])) as (app, pilot):
        await pilot.press("ctrl+s")
    assert app.answer == request({}, True)


async def test_keys_move_between_fields_and_esc_cancels() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        assert app.focused is box(app, LR)
        assert "The initial learning rate for AdamW." in visible(app)
        await pilot.press("down")
        assert app.focused is box(app, R)
        await pilot.press("down", "down")
        assert app.focused is box(app, "training_args.warmup_steps"), "the choice between is passed, not opened"
        await pilot.press("up", "up", "up", "enter")
        assert app.focused is box(app, R)
        await pilot.press("escape")
    assert app.answer is None


@pytest.mark.parametrize("size", SIZES)
async def test_what_must_be_seen_is_seen_however_many_knobs_there_are(size: tuple[int, int]) -> None:
    more = [Field(f"training_args.knob_{n}", "int", n, help="A [knob]. More of it.") for n in range(30)]
    parent = made(7)
    parent.knobs |= {field.name: field.default for field in more}
    async with shown_over(form(parent, fields=[*FIELDS, *more]), size) as (app, pilot):
        for _ in range(20):
            await pilot.press("down")
        assert isinstance(app.focused, Input)
        await pilot.press("x")
        await pilot.pause()
        assert "! must be a whole number" in visible(app)
        assert "A [knob]" in visible(app) and "More of it" not in visible(app)
        assert "nothing changed yet, warm from step 100 (1 error)" in flat(app)
        for key in (
            "^s launch",
            "^t and stop 7",
            "^e YAML",
            "^p promote",
            "left/right pick",
            ", several",
            "esc cancel",
        ):
            assert key in flat(app)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MARKUP)
async def test_markup_in_names_and_values_is_only_text(name: str, size: tuple[int, int]) -> None:
    parent = made(7, name=name)
    parent.knobs["model_name"] = name
    parent.config["model_name"] = name
    fields = [*FIELDS, Field("model_name", "choice", name, [name, f"{name}2"], help=name)]
    async with shown_over(form(parent, fields=fields), size) as (app, pilot):
        assert f"Clone-Modify run 7 {name}" in visible(app)
        box(app, "model_name").focus()
        await pilot.press("right")
        await pilot.pause()
        assert f"model {name} -> {name}2" in flat(app)
        assert f"model_name: {name}" in visible(app)


async def test_ascii_has_only_ascii() -> None:
    async with shown_over(form(made(7), ascii=True)) as (app, pilot):
        box(app, SCHED).focus()
        await pilot.press("right", "enter")
        await pilot.pause()
        assert visible(app).isascii()


@pytest.mark.parametrize(
    "value, text",
    [
        (2e-4, "2e-4"),
        (0.00015, "1.5e-4"),
        (0.0, "0"),
        (0.05, "0.05"),
        (4.0, "4"),
        (1.2345678, "1.2345678"),
        (1.23456789e-5, "1.23456789e-5"),
        (-1, "-1"),
        (True, "true"),
        (None, "none"),
        (["q_proj", "v_proj"], "q_proj,v_proj"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_values_are_short_and_lose_no_digit(value: object, text: str) -> None:
    assert shown(value) == text


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


@pytest.mark.parametrize("key, answer", [("l", "leave"), ("s", "halt"), ("escape", None), ("q", None)])
async def test_quit(key: str, answer: str | None) -> None:
    async with shown_over(QuitScreen(3, "rftui open tinychat-sft", ascii=True), (60, 20)) as (app, pilot):
        assert "3 runs are not done" in visible(app)
        assert "rftui open tinychat-sft" in visible(app)
        await pilot.press(key)
    assert app.answer == answer


@pytest.mark.parametrize("name", MARKUP)
async def test_quit_names_its_experiment_as_it_is(name: str) -> None:
    async with shown_over(QuitScreen(1, f"rftui open {name}")) as (app, _):
        assert f"rftui open {name}" in visible(app)
        assert "1 run is not done" in visible(app)


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
    runs[2].state, runs[4].carry_on, runs[4].warm = "deleted", True, True
    runs[6].config = changed(runs[6].config, {R: 64, TARGETS: "all-linear"})
    async with shown_over(DetailScreen(runs[4], runs, []), (120, 60)) as (app, _):
        lines = [line[2:-2].rstrip() for line in visible(app).splitlines()]
        at = lines.index("lineage")
        tree = [" ".join(line[:8].rstrip().split(" ")) for line in lines[at + 1 : at + 7]]
        assert tree == ["  1 sft-", "  ├ 2 sf", "  │ └ 5", "> └ 4 sf", "    ├ 6", "    └ 7"]
        assert "deleted" in lines[at + 2] and "r 16 → 64, targets q_proj,v_proj → all-linear" in lines[at + 5]
        assert "cold: nothing" in lines[at + 6]
        assert "its schedule continued" in visible(app)


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
