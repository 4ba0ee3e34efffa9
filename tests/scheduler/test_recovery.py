"""A scheduler that takes up what a dead one left, whatever that was just doing: each state that can be on disk."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from fake_worker import write_checkpoint, write_final

from rftui.checkpoints import link_checkpoint
from rftui.runs import DELETED, DONE, FAILED, QUEUED, RUNNING, STOPPED, STOPPING, WAITING
from rftui.store import Store


class Left:
    """Run 1 as a scheduler left it: a row, points, files. A run has 6 steps; runs 2 and 3 are done."""

    def __init__(self, experiment):
        self.experiment, self.folder = experiment, experiment.run(1)
        self.store = Store(experiment.db)
        self.row(2, state=DONE, step=6)
        self.row(3, state=DONE, step=6)

    def row(self, number=1, **fields):
        run = self.store.run(number)
        for name, value in fields.items():
            setattr(run, name, value)
        self.store.save_run(run)

    def at(self, step, state=RUNNING, **fields):
        """The database has the run at a step, with a point for each step up to it."""
        self.row(state=state, step=step, chunk=step // 2, chunks=3, total_steps=6, device="cpu", **fields)
        self.store.add_points([(1, "loss", at, 1 / at) for at in range(1, step + 1)])

    def commit(self, *steps):
        return [write_checkpoint(self.folder.checkpoints, step) for step in steps][-1]

    def tear(self, step, file="weights"):
        (self.commit(step) / file).write_text("cut")

    def spoil(self, checkpoint):
        """The history in a checkpoint is not what was written, and as long."""
        state = checkpoint / "trainer_state.json"
        state.write_text("[" + "1" * (state.stat().st_size - 2) + "]")

    def junk(self):
        """What a user, a backup or a file manager may leave."""
        self.commit(2)
        shutil.copytree(self.folder.checkpoints / "step-2", self.folder.checkpoints / "step-120.bak")
        shutil.copytree(self.folder.checkpoints / "step-2", self.folder.checkpoints / "step-5")
        (self.folder.checkpoints / "step-x").mkdir()
        (self.folder.checkpoints / "step-7").write_text("")
        (self.folder.checkpoints / "step-8").symlink_to("nowhere")
        for place in ("runs", "fits"):
            (self.experiment.path / place / "notes.txt").write_text("mine")
            (self.experiment.path / place / "one.bak").mkdir()

    def clone(self, **fields):
        """Run 2 is a warm clone of run 1."""
        self.row(2, **{"state": QUEUED, "step": 0, "warm": True, "parent": 1} | fields)


@dataclass
class Case:
    """`left`: what is found; `trained`: the steps of run 1 that are trained now; then its state, what the event log
    says of it, and what else holds (of the experiment)."""

    left: Callable
    trained: list
    told: str = ""
    state: str = DONE
    step: int = 6
    holds: list = field(default_factory=list)


def clone_of(start_step, state=DONE):
    return lambda store, experiment: (store.run(2).start_step, store.run(2).state) == (start_step, state)


CASES = {
    "the database is past the checkpoint": Case(
        lambda left: (left.at(5), left.commit(2)),
        [3, 4, 5, 6],
        "rolled back to the checkpoint at step 2; retraining 3 steps",
    ),
    "one step past it": Case(lambda left: (left.at(3), left.commit(2)), [3, 4, 5, 6], "at step 2; retraining 1 step"),
    "no checkpoint yet": Case(lambda left: left.at(2), [1, 2, 3, 4, 5, 6], "at step 0; retraining 2 steps"),
    "the database lost its last commits": Case(
        lambda left: (left.at(1), left.commit(2, 4)), [5, 6], "at step 4 by its checkpoint, not at step 1"
    ),
    "the database knows nothing of the run's beginning": Case(lambda left: left.commit(2, 4), [5, 6], "at step 4"),
    "both agree": Case(lambda left: (left.at(4, state=WAITING), left.commit(4)), [5, 6]),
    "it was about to stop": Case(
        lambda left: (left.at(3, state=STOPPING), left.commit(2)),
        [],
        "at step 2; retraining 1 step",
        state=STOPPED,
        step=2,
    ),
    "it was stopped": Case(lambda left: (left.at(4, state=STOPPED), left.commit(4)), [], state=STOPPED, step=4),
    "its stop was kept and its checkpoint is torn": Case(
        lambda left: (left.at(4, state=STOPPED), left.commit(2), left.tear(4)), [], "step-4", state=STOPPED, step=2
    ),
    "the newest checkpoint has a short file": Case(
        lambda left: (left.at(4), left.commit(2), left.tear(4)),
        [3, 4, 5, 6],
        "checkpoint step-4 is incomplete; skipped",
    ),
    "the newest checkpoint has a torn marker": Case(
        lambda left: (left.at(4), left.commit(2), left.tear(4, "rftui.json")), [3, 4, 5, 6], "step-4 is incomplete"
    ),
    "the newest checkpoint has no marker": Case(
        lambda left: (left.at(4), left.commit(2), (left.commit(4) / "rftui.json").unlink()),
        [3, 4, 5, 6],
        "step-4 is incomplete",
    ),
    "the newest checkpoint lacks a file": Case(
        lambda left: (left.at(4), left.commit(2), (left.commit(4) / "weights").unlink()),
        [3, 4, 5, 6],
        "step-4 is incomplete",
    ),
    "the newest checkpoint has a broken history": Case(
        lambda left: (left.at(4), left.commit(2), left.spoil(left.commit(4))),
        [3, 4, 5, 6],
        "step-4 is incomplete",
    ),
    "there is junk beside the checkpoints": Case(
        lambda left: (left.at(4), left.junk()),
        [3, 4, 5, 6],
        "step-5 is incomplete",
        holds=[
            lambda store, experiment: (
                sorted(each.name for each in experiment.run(1).checkpoints.iterdir())
                == ["step-120.bak", "step-2", "step-5", "step-6", "step-7", "step-8", "step-x"]
            )
        ],
    ),
    "its files cannot be read": Case(
        lambda left: (left.at(4), left.folder.path.mkdir(), left.folder.checkpoints.symlink_to("checkpoints")),
        [],
        "finding where run 1 is",
        state=STOPPED,
        step=4,
    ),
    "a clone is to start where a file lies": Case(
        lambda left: (
            left.at(3),
            left.commit(2),
            left.clone(),
            left.experiment.run(2).path.mkdir(),
            left.experiment.run(2).start.write_text(""),
        ),
        [3, 4, 5, 6],
        holds=[clone_of(2)],
    ),
    "every checkpoint is torn": Case(
        lambda left: (left.at(4), left.tear(2), left.tear(4)), [1, 2, 3, 4, 5, 6], "step-2 is incomplete"
    ),
    "a checkpoint was being written": Case(
        lambda left: (
            left.at(3),
            left.commit(2),
            shutil.copytree(left.commit(2), left.folder.checkpoints / ".step-4"),
        ),
        [3, 4, 5, 6],
        holds=[lambda store, experiment: not list(experiment.run(1).checkpoints.glob(".*"))],
    ),
    "it had ended and nobody was told": Case(
        lambda left: (left.at(5), left.commit(6), write_final(left.folder, 6)),
        [],
        "Run 1 done",
        holds=[
            lambda store, experiment: store.run(1).final == str(experiment.run(1).final),
            lambda store, experiment: (store.run(1).chunk, store.run(1).device) == (3, None),
        ],
    ),
    "it had ended as it was being stopped": Case(
        lambda left: (left.at(5, state=STOPPING), left.commit(6), write_final(left.folder, 6)), [], "Run 1 done"
    ),
    "its last checkpoint is there and its final is not": Case(lambda left: (left.at(6), left.commit(4, 6)), []),
    "its final was being written": Case(
        lambda left: (left.at(6), left.commit(6), shutil.copytree(left.commit(6), left.folder.path / ".final")),
        [],
        holds=[lambda store, experiment: not (experiment.run(1).path / ".final").exists()],
    ),
    "it was done": Case(
        lambda left: (left.at(6, state=DONE), left.commit(6), write_final(left.folder, 6)), [], step=6
    ),
    "it had failed": Case(
        lambda left: (left.at(3, state=FAILED, error="boom"), left.commit(2)), [], state=FAILED, step=3
    ),
    "it was deleted and its files are there": Case(
        lambda left: (left.at(3, state=DELETED), left.commit(2)),
        [],
        state=DELETED,
        step=3,
        holds=[lambda store, experiment: not experiment.run(1).path.exists()],
    ),
    "it was stopped while it waited": Case(lambda left: left.row(state=STOPPED), [], state=STOPPED, step=0),
    "a clone waits for its pin, and there is a checkpoint": Case(
        lambda left: (left.at(3), left.commit(2), left.clone()),
        [3, 4, 5, 6],
        "Run 2 starts warm from the last checkpoint of run 1, step 2",
        holds=[clone_of(2)],
    ),
    "a clone waits for its pin, and there is no checkpoint": Case(
        lambda left: (left.at(1), left.clone()),
        [1, 2, 3, 4, 5, 6],
        holds=[lambda store, experiment: store.run(2).start_step > 0 and store.run(2).state == DONE],
    ),
    "a clone waits for the pin of a run that is stopped": Case(
        lambda left: (left.row(state=STOPPED), left.clone()),
        [],
        "before there were weights",
        state=STOPPED,
        step=0,
        holds=[clone_of(0, FAILED)],
    ),
    "a clone that is stopped waits for its pin": Case(
        lambda left: (left.at(3), left.commit(2), left.clone(state=STOPPED)),
        [3, 4, 5, 6],
        holds=[clone_of(2, STOPPED)],
    ),
    "a clone's pin came and nobody was told": Case(
        lambda left: (
            left.at(3),
            left.commit(2),
            left.clone(),
            link_checkpoint(left.commit(4), left.experiment.run(2).start),
            shutil.rmtree(left.folder.checkpoints / "step-4"),
        ),
        [3, 4, 5, 6],
        holds=[clone_of(4)],
    ),
    "a clone's pin was being linked": Case(
        lambda left: (
            left.at(3),
            left.clone(),
            link_checkpoint(left.commit(2), left.experiment.run(2).start),
            (left.experiment.run(2).start / "weights").unlink(),
        ),
        [3, 4, 5, 6],
        holds=[clone_of(2)],
    ),
    "files were being replaced": Case(
        lambda left: (
            left.at(2),
            left.commit(2),
            (left.experiment.path / "lock").write_text("4194304"),
            left.experiment.link.write_text('{"address": "/nowh'),
            left.experiment.link.with_suffix(".tmp").write_text('{"addr'),
            left.experiment.spec(1).parent.mkdir(),
            left.experiment.spec(1).with_suffix(".tmp").write_bytes(b"\x80\x05"),
        ),
        [3, 4, 5, 6],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_found_is_taken_up_without_a_human(case, play, world, experiment, kept):
    case, left = CASES[case], Left(experiment)
    case.left(left)
    left.store.close()
    code = play(fit=None).end()
    store = kept()
    run = store.run(1)
    assert (run.state, run.step) == (case.state, case.step)
    assert [step for number, step in world.trained if number == 1] == case.trained
    assert not [number for number, _ in world.trained if number == 3], "a finished run is never trained again"
    points = store.curves(1).get(1, {}).get("loss", [])
    assert points == [(step, 1 / step) for step in range(1, run.step + 1)], "each point once and none missing"
    told = [event.text for event in store.events()]
    assert not case.told or any(case.told in text for text in told), told
    for holds in case.holds:
        assert holds(store, experiment)
    assert code == (1 if FAILED in {each.state for each in store.runs()} else 0)
    assert store.meta("state") == "done"
    play(fit=None).end()
    assert [step for number, step in world.trained if number == 1] == case.trained, "nor a second time"
