"""Suggestions: found by the scheduler, by all points, and the same on the screen, in the shell and in Python."""

import json
import random

import pytest
from test_races import Rig

import rftui
from rftui.cli import main
from rftui.messages import Begun, Failed, Finished, Logged, Saved, Stepped, TurnEnded, Update
from rftui.runs import Suggestion
from rftui.scheduler import loop
from rftui.tui.board import Board

RATE = "training_args.learning_rate"


class Seen:
    """The scheduler of three runs, turned by hand, and what a viewer and the shell see of it."""

    def __init__(self, experiment, capsys):
        self.rig = Rig(experiment)
        self.experiment, self._capsys = experiment, capsys
        self.rig.scheduler.server.broadcast = self._heard
        self.board = Board()
        self.rig.ready()
        self.registry = self.rig.registry

    def _heard(self, update: Update):
        self.board.apply(update)

    def chunk(self, run, chunk, points, *, of=8, total=8000, metric="loss"):
        """The run trains a chunk that logs these points."""
        last = points[-1][0]
        self.rig.says(Begun(run, points[0][0] - 1, total, chunk - 1, of, 0.0))
        self.rig.says(*(Logged(run, step, {metric: value}) for step, value in points))
        self.rig.says(Stepped(run, last, chunk, chunk / of), TurnEnded(run, last, chunk, chunk / of, 1.0))
        self.registry.flush()

    def everywhere(self, run):
        """The run's suggestion; it is one and the same wherever it is read."""
        found = self.registry.runs[run].suggestion
        with rftui.connect("exp", self.experiment.home) as exp:
            assert exp.suggestion(run) == found
        assert self.board.runs[run].suggestion == found
        kept = json.loads(self.shell("show", "exp", str(run), "--json"))["suggestion"]
        assert kept == (found and vars(found))
        assert (f"suggested: {found.reason}" if found else "suggested") in self.shell("show", "exp") or not found
        return found

    def shell(self, *arguments):
        assert main([*arguments, "--home", str(self.experiment.home)]) == 0
        return self._capsys.readouterr().out

    def told(self):
        return [text for text in self.rig.told() if "--suggested" in text]


@pytest.fixture
def seen(experiment, monkeypatch, capsys):
    monkeypatch.setattr(loop, "start_tracking", lambda experiment: None)
    made = Seen(experiment, capsys)
    yield made
    if not made.rig.closed:
        made.rig.close()


def noisy(last=6000):
    """Level and noisy, but for its last 700 steps: by eight windows it is not clear yet that it goes wrong. Halved
    again and again, so that nearly all its points are of those steps, it seems to rise from its very first step."""
    chance = random.Random(0)
    return [(step, 1.5 + (step > 5300) + chance.gauss(0, 0.2)) for step in range(1, last + 1)]


def rising(first, last):
    chance = random.Random(1)
    return [(step, 1.0 + abs(step - 100) / 100 + chance.gauss(0, 0.01)) for step in range(first, last + 1)]


def test_of_six_thousand_noisy_points_that_give_nothing_nothing_is_suggested_anywhere(seen):
    points = noisy()
    for chunk in range(1, 7):
        seen.chunk(1, chunk, points[1000 * (chunk - 1) : 1000 * chunk])
        assert seen.everywhere(1) is None
    assert seen.told() == [] and len(seen.board.curves.points(1, "loss")) < 300


def test_what_goes_wrong_is_suggested_everywhere_and_told_once(seen):
    seen.chunk(1, 1, rising(1, 100), total=1000)
    assert seen.everywhere(1) is None
    seen.chunk(1, 2, rising(101, 400), total=1000)
    found = seen.everywhere(1)
    assert found.changes == {RATE: 3.3e-05} and "rises since about step" in found.reason
    seen.chunk(1, 3, rising(401, 600), total=1000)
    assert seen.everywhere(1).changes == found.changes
    assert len(seen.told()) == 1 and seen.told()[0].startswith("run 1: its loss rises")


def test_it_goes_with_a_clone_that_tries_it_and_with_the_run(seen):
    seen.chunk(1, 1, rising(1, 400), total=1000)
    found = seen.everywhere(1)
    seen.rig.ask("clone", 1, {RATE: 9e-5})
    assert seen.everywhere(1) == found, "that is something else"
    seen.rig.ask("clone", 1, found.changes)
    assert seen.everywhere(1) is None
    seen.chunk(2, 1, rising(1, 400), total=1000)
    assert seen.everywhere(2)
    seen.rig.ask("delete", 2)
    assert seen.registry.runs[2].suggestion is None
    seen.rig.ask("undo", 2)
    assert seen.everywhere(2).changes == found.changes


def test_it_is_found_anew_where_the_run_goes_back(seen):
    seen.chunk(1, 1, rising(1, 400), total=1000)
    assert seen.everywhere(1)
    run = seen.registry.runs[1]
    seen.registry.rewind(run, 90, [])
    seen.registry.flush()
    assert seen.everywhere(1) is None
    seen.registry.rewind(run, 90, [(step, {"loss": value}) for step, value in rising(91, 400)])
    seen.registry.flush()
    assert seen.everywhere(1), "its checkpoint knew more than the store"


def test_a_checkpoint_that_is_gone_is_not_started_from(seen):
    seen.rig.commit(1, 110)
    seen.rig.says(Saved(1, 110, "p"))
    seen.chunk(1, 1, rising(1, 400), total=1000)
    assert seen.everywhere(1).from_step == 110
    for step in (390, 400):
        seen.rig.commit(1, step)
    seen.experiment.run(1).checkpoints.joinpath("step-110").rename(seen.experiment.path / "gone")
    seen.rig.says(Saved(1, 400, "p"))
    seen.registry.flush()
    assert seen.everywhere(1).from_step is None


def test_a_run_that_failed_and_one_that_is_done_get_theirs(seen):
    seen.rig.says(Begun(1, 0, 100, 0, 2, 0.0), Failed(1, "CUDA out of memory", "", 1.0, "memory"))
    seen.rig.says(Begun(1, 0, 100, 0, 2, 0.0), Failed(1, "CUDA out of memory", "", 1.0, "memory"))  # once more
    seen.registry.flush()
    assert seen.everywhere(1).changes["training_args.per_device_train_batch_size"] == 4
    seen.rig.says(Begun(2, 0, 400, 0, 1, 0.0), *(Logged(2, step, {"loss": loss}) for step, loss in rising(1, 400)))
    seen.registry.flush()
    assert seen.everywhere(2) is None, "its chunk has not ended"
    seen.rig.says(Finished(2, 400, "final", "p", 1.0))
    seen.registry.flush()
    assert "rises" in seen.everywhere(2).reason


def test_the_next_scheduler_and_whoever_looks_without_one_have_it_too(seen):
    seen.chunk(1, 1, rising(1, 400), total=1000)
    found = seen.everywhere(1)
    seen.rig.close()
    with rftui.connect("exp", seen.experiment.home) as exp:
        assert not seen.experiment.alive() and exp.suggestion(1) == found == exp.run(1).suggestion
    assert isinstance(found, Suggestion)


def test_completions_that_are_all_cut_off_are_told_by_steps(seen):
    seen.registry.runs[1].algo = "GRPO"
    seen.chunk(1, 1, [(50, 1.0)], total=400, metric="completions/clipped_ratio")
    assert "cut off" in seen.everywhere(1).reason and "cut off" in seen.told()[0]
