"""A home that was moved: everything is found where it lies now, and nothing is touched where it lay before."""

from pathlib import Path

from rftui.paths import ExperimentDir
from rftui.runs import DONE, STOPPED
from rftui.views import view


def paths(experiment: ExperimentDir) -> set[Path]:
    runs = view(experiment).runs
    return {Path(path) for run in runs for path in (run.checkpoint, run.final) if path}


def test_a_moved_home_is_resumed_and_cloned_where_it_lies_now(play, world, eyes, experiment, tmp_path_factory):
    hold = world.hold(2, 5)
    first = play(viewer=True)
    hold.wait()
    seen = eyes()
    assert seen.ask("stop", 2).ok
    hold.go.set()
    seen.state(2, STOPPED)
    for run in (1, 3):
        seen.state(run, DONE)
    seen.finish()
    assert first.end() == 0

    old, new = experiment.home, tmp_path_factory.mktemp("elsewhere") / "home"
    old.rename(new)
    old.write_text("a file where the home was: nothing can be read or written below it")
    moved = ExperimentDir(new / experiment.name)
    assert len(paths(moved)) == 5 and all(path.is_dir() for path in paths(moved))

    again = play(moved, fit=None, viewer=True)
    later = eyes(moved)
    later.until(lambda: later.schema)
    answer = later.ask("clone", 2, {"training_args.learning_rate": 1e-3}, warm=True)
    assert answer.ok, answer.text
    assert later.ask("resume", 2).ok
    for run in (2, answer.run):
        later.state(run, DONE)
    later.finish()
    assert again.end() == 0
    assert {path.is_dir() and path.is_relative_to(new) for path in paths(moved)} == {True}
