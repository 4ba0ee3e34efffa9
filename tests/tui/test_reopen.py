"""Ops that are given as the experiment ends, or after it has ended: another scheduler is started for them."""

from __future__ import annotations

import pytest
from fakes import FIELDS, FakeLaunch, FakeViewer, made, snapshot

from rftui.errors import UserError
from rftui.messages import Reply, Update


class Next:
    """The schedulers that are started; the first one serves when its test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.launch, self.viewer = FakeLaunch(), FakeViewer()

    def __call__(self, experiment) -> FakeLaunch:
        self.asked.append(experiment.name)
        return self.launch

    def serves(self, **how) -> None:
        self.viewer.give(snapshot([made(1, "stopped"), made(2, "done")], **how))
        self.launch.viewer = self.viewer


@pytest.fixture
def again() -> Next:
    return Next()


def ended(**how):
    return snapshot([made(1, "stopped"), made(2, "done")], state="done", **how)


async def test_an_op_that_is_refused_because_everything_ends_is_asked_of_the_next_scheduler(show, again):
    async with show(ended(), reopen=again) as shown:
        await shown.press("r")
        (command,) = shown.sent
        shown.viewer.give(Reply(command.id, False, "the experiment is just ending", ending=True))
        await shown.until(lambda: "reopening it for this" in shown.message())
        assert "resuming" in shown.row(1)
        shown.viewer.lose()
        await shown.until(lambda: again.asked == ["tinychat-sft"])
        again.serves()
        await shown.until(lambda: again.viewer.sent)
        assert again.viewer.sent == [command] and "resuming" in shown.row(1)
        again.viewer.reply(True, "run 1 goes on from step 100")
        await shown.until(lambda: "goes on from step 100" in shown.message())
        again.viewer.give(Update(11, runs=[made(1, "running", step=101)]))
        await shown.until(lambda: "resuming" not in shown.row(1))


async def test_an_op_that_nobody_answered_is_asked_of_the_next_scheduler(show, again):
    async with show(ended(), reopen=again) as shown:
        await shown.press("r")
        shown.viewer.lose()
        await shown.until(lambda: again.asked)
        again.serves()
        await shown.until(lambda: again.viewer.sent == shown.sent)


async def test_keys_work_when_the_experiment_has_ended(show, again):
    async with show(ended(), reopen=again) as shown:
        shown.viewer.lose()
        await shown.until(lambda: "Finished. Any action reopens it; q quits" in shown.message())
        assert not again.asked
        await shown.press("r")
        await shown.until(lambda: again.asked)
        await shown.press("j", "c", "end", "ctrl+u", *"5e-4", "ctrl+s")
        again.serves(schema={})
        await shown.until(lambda: [command.op for command in again.viewer.sent] == ["resume"])
        again.viewer.give(Update(11, schema={"SFT": FIELDS}))
        await shown.until(lambda: [command.op for command in again.viewer.sent] == ["resume", "clone"])
        assert again.asked == ["tinychat-sft"]


async def test_nothing_is_started_where_more_than_the_op_would_train(show, again):
    """The experiment was interrupted, by Ctrl-C or another viewer: a new scheduler would take all of it up."""
    async with show(snapshot([made(1, "stopped"), made(2, "waiting")], state="interrupted"), reopen=again) as shown:
        await shown.press("r")
        assert "resuming" in shown.row(1)
        shown.viewer.lose()
        await shown.until(lambda: "`rftui open` resumes" in shown.message())
        assert "stopped" in shown.row(1)
        await shown.press("r")
        assert "Can't resume: the scheduler has ended" in shown.message()
    assert not again.asked


async def test_a_scheduler_that_does_not_come_up_is_told(show, again):
    async with show(ended(), reopen=again) as shown:
        shown.viewer.lose()
        await shown.until(lambda: "Finished." in shown.message())
        await shown.press("r")
        again.launch.lines, again.launch.exit_status = ["rftui: the disk is full"], 1
        await shown.until(lambda: "reopen the experiment: train.py: rftui: the disk is full" in shown.message())
        assert "stopped" in shown.row(1)
        await shown.press("q")
    assert shown.app.return_value == 0


async def test_a_home_that_cannot_be_written_is_told(show):
    def refuse(experiment):
        raise UserError("cannot write to /there")

    async with show(ended(), reopen=refuse) as shown:
        shown.viewer.lose()
        await shown.until(lambda: "Finished." in shown.message())
        await shown.press("r")
        await shown.until(lambda: "reopen the experiment: cannot write to /there" in shown.message())


async def test_what_was_not_done_is_said_to_who_leaves(show, again):
    async with show(ended(), reopen=again) as shown:
        shown.viewer.lose()
        await shown.until(lambda: "Finished." in shown.message())
        await shown.press("r")
        await shown.until(lambda: again.asked)
        await shown.press("q")
    assert shown.app.return_value == 0
    assert shown.app.quitting.last_words(again.launch)[-1] == "Not done: resume run 1 sft-lr0.0002-r16"


async def test_a_readonly_viewer_starts_nothing(show, again):
    async with show(ended(), reopen=again, readonly=True) as shown:
        shown.viewer.lose()
        await shown.until(lambda: shown.message().endswith("Finished. q quits"))
        await shown.press("r")
    assert not again.asked


async def test_schedulers_that_end_again_and_again_are_no_loop(show, again):
    async with show(ended(), reopen=again) as shown:
        await shown.press("r")
        shown.viewer.lose()
        await shown.until(lambda: again.asked)
        again.serves(state="done")
        await shown.until(lambda: again.viewer.sent == shown.sent)
        again.viewer.lose()
        await shown.until(lambda: "Finished. Any action reopens it" in shown.message())
        assert len(again.asked) == 1 and "stopped" in shown.row(1)


async def test_nothing_is_started_for_what_has_become_impossible(show, again):
    async with show(ended(), reopen=again) as shown:
        await shown.press("r")
        shown.viewer.give(Update(11, runs=[made(1, "done")]))
        shown.viewer.lose()
        await shown.until(lambda: "Finished." in shown.message())
        assert not again.asked and "done" in shown.row(1)


async def test_a_scheduler_that_someone_else_has_just_started_is_attached_to(show, again, tmp_path, monkeypatch):
    """Only one process can hold an experiment: ours ends at once, and the other one serves."""
    first = ended()
    first.experiment.path = str(tmp_path)
    held = []
    again.launch.exit_status = 1

    def start(experiment):
        held.append(experiment.lock())
        return again(experiment)

    monkeypatch.setattr("rftui.session.attach", lambda experiment: FakeLaunch(again.viewer))
    async with show(first, reopen=start) as shown:
        await shown.press("r")
        shown.viewer.lose()
        again.viewer.give(snapshot([made(1, "stopped"), made(2, "done")]))
        await shown.until(lambda: again.viewer.sent == shown.sent)
    held[0].close()
