"""What the Clone-Modify form can besides: several values, any knob, where to start, several parents, YAML."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from alone import (
    EPOCHS,
    LR,
    OPEN,
    SCHED,
    TARGETS,
    Over,
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

from rftui.redaction import HIDDEN
from rftui.runs import Suggestion, changed
from rftui.tui.screens.clone import CloneScreen

ALPHA, BETA = "peft_config.lora_alpha", "training_args.adam_beta1"


# ---------------------------------------------------------------- several values


async def test_several_values_make_several_clones() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        await write(app, pilot, LR, "1e-4,2e-4, 5e-4")
        assert "Changes vs 7: lr 2e-4 -> 1e-4,2e-4,5e-4: 3 clones, warm from step 100" in flat(app)
        await write(app, pilot, R, "16,32")
        assert ": 6 clones" in flat(app)
        await write(app, pilot, ALPHA, "64")
        await pilot.press("ctrl+s")
    assert app.answer == request({ALPHA: 64}, sweep={LR: [1e-4, 2e-4, 5e-4], R: [16, 32]})


async def test_lists_are_separated_by_semicolons() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        await write(app, pilot, TARGETS, "all-linear; q_proj,v_proj,o_proj")
        assert "targets q_proj,v_proj -> all-linear;q_proj,v_proj,o_proj: 2 clones" in flat(app)
        await pilot.press("ctrl+s")
    assert app.answer == request({}, sweep={TARGETS: ["all-linear", ["q_proj", "v_proj", "o_proj"]]})


async def test_a_choice_takes_several_by_commas() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        box(app, SCHED).focus()
        await pilot.press("comma", "right", "comma")
        assert knobs(app)[SCHED].text == "linear,constant,cosine"
        await pilot.press("backspace")
        assert knobs(app)[SCHED].text == "linear,constant"
        await settled(app, pilot)
        assert "linear, constant" in visible(app) and "was linear" in visible(app)
        await pilot.press("left", "left")
        assert knobs(app)[SCHED].text == "linear", "one that is there already is not there twice"
        await pilot.press("right", "ctrl+s")
    assert app.answer == request({}, sweep={SCHED: ["linear", "cosine"]})


async def test_all_choices_and_none_of_them_taken_back() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        box(app, SCHED).focus()
        await pilot.press(*["comma"] * 6)
        assert knobs(app)[SCHED].text == "linear,cosine,constant,polynomial"
        await pilot.press(*["backspace"] * 6)
        assert knobs(app)[SCHED].text == "linear"
        await pilot.press("ctrl+s")
    assert app.answer == request({})


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        (LR, "1e-4,fast", "must be a number such as 3e-4, not 'fast'"),
        (LR, "1e-4,0", "must be greater than 0 (it is 0.0)"),
        (R, "8,16,32", "may grow but not shrink in a warm start (the parent's is 16); clone it cold (with r 8)"),
    ],
)
async def test_the_fault_of_a_sweep_names_the_value(name: str, text: str, reason: str) -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        await write(app, pilot, name, text)
        assert under(app, name) == f"! {reason}"
        await pilot.press("ctrl+s")
        assert app.answer is OPEN


async def test_too_many_clones_are_a_fault_of_the_whole() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        await write(app, pilot, LR, ",".join(f"{n}e-5" for n in range(1, 12)))
        await write(app, pilot, R, "16,24,32,48,56,64")
        assert "11 x 6 values make 66 clones; at most 64 at once" in flat(app)
        await pilot.press("ctrl+s")
        assert app.answer is OPEN


# ---------------------------------------------------------------- any knob


async def test_any_other_knob_is_found_by_typing() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        app.screen.query_one("#more").focus()
        await pilot.press(*"moment")
        await settled(app, pilot)
        assert "adam_beta1 The exponential decay rate for" in flat(app) and "adam_beta2" in visible(app)
        await pilot.press("enter")
        await settled(app, pilot)
        assert app.focused is box(app, BETA)
        assert list(knobs(app))[-1] == BETA and "moment" not in visible(app).split("beta1")[0]
        await pilot.press(*"0.8")
        await settled(app, pilot)
        assert "adam_beta1 0.9 -> 0.8" in flat(app) and "was 0.9" in visible(app)
        await pilot.press("ctrl+s")
    assert app.answer == request({BETA: 0.8})


async def test_the_matches_are_chosen_by_up_and_down_and_the_ends_lead_on() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        app.screen.query_one("#more").focus()
        await pilot.press(*"adam_beta", "down", "enter")
        await settled(app, pilot)
        assert app.focused is box(app, "training_args.adam_beta2")
        await pilot.press("down", *"adam_beta", "up")
        assert app.focused is box(app, "training_args.adam_beta2")
        await pilot.press("down", "down", "down")
        assert app.focused is app.screen.query_one("#start")


async def test_a_knob_that_has_a_row_is_gone_to() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        app.screen.query_one("#more").focus()
        await pilot.press(*"alpha", "enter")
        await settled(app, pilot)
        assert app.focused is box(app, ALPHA) and list(knobs(app)).count(ALPHA) == 1


async def test_no_knob_is_called_so() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        app.screen.query_one("#more").focus()
        await pilot.press(*"qqq", "enter")
        await settled(app, pilot)
        assert "No matching setting" in visible(app) and len(knobs(app)) == 11
        await pilot.press("ctrl+u", "enter")
        assert app.focused is app.screen.query_one("#start")


async def test_a_run_without_an_adapter_finds_no_adapter_knobs() -> None:
    parent = made(7)
    parent.config["peft_config"] = None
    async with shown_over(form(parent)) as (app, pilot):
        app.screen.query_one("#more").focus()
        await pilot.press(*"dropout", "enter")
        await settled(app, pilot)
        assert "No matching setting" in visible(app)


async def test_what_is_usual_is_told() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        assert f"{LR} (typically 1e-5 to 1e-3): The initial" in flat(app)
        box(app, R).focus()
        await settled(app, pilot)
        assert f"{R} (typically 8 to 64): Lora attention" in flat(app)
    parent = made(7, algo="DPO")
    async with shown_over(form(parent)) as (app, _):
        assert f"{LR} (typically 1e-6 to 1e-4)" in flat(app)


async def test_a_value_that_is_a_dict_stays() -> None:
    parent, name = made(7), "training_args.lr_scheduler_kwargs"
    parent.config = changed(parent.config, {name: {"num_cycles": 2}})
    async with shown_over(form(parent)) as (app, pilot):
        app.screen.query_one("#more").focus()
        await pilot.press(*"scheduler_kw", "enter")
        await settled(app, pilot)
        assert knobs(app)[name].text == '{"num_cycles": 2}'
        await pilot.press("ctrl+s")
    assert app.answer == request({})


# ---------------------------------------------------------------- the start and the schedule


async def test_a_warm_start_from_an_earlier_checkpoint() -> None:
    async with shown_over(form(made(7, checkpoints=[50, 75, 100]))) as (app, pilot):
        start = app.screen.query_one("#start")
        start.focus()
        await pilot.press("right")
        await settled(app, pilot)
        assert "Warm: continue from its checkpoint at step 75" in visible(
            app
        ) and "No changes yet, warm from step 75" in flat(app)
        await pilot.press("right", "ctrl+s")
    assert app.answer == request({}, from_step=50)


async def test_a_finished_run_goes_on_from_an_earlier_checkpoint_as_it_is() -> None:
    async with shown_over(form(made(7, "done", step=400, checkpoints=[300, 400]))) as (app, pilot):
        app.screen.query_one("#start").focus()
        await pilot.press("left")
        await settled(app, pilot)
        assert "warm from step 300" in flat(app) and under(app, EPOCHS) == ""
        await pilot.press("ctrl+s")
    assert app.answer == request({}, from_step=300)


async def test_a_failed_run_starts_from_its_last_checkpoint() -> None:
    async with shown_over(form(made(7, "failed", step=93, checkpoint="c", checkpoints=[50, 75]))) as (app, pilot):
        assert "continue from run 7, step 75" in visible(app) and "warm from step 75" in flat(app)
        await pilot.press("ctrl+s")
    assert app.answer == request({})


async def test_the_parents_schedule_is_continued_where_it_can_be() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        app.screen.query_one("#schedule").focus()
        await pilot.press("right")
        await write(app, pilot, R, "32")
        assert "cannot change while the parent's schedule is continued" in under(app, R)
        await write(app, pilot, R, "16")
        await write(app, pilot, LR, "1e-4")
        assert "warm from step 100, schedule continued" in flat(app) and under(app, LR) == ""
        await pilot.press("ctrl+s")
    assert app.answer == request({LR: 1e-4}, continue_schedule=True)


async def test_a_finished_run_has_no_schedule_to_continue() -> None:
    async with shown_over(form(made(7, "done", step=400))) as (app, pilot):
        app.screen.query_one("#start").focus()
        await pilot.press("left")
        await write(app, pilot, EPOCHS, "6")
        app.screen.query_one("#schedule").focus()
        await pilot.press("right")
        await settled(app, pilot)
        assert "its schedule has ended" in flat(app)
        await pilot.press("ctrl+s")
        assert app.answer is OPEN


async def test_a_cold_clone_has_no_schedule_to_choose() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        app.screen.query_one("#schedule").focus()
        await pilot.press("right", "up", "left")
        await settled(app, pilot)
        assert "schedule" not in visible(app)
        await write(app, pilot, R, "8")
        await pilot.press("ctrl+s")
    assert app.answer == request({R: 8}, False)


# ---------------------------------------------------------------- several parents, suggestions, promotion


async def test_several_parents_get_the_same_changes() -> None:
    others = [(made(8, checkpoints=[50]), FIELDS), (made(9, "queued", step=0), FIELDS), (made(10, r=64), FIELDS)]
    screen = CloneScreen(made(7, checkpoints=[50]), [made(7)], FIELDS, others=others, ascii=True)
    async with shown_over(screen) as (app, pilot):
        assert "Clone-Modify run 7 sft-lr0.0002-r16 and 3 more marked runs" in visible(app)
        assert "^t and stop them" in visible(app)
        assert "Skipping run 9: it has not trained a step yet" in flat(app)
        await write(app, pilot, R, "24,32")
        assert "Skipping run 10: peft_config.r may grow but not shrink" in flat(app)
        assert ": 4 clones, warm from each run's current step" in flat(app)
        app.screen.query_one("#start").focus()
        await pilot.press("right")
        await settled(app, pilot)
        assert ": 8 clones, from scratch" in flat(app) and "left out" not in flat(app)
        await pilot.press("left", "ctrl+t")
    assert app.answer == request({}, sweep={R: [24, 32]}, parents=[7, 8], stop_parents=True)


async def test_a_suggestion_is_filled_in() -> None:
    suggested = Suggestion({LR: 7e-5, BETA: 0.8}, True, 75, "its loss rises: a lower learning rate")
    screen = CloneScreen(made(7, checkpoints=[75, 100]), [made(7)], FIELDS, suggested=suggested, ascii=True)
    async with shown_over(screen) as (app, pilot):
        assert "Suggested: its loss rises: a lower learning rate" in visible(app)
        assert "lr 2e-4 -> 7e-5" in flat(app) and "adam_beta1 0.9 -> 0.8" in flat(app)
        await pilot.press("ctrl+s")
    assert app.answer == request({LR: 7e-5, BETA: 0.8}, from_step=75)


async def test_a_suggestion_to_start_cold() -> None:
    suggested = Suggestion({R: 8}, False, None, "a lower rank")
    screen = CloneScreen(made(7), [made(7)], FIELDS, suggested=suggested, ascii=True)
    async with shown_over(screen) as (app, pilot):
        await pilot.press("ctrl+s")
    assert app.answer == request({R: 8}, False)


async def test_promotion_asks_for_the_base_and_starts_cold() -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        await pilot.press("ctrl+p")
        await settled(app, pilot)
        assert app.focused is box(app, "model_name") and box(app, "model_name").value == "tinychat"
        await pilot.press(*"bigchat", "ctrl+s")
    assert app.answer == request({"model_name": "bigchat"}, False)


async def test_there_is_nothing_to_promote_where_the_base_is_no_knob() -> None:
    async with shown_over(form(made(7), fields=FIELDS[:3])) as (app, pilot):
        await pilot.press("ctrl+p", "ctrl+s")
    assert app.answer == request({})


# ---------------------------------------------------------------- YAML in an editor


@pytest.fixture
def edited(monkeypatch, tmp_path):
    """Have the editor make this of what it is given; what it was given each time."""
    monkeypatch.setattr(Over, "suspend", lambda app: nullcontext())
    script, seen = tmp_path / "edit.sh", tmp_path / "seen"
    monkeypatch.setenv("VISUAL", f"sh {script}")

    def edit(sed: str = "", status: int = 0) -> None:
        script.write_text(f"cat $1 > {seen}\n{sed and f'sed -i {sed} $1'}\nexit {status}\n")

    edit.seen = lambda: seen.read_text()  # type: ignore[attr-defined]
    return edit


async def test_what_is_edited_becomes_the_forms(edited) -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        await write(app, pilot, R, "32")
        edited(
            "-e 's/learning_rate: 2e-4/learning_rate: [1e-4, 5e-4]/' -e 's/epochs: 4/epochs: 6\\n  adam_beta1: 0.8/'"
        )
        await pilot.press("ctrl+e")
        await settled(app, pilot)
        assert "  learning_rate: 2e-4\n" in edited.seen() and "  r: 32\n" in edited.seen()
        assert edited.seen().startswith("# Run 7. ") and edited.seen().count("#") == 2
        assert "lr 2e-4 -> 1e-4,5e-4" in flat(app) and "adam_beta1 0.9 -> 0.8" in flat(app)
        await pilot.press("ctrl+s")
    assert app.answer == request({R: 32, EPOCHS: 6.0, BETA: 0.8}, sweep={LR: [1e-4, 5e-4]})


async def test_a_line_that_is_deleted_is_as_the_run_has_it(edited) -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        await write(app, pilot, R, "32")
        edited("'/ r: /d'")
        await pilot.press("ctrl+e")
        await settled(app, pilot)
        assert "No changes yet" in flat(app) and knobs(app)[R].text == "16"


async def test_faults_are_told_and_the_text_is_kept_to_be_mended(edited) -> None:
    async with shown_over(form(made(7)), (80, 30)) as (app, pilot):
        await write(app, pilot, ALPHA, "64")
        edited("-e 's/learning_rate: 2e-4/learning_rate: fast/' -e 's/ r: 16/ rr: 16/'")
        await pilot.press("ctrl+e")
        await settled(app, pilot)
        assert "YAML not applied" in flat(app) and "not 'fast'" in flat(app)
        assert "peft_config.rr is not a known setting; did you mean 'peft_config.r'?" in flat(
            app
        ) and "(2 errors)" in flat(app)
        assert knobs(app)[ALPHA].text == "64"
        await pilot.press("ctrl+s")
        await settled(app, pilot)
        assert app.answer is OPEN and "YAML not applied" in flat(app)
        edited("-e s/fast/3e-4/ -e s/rr:/r:/")
        await pilot.press("ctrl+e")
        await settled(app, pilot)
        assert "learning_rate: fast" in edited.seen() and "YAML" not in flat(app).split("^e")[0]
        await pilot.press("ctrl+s")
    assert app.answer == request({LR: 3e-4, ALPHA: 64})


async def test_a_text_with_faults_that_is_emptied_is_gone(edited) -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        await write(app, pilot, ALPHA, "64")
        edited("'s/learning_rate: 2e-4/learning_rate: [/'")
        await pilot.press("ctrl+e")
        await settled(app, pilot)
        assert "not valid YAML (line" in flat(app)
        edited("d")
        await pilot.press("ctrl+e", "ctrl+s")
    assert app.answer == request({ALPHA: 64})


async def test_what_is_typed_wrong_is_edited_as_it_is_typed(edited) -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        await write(app, pilot, LR, "fast")
        edited("s/fast/3e-4/")
        await pilot.press("ctrl+e")
        await settled(app, pilot)
        assert "learning_rate: fast" in edited.seen() and under(app, LR) == ""
        await pilot.press("ctrl+s")
    assert app.answer == request({LR: 3e-4})


async def test_an_editor_that_fails_changes_nothing(edited, monkeypatch) -> None:
    async with shown_over(form(made(7))) as (app, pilot):
        edited("s/2e-4/9/", status=1)
        await pilot.press("ctrl+e")
        await settled(app, pilot)
        assert "sh exited with code 1; nothing changed" in flat(app)
        monkeypatch.setenv("VISUAL", "no-such-editor")
        await pilot.press("ctrl+e")
        await settled(app, pilot)
        assert "no-such-editor cannot be started: No such file or directory" in flat(app)
        monkeypatch.setenv("VISUAL", "")
        monkeypatch.setenv("EDITOR", "")
        monkeypatch.setenv("PATH", "/nowhere")
        await pilot.press("ctrl+e")
        await settled(app, pilot)
        assert "No editor found; set $EDITOR" in flat(app)
        await pilot.press("ctrl+s")
    assert app.answer == request({})


async def test_a_terminal_that_cannot_be_lent(monkeypatch) -> None:
    monkeypatch.setenv("VISUAL", "true")
    async with shown_over(form(made(7))) as (app, pilot):
        await pilot.press("ctrl+e")
        await settled(app, pilot)
        assert "This terminal can't run an editor" in flat(app)


async def test_secrets_are_not_shown_and_stay(edited) -> None:
    parent = made(7)
    parent.config = changed(parent.config, {"model_kwargs.token": "hf_abcdefgh1234"})
    async with shown_over(form(parent)) as (app, pilot):
        edited("s/2e-4/1e-4/")
        await pilot.press("ctrl+e")
        await settled(app, pilot)
        assert HIDDEN in edited.seen() and "hf_abc" not in edited.seen()
        await pilot.press("ctrl+s")
    assert app.answer == request({LR: 1e-4})
