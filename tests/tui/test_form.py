"""The Clone-Modify form, driven by keys."""

from __future__ import annotations

import math

import pytest
from alone import (
    EPOCHS,
    LR,
    MARKUP,
    OPEN,
    SCHED,
    SIZES,
    TARGETS,
    R,
    box,
    flat,
    form,
    knobs,
    request,
    settled,
    shown_over,
    under,
    visible,
    write,
)
from fakes import FIELDS, made
from textual.widgets import Input

from rftui.messages import Field
from rftui.runs import changed
from rftui.tui.screens.clone_fields import Choice, shown


async def test_a_warm_clone_changes_one_knob() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        assert "No changes yet, warm from step 100" in visible(app)
        await write(app, pilot, LR, "4e-4")
        assert "Changes vs 7: lr 2e-4 -> 4e-4, warm from step 100" in visible(app)
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
        await settled(app, pilot)
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
        await settled(app, pilot)
        assert "Change a setting" not in visible(app)
        await pilot.press("ctrl+s")
        await settled(app, pilot)
        assert app.answer is OPEN
        assert "Change a setting, or start warm" in visible(app)


async def test_a_queued_run_is_cloned_cold_only() -> None:
    async with shown_over(form(made(7, "queued", step=0))) as (app, pilot):
        assert "Starts from scratch: it has not trained a step yet" in visible(app)
        assert not app.screen.query("#start")
        await pilot.press("ctrl+s")
        assert app.answer is OPEN
        await write(app, pilot, LR, "1e-3")
        await pilot.press("ctrl+s")
    assert app.answer == request({LR: 1e-3}, False)


async def test_a_failed_run_without_a_checkpoint_is_cloned_cold_only() -> None:
    async with shown_over(form(made(5, "failed", step=33))) as (app, _):
        assert "Starts from scratch: it failed before its first checkpoint" in visible(app)


async def test_a_finished_run_goes_on_warm_with_more_epochs() -> None:
    async with shown_over(form(made(4, "done", step=400))) as (app, pilot):
        assert "For a warm start: epochs must be more than the 4 epochs" in flat(app)
        app.screen.query_one("#start").focus()
        await pilot.press("left")
        await settled(app, pilot)
        assert "must be more than the 4 epochs" in under(app, EPOCHS)
        await pilot.press("ctrl+s")
        await settled(app, pilot)
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
        await settled(app, pilot)
        assert app.answer is OPEN
        assert app.focused is box(app, name)


async def test_what_is_typed_back_is_no_change() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        for text in ("3e-4", "0.0002"):
            await write(app, pilot, LR, text)
        assert "No changes yet" in visible(app)
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
        await settled(app, pilot)
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
        assert "The initial learning rate for AdamW." in flat(app)
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
        await settled(app, pilot)
        assert "! must be a whole number" in visible(app)
        assert "A [knob]" in visible(app) and "More of it" not in visible(app)
        assert "No changes yet, warm from step 100 (1 error)" in flat(app)
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
        await settled(app, pilot)
        assert f"model {name} -> {name}2" in flat(app)
        assert f"model_name: {name}" in visible(app)


async def test_ascii_has_only_ascii() -> None:
    async with shown_over(form(made(7), ascii=True)) as (app, pilot):
        box(app, SCHED).focus()
        await pilot.press("right", "enter")
        await settled(app, pilot)
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
