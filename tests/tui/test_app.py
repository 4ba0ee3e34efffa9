"""The viewer, driven by keys and by what a scheduler that is not there sends."""

from __future__ import annotations

import os
import signal

import pytest
from fakes import FIELDS, NOW, FakeLaunch, FakeViewer, made, snapshot
from textual.app import App
from textual.widgets import Input, Static

from rftui.formatting import clean
from rftui.messages import Device, Event, Update
from rftui.paths import ExperimentDir
from rftui.tui import app as app_module
from rftui.tui.app import RftuiApp
from rftui.tui.screens.clone import CloneScreen
from rftui.tui.screens.confirm import ConfirmScreen
from rftui.tui.screens.detail import DetailScreen
from rftui.tui.screens.help import HelpScreen
from rftui.tui.screens.quit import QuitScreen
from rftui.tui.widgets.run_table import RunTable

MARKUP = ["lr=[1e-4", "[/b", "[/b]", "[red]x[/]", "a\\[b", "tab\tnew\nline \x1b[2J"]


# ---------------------------------------------------------------- before the script serves


async def test_the_first_frame_comes_before_the_script_serves_and_shows_what_it_writes(show):
    async with show(None) as shown:
        assert "train.py: waiting for the script" in shown.text()
        assert "No output yet" in shown.text()
        shown.launch.lines = ["Loading the data [/b", "Making 8 \x1b[1mconfigs"]
        await shown.until(lambda: "Loading the data [/b" in shown.text())
        assert "Making 8 [1mconfigs" in shown.text().replace("  ", " ")
        await shown.press("s")
        assert "Can't stop: no run selected" in shown.message()
        await shown.press("c")
        assert "Can't clone: no run selected" in shown.message()
        shown.viewer.give(snapshot())
        shown.launch.viewer = shown.viewer
        await shown.until(lambda: "sft-lr0.0002-r16" in shown.text())
        assert "waiting for the script" not in shown.text()


async def test_leaving_before_the_script_serves_asks_and_ends_it(show):
    async with show(None) as shown:
        await shown.press("q")
        assert "Stop train.py and quit?" in shown.text() and "Training has not started yet" in shown.text()
        await shown.press("escape")
        assert shown.app.return_value is None and not shown.app.quitting.ended
        await shown.press("ctrl+c", "y")
    assert shown.app.return_value == 130 and shown.app.quitting.ended
    assert "train.py was stopped before training began" in shown.app.quitting.last_words(shown.launch)[0]


async def test_a_script_that_serves_while_it_is_asked_after_is_not_ended_unseen(show):
    async with show(None) as shown:
        await shown.press("q")
        shown.viewer.give(snapshot())
        shown.launch.viewer = shown.viewer
        await shown.until(lambda: shown.app.board.experiment)
        await shown.press("y")
        assert isinstance(shown.app.screen, QuitScreen) and not shown.app.quitting.ended


async def test_leaving_a_scheduler_that_was_attached_to_asks_nothing(show):
    async with show(None) as shown:
        shown.launch.started = False
        await shown.press("q")
    assert shown.app.return_value == 0 and not shown.app.quitting.ended
    assert "train.py is still running" in shown.app.quitting.last_words(shown.launch)[0]


async def test_a_script_that_dies_before_it_serves_ends_the_viewer_with_its_exit_code(show):
    async with show(None) as shown:
        shown.launch.exit_status = 3
        await shown.until(lambda: shown.app.return_value is not None)
    assert shown.app.return_value == 3


async def test_a_scheduler_that_ends_before_its_first_word_ends_the_viewer(show):
    async with show(None) as shown:
        shown.viewer.lose()
        shown.launch.viewer = shown.viewer
        await shown.until(lambda: shown.viewer.coming.empty(), "the viewer is polled")
        shown.launch.viewer, shown.launch.exit_status = None, 1
        await shown.until(lambda: shown.app.return_value is not None)
    assert shown.app.return_value == 1


def test_a_script_that_was_left_is_ended(monkeypatch, capsys):
    def leave(app):
        app.quitting.ended = True
        app.exit(130)

    monkeypatch.setattr(RftuiApp, "run", lambda self: App.run(self, headless=True))
    monkeypatch.setattr(RftuiApp, "on_mount", leave)
    launch = FakeLaunch()
    assert app_module.run(launch) == 130 and launch.ended
    assert "was stopped before training began" in capsys.readouterr().out


def test_what_is_left_on_the_terminal(monkeypatch, capsys):
    monkeypatch.setattr(RftuiApp, "run", lambda self: App.run(self, headless=True))
    dies = FakeLaunch()
    dies.exit_status, dies.lines = 3, ["the command says why"]
    assert app_module.run(dies) == 3
    assert capsys.readouterr().out == ""

    faulty = FakeViewer()
    error = Event(1, NOW, "no such module \x1b[2J", 1, "error")
    faulty.give(snapshot([made(1, "queued", step=0, name="a")], state="interrupted", events=[error]))
    faulty.lose()
    assert app_module.run(FakeLaunch(faulty)) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "rftui: run 1 a: no such module  [2J\n")

    ended = FakeViewer()
    ended.give(snapshot([made(1, "done", name="[/b é"), made(2, "failed")], state="done"))
    monkeypatch.setattr(RftuiApp, "link_lost", lambda self: self.exit(1))
    ended.lose()
    assert app_module.run(FakeLaunch(ended)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert (
        "[/b é" in lines[0]
        and "done" in lines[0]
        and lines[-1] == "Reopen with: rftui open tinychat-sft --home /nowhere"
    )


async def test_a_sigterm_ends_the_viewer_and_nothing_else(show):
    async with show() as shown:
        os.kill(os.getpid(), signal.SIGTERM)
        await shown.until(lambda: shown.app.return_value is not None)
    assert shown.app.return_value == 130 and shown.sent == [] and shown.viewer.closed


# ---------------------------------------------------------------- stop and resume


async def test_stop_shows_at_once_and_until_the_scheduler_says_so(show):
    async with show() as shown:
        await shown.press("s")
        assert shown.asked() == [("stop", 1)] and shown.sent[0].by == "key"
        assert "stopping" in shown.row(1)
        await shown.give(Update(11, runs=[made(1, step=105)], points=[(1, "loss", 105, 1.0)]))
        assert "stopping" in shown.row(1), "a step that was under way changes nothing"
        shown.viewer.reply(True, "run 1 sft-lr0.0002-r16 stops at its next step")
        await shown.until(lambda: "stops at its next step" in shown.message())
        await shown.give(Update(12, runs=[made(1, "stopped", step=110)]))
        assert "stopped" in shown.row(1) and not shown.app.board.asked


async def test_a_refused_reply_takes_the_optimism_back(show):
    async with show() as shown:
        await shown.press("s")
        assert "stopping" in shown.row(1)
        shown.viewer.reply(False, "Can't stop run 1: [/b it has ended")
        await shown.until(lambda: "[/b it has ended" in shown.message())
        assert "run" in shown.row(1) and "stopping" not in shown.row(1)


async def test_a_double_press_is_harmless(show):
    async with show() as shown:
        await shown.press("s", "s")
        assert shown.asked() == [("stop", 1)]
        assert "Can't stop run 1" in shown.message() and "already stopping" in shown.message()
        await shown.press("d", "d")
        assert len(shown.app.screen_stack) == 2
        await shown.press("escape")
        await shown.press("q", "q")
        assert len(shown.app.screen_stack) == 1 and shown.app.return_value is None


async def test_resume(show):
    async with show() as shown:
        await shown.press("j", "j", "j", "r")
        assert shown.asked() == [("resume", 3)]
        assert "resuming" in shown.row(3)
        await shown.give(Update(11, runs=[made(3, "queued", lr=1e-3, r=64, step=75)]))
        assert "queued" in shown.row(3)


@pytest.mark.parametrize(
    ("run", "key", "reason"),
    [
        (1, "r", "already running"),
        (2, "r", "already running; waiting for its next turn"),
        (3, "s", "already stopped; resume continues it"),
        (4, "s", "already done"),
        (4, "r", "already done; clone it with more epochs instead"),
        (5, "s", "it failed"),
        (6, "r", "not started yet"),
    ],
)
async def test_a_key_that_cannot_be_is_refused_with_its_reason(show, run, key, reason):
    async with show(size=(120, 30)) as shown:
        await shown.press(*"j" * shown.app.board.shown.index(run), key)
        op = {"s": "stop", "r": "resume"}[key]
        assert reason in shown.message() and shown.message().startswith(f"✗ Can't {op} run {run} ")
        assert shown.sent == []


async def test_marked_runs_are_acted_on_together(show):
    async with show(size=(200, 50)) as shown:
        await shown.press("space", "space", "space", "space")
        assert shown.app.board.marked == {1, 7, 2, 3}
        assert "4 marked" in shown.text()
        await shown.press("s")
        assert shown.asked() == [("stop", 1), ("stop", 7), ("stop", 2)]
        assert "run 3" in shown.message() and "already stopped" in shown.message()
        await shown.press("escape")
        assert not shown.app.board.marked and "marked" not in shown.text()


async def test_the_failure_is_told_as_the_cursor_comes_by(show):
    async with show(size=(120, 30)) as shown:
        await shown.press("j", "j", "j", "j", "j")
        assert "Run 5 sft-lr0.01-r16 failed: the loss is nan at step 33" in shown.message()


# ---------------------------------------------------------------- delete


async def test_delete_asks_and_cancel_has_the_focus(show):
    async with show() as shown:
        await shown.press("d")
        assert isinstance(shown.app.screen, ConfirmScreen)
        assert "Delete run 1 sft-lr0.0002-r16?" in shown.text() and "Stops it at the next step" in shown.text()
        await shown.press("enter")
        assert shown.sent == [] and len(shown.app.screen_stack) == 1
        await shown.press("d", "y")
        assert shown.asked() == [("delete", 1)] and "deleting" in shown.row(1)
        await shown.give(Update(11, runs=[made(1, "deleted")]))
        assert "sft-lr0.0002-r16 " not in shown.text().split("2 loss")[0]
        assert shown.app.run_at_cursor and shown.app.run_at_cursor.id == 2, "the cursor finds another run"


async def test_delete_of_marked_runs_names_them_all(show):
    async with show() as shown:
        await shown.press("G", "space", "k", "space", "d")
        assert "5 sft-lr0.01-r16, 6 sft-lr0.0003-r16" in " ".join(shown.text().replace("│", " ").split())
        await shown.press("y")
        assert sorted(shown.asked()) == [("delete", 5), ("delete", 6)]


# ---------------------------------------------------------------- clone


async def test_a_clone_with_another_learning_rate(show):
    async with show() as shown:
        await shown.press("c")
        assert isinstance(shown.app.screen, CloneScreen)
        await shown.press("end", "ctrl+u", *"5e-4")
        assert "lr 2e-4 → 5e-4" in shown.text()
        await shown.press("ctrl+s")
        (command,) = shown.sent
        assert (command.op, command.run, command.warm, command.name) == ("clone", 1, True, None)
        assert command.changes == {"training_args.learning_rate": 5e-4}
        assert "Cloning run" in shown.message() and "run" in shown.row(1)
        shown.viewer.reply(True, "run 8 is cloned from 1")
        await shown.until(lambda: "run 8 is cloned from 1" in shown.message())
        clone = made(8, "waiting", lr=5e-4, parent=1, warm=True, start_step=100)
        await shown.give(Update(11, runs=[clone]))
        assert shown.app.board.shown[:3] == [1, 7, 8] and "└ sft-lr0.0005" in shown.text()


async def test_clone_and_stop_the_parent(show):
    async with show() as shown:
        await shown.press("c", "end", "ctrl+u", *"5e-4", "ctrl+t")
        assert shown.asked() == [("clone", 1)] and shown.sent[0].stop_parent


async def test_a_fault_is_shown_at_once_and_refuses_the_launch(show):
    async with show() as shown:
        await shown.press("c", "end", "ctrl+u", *"fast")
        assert "! must be a number such as" in shown.text() and "(1 error)" in shown.text()
        await shown.press("ctrl+s")
        assert isinstance(shown.app.screen, CloneScreen) and shown.sent == []
        await shown.press("escape")
        assert len(shown.app.screen_stack) == 1 and shown.sent == []


async def test_a_sweep_is_one_command(show):
    async with show() as shown:
        await shown.press("c", *"1e-4,5e-4", "enter", *"32", "ctrl+s")
        (command,) = shown.sent
        assert command.sweep == {"training_args.learning_rate": [1e-4, 5e-4]}
        assert command.changes == {"peft_config.r": 32} and command.from_step is None and not command.continue_schedule


async def test_a_clone_from_a_checkpoint_with_the_parents_schedule(show):
    async with show(snapshot([made(1, checkpoints=[50, 100])])) as shown:
        await shown.press("c")
        shown.app.screen.query_one("#start").focus()
        await shown.press("right", "down", "right", "ctrl+s")
        (command,) = shown.sent
        assert (command.warm, command.from_step, command.continue_schedule) == (True, 50, True)


async def test_marked_runs_are_cloned_together(show):
    async with show(size=(100, 40)) as shown:
        shown.app.board.marked = {1, 2, 6}
        await shown.press("c")
        assert "Clone-Modify run 1 sft-lr0.0002-r16 and 2 more marked runs" in shown.text()
        await shown.press("down", *"32", "ctrl+t")
        assert shown.asked() == [("clone", 1), ("clone", 2)], "6 has no weights to start from"
        assert all(command.changes == {"peft_config.r": 32} and command.stop_parent for command in shown.sent)


async def test_a_refused_clone_says_why(show):
    async with show() as shown:
        await shown.press("c", "end", "ctrl+u", *"5e-4", "ctrl+s")
        shown.viewer.reply(False, "peft_config.r may grow but not shrink")
        await shown.until(lambda: "may grow but not shrink" in shown.message())
        assert "✗" in shown.message()


async def test_no_clone_before_the_knobs_are_known(show):
    async with show(snapshot(schema={})) as shown:
        await shown.press("c")
        assert "Can't clone yet: the worker is still loading" in shown.message() and len(shown.app.screen_stack) == 1
        await shown.give(Update(11, schema={"SFT": FIELDS}))
        await shown.press("c")
        assert isinstance(shown.app.screen, CloneScreen)


# ---------------------------------------------------------------- suggestions and promotion

DIVERGED = "diverged at step 33: its loss is nan; clone it with a lower learning rate"


async def test_a_suggestion_is_marked_told_and_opened(show):
    runs = [
        made(1),
        made(2, "failed", lr=1e-2, step=33, error=DIVERGED, failure="diverged", checkpoint="c", checkpoints=[25]),
    ]
    async with show(snapshot(runs), size=(100, 30)) as shown:
        assert "✗ failed !" in shown.row(2) and "!" not in shown.row(1)
        await shown.press("exclamation_mark")
        assert "No suggestion for run 1" in shown.message()
        await shown.press("j")
        assert shown.message() == "✗ Run 2 failed; ! it diverged: a third of the learning rate (0.0033)"
        await shown.press("exclamation_mark")
        await shown.until(lambda: "Suggested: it diverged" in shown.text() and "lr 0.01 → 0.0033" in shown.text())
        await shown.press("ctrl+s")
        assert shown.sent[0].changes == {"training_args.learning_rate": 0.0033} and shown.sent[0].warm
        runs[1].suggestion = None
        await shown.give(Update(11, runs=[runs[1], made(3, lr=0.0033, parent=2, warm=True)]))
        assert "!" not in shown.row(2), "it is being tried"


async def test_a_run_that_goes_wrong_is_told_as_the_cursor_comes_by(show):
    rising = [(step, 1.0 + abs(step - 200) / 100) for step in range(5, 401, 5)]
    curves = {2: {"loss": rising}}
    async with show(snapshot([made(1), made(2, step=400)], curves=curves), size=(120, 30)) as shown:
        await shown.press("j")
        assert shown.message().startswith("! Run 2 sft-lr0.0002-r16: its loss rises since about step 1")


@pytest.mark.parametrize("key", ["exclamation_mark", "p", "u", "c"])
async def test_keys_without_a_run_under_the_cursor(show, key):
    async with show(snapshot([])) as shown:
        await shown.press(key)
        assert ("Can't" in shown.message() or key == "u") and len(shown.app.screen_stack) == 1


async def test_the_best_run_is_promoted(show):
    async with show() as shown:
        await shown.press("p", *"bigchat", "enter")
        (command,) = shown.sent
        assert (command.op, command.run, command.changes) == ("clone", 4, {"model_name": "bigchat"})
        assert not command.warm and len(shown.app.screen_stack) == 1


async def test_the_marked_runs_are_promoted(show):
    async with show() as shown:
        await shown.press("space", "space", "p", *"a;b", "enter")
        assert shown.asked() == [("clone", 1), ("clone", 7)]
        assert all(command.sweep == {"model_name": ["a", "b"]} for command in shown.sent)


# ---------------------------------------------------------------- undo


async def test_what_was_deleted_last_comes_back(show):
    async with show() as shown:
        await shown.press("u")
        assert "Nothing to undo" in shown.message()
        await shown.press("j", "d", "y")
        await shown.give(Update(11, runs=[made(7, "deleted", parent=1, before="stopped")]))
        assert shown.app.run_at_cursor.id == 2, "the cursor is where it was"
        await shown.press("u")
        assert shown.asked() == [("delete", 7), ("undo", 7)] and "◌ restoring" in shown.row(7)
        assert shown.app.run_at_cursor.id == 7
        await shown.press("u")
        assert "Run 7 is already being restored" in shown.message() and len(shown.sent) == 2
        await shown.give(Update(12, runs=[made(7, "stopped", parent=1)]))
        assert "‖ stopped" in shown.row(7) and not shown.app.board.asked
        await shown.press("u")
        assert "Nothing to undo" in shown.message()


async def test_an_undo_right_after_the_delete(show):
    async with show() as shown:
        await shown.press("d", "y", "u")
        assert shown.asked() == [("delete", 1), ("undo", 1)] and "restoring" in shown.row(1)
        await shown.give(Update(11, runs=[made(1, "deleted", before="stopped")]))
        assert "restoring" in shown.row(1)
        await shown.give(Update(12, runs=[made(1, "stopped")]))
        assert "‖ stopped" in shown.row(1)


async def test_runs_that_were_deleted_together_come_back_together(show):
    async with show(size=(80, 30)) as shown:
        await shown.press("G", "space", "k", "space", "d", "y", "escape")
        gone = [made(5, "deleted", before="failed"), made(6, "deleted", before="stopped")]
        await shown.give(Update(11, runs=gone))
        await shown.press("g", "d", "y")
        await shown.give(Update(12, runs=[made(1, "deleted", before="stopped")]))
        await shown.press("u")
        assert shown.asked()[-1] == ("undo", 1)
        await shown.give(Update(13, runs=[made(1, "stopped")]))
        await shown.press("u")
        assert sorted(shown.asked()[-2:]) == [("undo", 5), ("undo", 6)]


async def test_an_undo_that_is_refused(show):
    async with show(snapshot([made(1), made(2, "deleted")])) as shown:
        await shown.press("u")
        assert "its files are gone: the scheduler that deleted it has ended" in shown.message()
        await shown.give(Update(11, runs=[made(2, "deleted", before="done")]))
        await shown.press("u")
        assert "restoring" in shown.row(2)
        shown.viewer.reply(False, "Can't undo run 2: its files are gone")
        await shown.until(lambda: "its files are gone" in shown.message())
        assert shown.app.board.shown == [1] and not shown.app.board.asked


# ---------------------------------------------------------------- the view


async def test_the_cursor_stays_on_its_run(show):
    async with show() as shown:
        await shown.press("j", "j", "o")
        assert shown.app.run_at_cursor.id == 2 and ">   2" in shown.row(2)
        await shown.press("g")
        assert shown.app.run_at_cursor.id == 4
        await shown.press("G", "j", "ctrl+d")
        assert shown.app.run_at_cursor.id == shown.app.board.shown[-1]
        await shown.press("ctrl+u", "ctrl+u", "k")
        assert shown.app.run_at_cursor.id == 4


async def test_the_filter(show):
    async with show() as shown:
        await shown.press("slash", *"stopped")
        assert shown.app.board.shown == [3] and "filter stopped" in shown.text() and "1 of 7" in shown.text()
        await shown.press("enter")
        assert not shown.app.query_one("#filter").display
        await shown.press("r")
        assert shown.asked() == [("resume", 3)]
        await shown.press("escape")
        assert len(shown.app.board.shown) == 7 and shown.app.query_one("#filter", Input).value == ""


async def test_sort_metric_and_panels(show):
    async with show(size=(120, 34)) as shown:
        await shown.press("o")
        assert "by loss" in shown.text() and shown.app.board.shown[0] == 4
        await shown.press("o", "m")
        assert "by eval_loss" in shown.text()
        await shown.until(lambda: "2 eval_loss" in shown.text())
        await shown.press("M")
        await shown.until(lambda: "2 loss" in shown.text())
        await shown.press("3")
        assert "3 Events" not in shown.text() and "2 loss" in shown.text()
        await shown.press("2")
        assert "2 loss" not in shown.text()
        await shown.press("2", "3")
        assert "3 Events" in shown.text() and "2 loss" in shown.text()


async def test_the_help_says_why_a_key_is_refused(show):
    async with show(size=(120, 40)) as shown:
        await shown.press("question_mark")
        assert isinstance(shown.app.screen, HelpScreen)
        assert "Resume a stopped run" in shown.text() and "not now: already running" in shown.text()
        await shown.press("q")
        assert len(shown.app.screen_stack) == 1


async def test_the_detail_is_kept_up_to_date_while_it_is_open(show, tmp_path):
    first = snapshot()
    first.experiment.path = str(tmp_path)
    async with show(first, size=(120, 50)) as shown:
        await shown.press("enter")
        assert isinstance(shown.app.screen, DetailScreen)
        assert "step 100/400" in shown.text() and "No output yet" in shown.text()
        log = ExperimentDir(tmp_path).run(1).log
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("a warning [/b\n")
        await shown.give(Update(11, runs=[made(1, step=105)], points=[(1, "loss", 105, 1.0)]))
        assert "step 105/400" in shown.text() and "a warning [/b" in shown.text()
        await shown.give(Update(12, runs=[made(2, "stopped")]))
        await shown.give(Update(13, runs=[made(1, "failed", error="CUDA [/b] out of memory")]))
        assert "error: CUDA [/b] out of memory" in shown.text()
        await shown.press("escape")
        assert "✗ failed" in shown.row(1)


# ---------------------------------------------------------------- leaving


async def test_quit_asks_while_runs_train_and_escape_stays(show):
    async with show() as shown:
        await shown.press("q")
        assert isinstance(shown.app.screen, QuitScreen) and "rftui open tinychat-sft" in shown.text()
        await shown.press("escape")
        assert len(shown.app.screen_stack) == 1 and shown.sent == []


async def test_leave_them_training(show):
    async with show() as shown:
        await shown.press("q", "l")
    assert shown.app.return_value == 0 and shown.sent == [] and shown.viewer.closed


async def test_stop_them_and_quit(show):
    async with show() as shown:
        await shown.press("q", "s")
        assert shown.asked() == [("interrupt", 0)] and "q quits now" in shown.message()
        assert shown.app.return_value is None
        shown.viewer.lose()
        await shown.until(lambda: shown.app.return_value is not None)
    assert shown.app.return_value == 130


async def test_quit_does_not_wait_when_pressed_again(show):
    async with show() as shown:
        await shown.press("q", "s", "q")
    assert shown.app.return_value == 130
    said = shown.app.quitting.last_words(shown.launch)[-1]
    assert said.startswith("Still closing: waiting for the step of run 1 on cpu") and "rftui ls shows" in said
    shown.launch.exit_status = 130
    assert not any("Still closing" in line for line in shown.app.quitting.last_words(shown.launch))


async def test_a_worker_that_hangs_is_not_shown_as_busy(show):
    async with show() as shown:
        await shown.give(Update(11, devices=[Device("cpu", "ready", run=1, load=1.0, silent=True)]))
        await shown.until(lambda: "cpu run 1 not responding" in shown.text())
        assert "100%" not in shown.text()
        await shown.give(Update(12, devices=[Device("cpu", "ready", run=1, load=1.0)]))
        await shown.until(lambda: "100%" in shown.text() and "not responding" not in shown.text())


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("failed", 1)])
async def test_quit_ends_a_scheduler_that_has_nothing_to_do(show, state, code):
    async with show(snapshot([made(1, state)], state="idle")) as shown:
        await shown.press("q")
        assert shown.asked() == [("finish", 0)]
        shown.viewer.lose()
        await shown.until(lambda: shown.app.return_value is not None)
    assert shown.app.return_value == code


async def test_quit_asks_while_deleted_runs_could_still_be_restored(show):
    runs = [made(1, "done"), made(2, "deleted", before="stopped", name="gone [/b"), made(3, "deleted")]
    async with show(snapshot(runs, state="idle")) as shown:
        await shown.press("q")
        assert "Quit and delete run 2 for good?" in shown.text() and "2  gone [/b, step 100" in shown.text()
        await shown.press("escape")
        assert shown.sent == [] and shown.app.return_value is None
        await shown.press("q", "u")
        assert shown.asked() == [("undo", 2)] and shown.app.return_value is None
        await shown.give(Update(11, runs=[made(2, "stopped")]))
        await shown.press("q")
        assert shown.asked()[-1] == ("finish", 0), "nothing is lost any more"


async def test_quit_right_after_a_delete_asks_too(show):
    async with show(snapshot([made(1, "done"), made(2, "done")], state="idle")) as shown:
        await shown.press("space", "space", "d", "y", "q")
        assert shown.asked() == [("delete", 1), ("delete", 2)] and "delete 2 runs for good?" in shown.text()
        await shown.press("y")
        assert shown.asked()[-1] == ("finish", 0) and "Closing... q quits now" in shown.message()
        shown.viewer.lose()
        await shown.until(lambda: shown.app.return_value is not None)
    assert shown.app.return_value == 0


async def test_quit_names_what_a_pause_would_lose(show):
    full = made(1, "waiting", error="paused: the disk is full")
    async with show(snapshot([full, made(2, "deleted", before="done")])) as shown:
        await shown.press("q")
        text = " ".join(shown.text().replace("│", " ").split())
        assert "Loses the steps since the last checkpoint of run 1: the disk is full" in text
        assert "Deletes run 2 for good; u restores until then" in text


async def test_a_lost_link_keeps_the_table_and_says_so(show):
    async with show() as shown:
        shown.viewer.lose()
        await shown.until(lambda: "Scheduler ended" in shown.message())
        assert "sft-lr0.0002-r16" in shown.text()
        for key in "srcdup":
            await shown.press(key)
            assert shown.message().endswith(": the scheduler has ended")
        assert len(shown.app.screen_stack) == 1
        await shown.press("q")
    assert shown.app.return_value == 1, "a run has failed"


async def test_an_op_that_finds_the_link_lost(show):
    async with show() as shown:
        shown.viewer.lost = True
        await shown.press("s")
        await shown.until(lambda: "Scheduler ended" in shown.message() and "stopping" not in shown.row(1))


# ---------------------------------------------------------------- --readonly, --ascii


async def test_a_readonly_viewer_changes_nothing(show):
    async with show(readonly=True) as shown:
        for key in "srcdup":
            await shown.press(key)
            assert "opened with --readonly" in shown.message()
        await shown.press("space", "enter")
        assert isinstance(shown.app.screen, DetailScreen)
        await shown.press("escape", "q")
    assert shown.sent == [] and shown.app.return_value == 0


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (40, 10), (20, 5)])
async def test_ascii_is_all_ascii(show, size):
    runs = [made(n, name=f"rün {n} 日本") for n in range(1, 60)]
    runs += [made(60, "done", parent=3, error="é")]
    async with show(snapshot(runs), size=size, ascii=True) as shown:
        shown.app.view.draw()
        for key in (
            "j",
            "s",
            "space",
            "r",
            "o",
            "m",
            "slash",
            "escape",
            "d",
            "escape",
            "c",
            "escape",
            "question_mark",
            "escape",
            "p",
            "escape",
            "u",
        ):
            await shown.press(key)
            assert shown.text().isascii(), shown.text()
        await shown.press("escape", "enter")
        assert shown.text().isascii()


# ---------------------------------------------------------------- what users name things


@pytest.mark.parametrize("name", MARKUP)
async def test_no_name_and_no_error_is_markup(show, name):
    runs = [made(1, name=name), made(2, "failed", name=name, error=f"ValueError: {name}")]
    runs[0].knobs["training_args.note"] = name
    events = [Event(1, NOW, f"run 1 {name} began"), Event(2, NOW, name, level="error")]
    plain = " ".join(clean(name).split())
    async with show(snapshot(runs, events=events), size=(140, 50)) as shown:
        shown.app.view.draw()
        await shown.pilot.pause()

        def seen(text: str) -> bool:
            return text in " ".join(shown.text().split())

        assert seen(f"1 {plain}") and seen(f"run 1 {plain} began")
        assert "\x1b" not in shown.text()
        await shown.press("j")
        assert f"failed: ValueError: {plain}" in " ".join(shown.message().split())
        for key, what in (("d", f"Delete run 2 {plain}?"), ("enter", f"Run 2 {plain}"), ("c", "Clone-Modify run 2")):
            await shown.press(key)
            assert seen(what) and "\x1b" not in shown.text()
            await shown.press("escape")
        await shown.press("k", "s")
        assert shown.message() == "✔ Stopping run 1..."
        await shown.press("slash", *"[/b\\[")
        assert "filter [/b\\[" in shown.text() and shown.app.board.shown == []
        await shown.press("s", "enter", "s", "enter", "space", "m", "d", "c")
        assert len(shown.app.screen_stack) == 1


async def test_one_curve_of_many_says_how_to_see_more(show):
    async with show(snapshot([made(n) for n in range(1, 12)]), size=(120, 40)) as shown:
        shown.app.view.draw()
        await shown.until(lambda: "2 loss  (mark runs to compare them)" in shown.text())
        await shown.press("space", "space")
        shown.app.view.draw()
        await shown.until(lambda: "2 loss ─" in shown.text())


async def test_a_metric_may_be_called_anything(show):
    curves = {1: {"[/b": [(1, 1.0), (2, 2.0)]}}
    async with show(snapshot([made(1)], curves=curves), size=(120, 30)) as shown:
        await shown.press("m")
        await shown.until(lambda: "2 [/b" in shown.text())


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (40, 10), (20, 5), (3, 2), (300, 8), (30, 60)])
async def test_no_size_is_too_small_or_too_large(show, size):
    async with show(size=size) as shown:
        for key in (
            "j",
            "o",
            "m",
            "slash",
            *["escape", "d", "escape", "c", "ctrl+p", "ctrl+e", "escape", "enter", "escape"],
            *["p", "escape", "space", "space", "c", "escape", "p", "escape", "escape", "u", "q", "escape"],
        ):
            await shown.press(key)
        shown.app.view.draw()
        assert len(shown.app.screen_stack) == 1


async def test_what_the_smallest_screens_show(show):
    async with show(size=(40, 10)) as shown:
        text = shown.text()
        assert "sft-lr" in text and "▶ run" in text and "s Stop" in text and "2 loss" not in text
        await shown.pilot.resize_terminal(20, 5)
        await shown.pilot.pause()
        assert "Needs 40x10" in shown.text()
        await shown.pilot.resize_terminal(200, 50)
        await shown.pilot.pause()
        shown.app.view.draw()
        await shown.until(lambda: "2 loss" in shown.text() and "STEP" in shown.text())


async def test_all_rows_can_be_reached_on_a_small_screen(show):
    async with show(snapshot([made(n) for n in range(1, 201)]), size=(80, 24)) as shown:
        await shown.press("G")
        assert "> 200" in shown.text()
        await shown.press("g")
        assert ">   1" in shown.text()


# ---------------------------------------------------------------- cost


async def test_an_error_of_a_megabyte_is_cut_wherever_it_is_shown(show, monkeypatch):
    """By the characters that are laid out, on the way onto that run, into its page, and in the events."""
    error = "CUDA error " + "x" * 2**20 + " at the end"
    events = [Event(1, NOW, f"run 2 failed: {error}", 2, "error")]
    async with show(snapshot([made(1), made(2, "failed", error=error)], events=events), size=(200, 50)) as shown:
        assert "x" * 40 in shown.text()
        given = []
        update = Static.update
        monkeypatch.setattr(
            Static, "update", lambda it, text="", **how: given.append(len(text)) or update(it, text, **how)
        )
        await shown.press("j")
        assert "Run 2" in shown.message() and "failed" in shown.message()
        await shown.press("enter")
        assert "CUDA error" in shown.text() and "at the end" in shown.text() and "characters ...]" in shown.text()
        await shown.press("escape")
        await shown.give(Update(11, events=[Event(2, NOW, f"again: {error}", 2, "error")]))
        assert given and max(given) < 10_000 and sum(given) < 20_000


async def test_what_one_run_logs_redraws_one_row(show, monkeypatch):
    async with show(snapshot([made(n) for n in range(1, 201)]), size=(200, 50)) as shown:
        rows, lines = [], []
        draw, render = RunTable._draw_row, RunTable.render_line
        monkeypatch.setattr(RunTable, "_draw_row", lambda table, run: rows.append(run.id) or draw(table, run))
        monkeypatch.setattr(RunTable, "render_line", lambda table, y: lines.append(y) or render(table, y))
        for step in range(105, 125):
            await shown.give(Update(step, runs=[made(5, step=step)], points=[(5, "loss", step, 1.0)]))
        assert set(rows) == {5} and len(rows) <= 20
        assert set(lines) == {5} and len(lines) <= 20
        rows.clear()
        await shown.give(Update(130, runs=[made(150, step=step)], points=[(150, "loss", step, 1.0)]))
        assert rows == [], "a row that is out of sight costs nothing"
