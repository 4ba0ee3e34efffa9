"""Messages that cross: the real scheduler, given one message at a time, with no worker and no thread behind it."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from fake_worker import command_of, write_checkpoint, write_final

from rftui import messages
from rftui.errors import UserError
from rftui.messages import (
    Begun,
    Delete,
    Field,
    Halt,
    Halted,
    Leave,
    Quit,
    SnapshotWeights,
    Stop,
    Turn,
    WeightsReady,
)
from rftui.runs import DELETED, DONE, FAILED, QUEUED, RUNNING, STOPPED, STOPPING, WAITING
from rftui.scheduler import loop
from rftui.scheduler.headless import Printer
from rftui.scheduler.hosts import Process
from rftui.store import Store, Unwritten

RATE = "training_args.learning_rate"


class Silent:
    """A host whose workers say nothing; what they report is put into the rig's mouth."""

    def __init__(self):
        self.incarnations, self.killed = {}, []

    def start(self, name, environment, ended):
        self.incarnations[name] = int(environment["RFTUI_INCARNATION"])
        return Process(1, None)

    def running(self, name):
        return False

    def kill(self, name):
        self.killed.append(name)

    def wait(self, name, seconds):
        return True

    def log(self, name):
        return Path("/nowhere")


class Rig:
    """A scheduler whose loop is turned by hand."""

    def __init__(self, experiment, fit=1, devices="cpu"):
        self.host = Silent()
        self.scheduler = loop.Scheduler(experiment, fit, None, devices, False, self.host)
        self.registry, self.turns = self.scheduler.registry, self.scheduler.turns
        self.experiment, self.tasks, self.replies = experiment, [], []
        self.scheduler.server.task = lambda worker, task: self.tasks.append(task)
        self.scheduler.server.send = lambda viewer, reply: self.replies.append(reply)
        self.workers = list(self.scheduler.workers.slots)
        self.closed = False
        self.scheduler.crew.begin()

    def ready(self):
        """The workers stand, the configs are checked, and the first turns are given."""
        for worker in self.workers:
            self.says(messages.Ready(7), worker=worker)
        self.says(messages.Schema({"SFT": [Field(RATE, "float")]}))
        self.says(messages.Checked(1, [], []))
        return self

    def says(self, *reports, worker=None):
        worker = worker or self.workers[0]
        self.scheduler.receive(messages.Report(worker, self.host.incarnations[worker], list(reports)))
        if not self.scheduler.ending.begun:
            self.turns.assign()

    def steps(self, run, step):
        """The run begins its turn and takes a step."""
        self.says(Begun(run, 0, 6, 0, 3, 0.0), messages.Stepped(run, step, 0, 0.1))

    def ask(self, op, run=0, changes=None, **how):
        command = command_of(op, run, changes, **how)
        self.scheduler.receive(command)
        if not self.scheduler.ending.begun:
            self.turns.assign()
        return self.replies[-1]

    def close(self):
        """The end of `serve`: the exit code."""
        self.closed = True
        return self.scheduler.close()

    def run(self, number):
        return self.registry.runs[number]

    def state(self, number):
        return self.run(number).state

    def told(self):
        """The texts of the event log."""
        return [event.text for event in self.registry.store.events()]

    def sent(self, kind):
        return [task for task in self.tasks if isinstance(task, kind)]

    def holds_turn(self):
        """The run that has the device, as the viewers see it."""
        return self.registry.devices[self.workers[0]].run

    def commit(self, run, step):
        """A checkpoint lies on disk."""
        return write_checkpoint(self.experiment.run(run).checkpoints, step)

    def halts(self, run, step):
        """The worker frees the run at a step, with a checkpoint."""
        self.says(Halted(run, step, str(self.commit(run, step)) if step else None))


class Quiet:
    def wake(self): ...

    def notices(self):
        return []

    def close(self, timeout):
        return True


@pytest.fixture
def rig(experiment, monkeypatch):
    monkeypatch.setattr(loop, "start_tracking", lambda experiment: Quiet())
    made = []

    def make(**how):
        made.append(Rig(experiment, **how))
        return made[-1]

    yield make
    for each in made:
        if not each.closed:
            each.scheduler.store.close()
            each.scheduler.server.close()


@pytest.fixture
def rigged(rig):
    """Run 1 has taken a step of its first turn; runs 2 and 3 are queued."""
    made = rig().ready()
    made.steps(1, 1)
    return made


# ---------------------------------------------------------------- a run that ends as something is asked of it


def test_a_run_that_finished_as_stop_was_pressed_is_done(rigged):
    assert rigged.ask("stop", 1).ok
    rigged.says(messages.Finished(1, 6, "final", None, 1.0))
    assert rigged.state(1) == DONE and rigged.holds_turn() == 2 and 1 not in rigged.turns.resident
    assert not rigged.ask("resume", 1).ok


def test_a_run_that_ended_its_chunk_as_stop_was_pressed_stops(rigged):
    assert rigged.ask("stop", 1).ok
    rigged.says(messages.TurnEnded(1, 2, 1, 0.5, 1.0))
    assert rigged.state(1) == STOPPING and rigged.holds_turn() == 2
    rigged.halts(1, 2)
    assert rigged.state(1) == STOPPED and rigged.holds_turn() == 2, "the other's turn goes on"


def test_a_run_that_is_halted_in_its_turn_gives_the_device_up(rigged):
    rigged.ask("stop", 1)
    rigged.halts(1, 1)
    assert rigged.state(1) == STOPPED and rigged.holds_turn() == 2
    assert [task.run.id for task in rigged.sent(Turn)] == [1, 2]


def test_a_run_that_cannot_be_built_fails_alone(rig):
    made = rig().ready()
    made.says(messages.Failed(1, "Target modules not found", "Traceback", 2.5))
    assert made.state(1) == FAILED and made.holds_turn() == 2


def test_a_run_that_is_stopped_before_its_first_step_begins_anew_when_it_is_resumed(rig):
    made = rig().ready()
    made.ask("stop", 1)
    made.says(Begun(1, 0, 6, 0, 3, 0.0), Halted(1, 0, None))
    assert made.state(1) == STOPPED
    assert made.ask("resume", 1).ok
    made.says(messages.Failed(2, "x", "", 0.0), messages.Failed(3, "x", "", 0.0))
    turn = made.sent(Turn)[-1]
    assert (turn.run.id, turn.resume) == (1, None)


def test_resume_is_refused_until_the_run_has_stopped(rigged):
    rigged.ask("stop", 1)
    assert "still stopping" in rigged.ask("resume", 1).text
    rigged.halts(1, 1)
    assert rigged.ask("resume", 1).ok


def test_delete_while_it_stops_frees_it_once(rigged):
    rigged.ask("stop", 1)
    assert rigged.ask("delete", 1).ok and rigged.turns.resident[1]
    rigged.halts(1, 1)
    assert rigged.state(1) == DELETED and 1 not in rigged.turns.resident
    assert not rigged.ask("delete", 1).ok


@pytest.mark.parametrize("last", [messages.Finished(1, 6, "final", None, 1.0), messages.Failed(1, "boom", "", 1.0)])
def test_a_deleted_run_stays_deleted_however_it_ended(rigged, last):
    rigged.ask("delete", 1)
    rigged.says(last)
    assert rigged.state(1) == DELETED and 1 not in rigged.turns.resident


def test_a_turn_holds_the_run_as_it_was_when_the_turn_was_given(rigged):
    (turn,) = rigged.sent(Turn)
    assert (turn.run.state, turn.run.step) == (RUNNING, 0), "it is pickled later, by another thread"


# ---------------------------------------------------------------- moves


@pytest.fixture
def moving(rig):
    """Two workers; run 3 is parked on the first, which trains run 1, and is being moved to the second."""
    made = rig(devices="cpu:2").ready()
    made.steps(1, 1)
    made.says(messages.TurnEnded(1, 2, 1, 0.5, 9.0))
    made.says(Begun(3, 0, 6, 0, 3, 0.0), messages.Stepped(3, 2, 1, 0.5), messages.TurnEnded(3, 2, 1, 0.5, 9.0))
    made.says(messages.Finished(2, 6, "final", None, 1.0), worker="cpu1")
    assert made.tasks[-1] == Halt(3)
    return made


def test_a_run_that_is_stopped_while_it_moves_stops(moving):
    assert moving.ask("stop", 3).ok
    moving.halts(3, 2)
    assert moving.state(3) == STOPPED and moving.registry.devices["cpu1"].run is None


def test_a_run_that_is_deleted_while_it_moves_goes(moving):
    assert moving.ask("delete", 3).ok
    moving.halts(3, 2)
    assert moving.state(3) == DELETED and 3 not in moving.turns.resident


def test_a_run_whose_worker_dies_while_it_moves_is_taken_by_another(moving):
    moving.commit(3, 2)
    moving.says(messages.Gone(-9))
    assert moving.registry.devices["cpu1"].run in (1, 3) and moving.run(3).error is None


# ---------------------------------------------------------------- warm clones


def clone(rigged, parent=1):
    answer = rigged.ask("clone", parent, {RATE: 1e-5}, warm=True)
    assert answer.ok, answer.text
    return answer.run


def test_a_parent_that_is_deleted_in_the_same_instant_is_pinned_first(rigged):
    number = clone(rigged)
    rigged.ask("delete", 1)
    assert rigged.tasks[-2:] == [SnapshotWeights(1, [number]), Halt(1)]
    write_checkpoint(rigged.experiment.run(number).path, 1).rename(rigged.experiment.run(number).start)
    rigged.says(WeightsReady(1, [number]), Halted(1, 1, None))
    assert rigged.state(1) == DELETED and rigged.run(number).start_row == 10 and not rigged.turns.snapshots.waiting


def test_a_deleted_parent_is_not_cloned(rigged):
    rigged.ask("delete", 1)
    assert rigged.ask("clone", 1, {RATE: 1e-5}, warm=True).text.endswith("deleted; undo restores it")


def test_a_parent_that_finishes_before_it_is_pinned_is_pinned_at_its_end(rigged):
    number = clone(rigged)
    path = rigged.commit(1, 6)
    rigged.says(messages.Finished(1, 6, "final", str(path), 1.0))
    assert rigged.state(number) == QUEUED, "the worker still snapshots it"
    shutil.copytree(path, rigged.experiment.run(number).start)
    rigged.says(WeightsReady(1, [number]))
    assert (rigged.run(number).start_step, rigged.run(number).start_row) == (6, 60)


def test_a_run_that_has_its_turn_but_no_step_yet_is_not_cloned_warm(rig):
    made = rig().ready()
    assert "clone it cold" in made.ask("clone", 1, {RATE: 1e-5}, warm=True).text
    assert not made.sent(SnapshotWeights)


def test_a_clone_whose_pin_was_lost_with_the_worker_starts_from_the_parents_last_checkpoint(rigged):
    rigged.commit(1, 2)
    number = clone(rigged)
    rigged.says(messages.Gone(-9))
    assert rigged.state(number) == QUEUED and rigged.run(number).start_step == 2 and not rigged.turns.snapshots.waiting
    assert f"Run {number} starts warm from the last checkpoint of run 1, step 2" in rigged.told()


def test_a_clone_whose_pin_was_lost_before_any_checkpoint_is_pinned_when_the_parent_has_stepped_again(rigged):
    number = clone(rigged)
    rigged.ask("stop", number)
    rigged.says(messages.Gone(-9))
    rigged.says(messages.Ready(7))
    assert rigged.state(number) == STOPPED and rigged.run(1).step == 0
    assert rigged.ask("resume", number).ok
    before = len(rigged.sent(SnapshotWeights))
    rigged.steps(1, 1)
    rigged.says(messages.Stepped(1, 2, 0, 0.1))
    assert rigged.sent(SnapshotWeights)[before:] == [SnapshotWeights(1, [number])], "and only once"
    assert number not in [task.run.id for task in rigged.sent(Turn)], "the clone still waits"


@pytest.mark.parametrize("op", ["stop", "delete"])
def test_a_clone_whose_parent_ends_before_it_could_be_pinned_again_fails(rigged, op):
    """Else nothing would ever let it go on, and the experiment would never end."""
    number = clone(rigged)
    rigged.says(messages.Gone(-9))
    assert rigged.ask(op, 1).ok
    assert rigged.state(number) == FAILED and "before there were weights" in rigged.run(number).error


@pytest.mark.parametrize("op", ["stop", "delete"])
def test_a_clone_whose_parent_was_asked_to_end_as_its_worker_died_before_it_could_be_pinned_again_fails(rigged, op):
    number = clone(rigged)
    rigged.says(messages.Gone(-9))
    rigged.says(messages.Ready(7))
    for other in (2, 3):
        rigged.says(messages.Finished(other, 6, "final", None, 1.0))
    assert rigged.holds_turn() == 1 and rigged.ask(op, 1).ok
    rigged.says(messages.Gone(-9))
    assert rigged.state(number) == FAILED and not rigged.turns.snapshots.waiting


def test_a_clone_of_a_run_that_kills_its_worker_again_and_again_fails_with_it(rigged):
    number = clone(rigged)
    for _ in range(2):
        rigged.says(messages.Gone(-9))
        rigged.says(messages.Ready(7))
        for other in (2, 3):
            rigged.says(messages.Finished(other, 6, "final", None, 1.0))
    assert rigged.state(1) == rigged.state(number) == FAILED and not rigged.turns.snapshots.waiting


def test_a_clone_that_a_worker_was_about_to_pin_when_it_died_after_the_parents_end_is_pinned(rigged):
    number = clone(rigged)
    path = rigged.commit(1, 6)
    rigged.says(messages.Finished(1, 6, "final", str(path), 1.0))
    rigged.says(messages.Gone(-9))
    assert rigged.state(number) == QUEUED and rigged.run(number).start_step == 6


def test_a_move_does_not_cost_a_clone_the_weights_it_waits_for(moving):
    """The parent is freed before it has taken a step on its new worker."""
    number = clone(moving, 3)
    moving.says(messages.Gone(-9))
    moving.says(messages.Ready(7))
    moving.halts(3, 0)
    assert moving.state(number) == QUEUED and moving.turns.snapshots.waiting == {number: 3}


def test_a_run_whose_worker_died_after_its_final_was_written_is_done(rigged):
    path = rigged.commit(1, 6)
    final = write_final(rigged.experiment.run(1), 6)
    rigged.says(messages.Gone(-9))
    run = rigged.run(1)
    assert (run.state, run.step, run.final, run.checkpoint) == (DONE, 6, str(final), str(path))


def test_a_clone_whose_weights_are_torn_fails_and_does_not_wait_for_ever(rigged):
    number = clone(rigged)
    rigged.says(WeightsReady(1, [number]))
    assert rigged.state(number) == FAILED and number not in rigged.turns.snapshots.waiting


def test_a_clone_that_was_deleted_before_its_pin_stays_deleted(rigged):
    number = clone(rigged)
    rigged.ask("delete", number)
    rigged.says(WeightsReady(1, [number]))
    assert rigged.state(number) == DELETED


def test_why_files_could_not_be_linked_is_told(rigged, monkeypatch):
    rigged.commit(1, 1)
    rigged.ask("stop", 1)
    rigged.halts(1, 1)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(shutil, "copyfile", full)
    assert "No space left on device" in rigged.ask("clone", 1, {RATE: 1e-5}, warm=True).text


# ---------------------------------------------------------------- deaths


def test_a_stopping_run_whose_worker_died_is_stopped(rigged):
    rigged.ask("stop", 1)
    rigged.says(messages.Gone(-9))
    run = rigged.run(1)
    assert (run.state, run.step, run.chunk, run.epoch) == (STOPPED, 0, 0, 0.0)


def test_a_deleted_run_whose_worker_died_holds_nothing(rigged):
    rigged.ask("delete", 1)
    rigged.says(messages.Gone(-9))
    assert rigged.state(1) == DELETED and not rigged.turns.resident


def test_a_parked_run_is_not_blamed_for_its_worker(rigged):
    rigged.says(messages.TurnEnded(1, 2, 1, 0.5, 1.0))
    for _ in range(2):  # run 2 has the turn each time
        rigged.says(messages.Gone(-9))
        rigged.says(messages.Ready(7))
    assert rigged.run(1).error is None


def test_a_worker_that_cannot_start_is_left_out_and_the_others_train(rig):
    made = rig(devices="cpu:2")
    first, second = made.workers
    for _ in range(2):  # it is also the one that would check the configs
        made.says(messages.Gone(-11), worker=first)
    assert "the other workers go on without it" in made.told()[-1]
    made.says(messages.Ready(7), worker=second)
    assert made.sent(messages.Check)
    made.says(messages.Checked(1, [], []), worker=second)
    assert made.sent(Turn) and not made.scheduler.crew.broken
    for _ in range(3):  # it was ready the first time
        made.says(messages.Gone(-9), worker=second)
    assert made.scheduler.crew.broken, "none is left"


def test_a_checker_that_dies_is_followed_by_another(rig):
    made = rig(devices="cpu:2")
    first, second = made.workers
    made.says(messages.Ready(7), worker=first)
    made.says(messages.Ready(7), worker=second)
    assert len(made.sent(messages.Check)) == 1
    made.says(messages.Gone(-9), worker=first)
    assert len(made.sent(messages.Check)) == 2


def test_a_resumed_run_gets_the_next_free_turn_beside_one_that_trains(rigged):
    """Not after another whole chunk of the one that had the device meanwhile."""
    for number in (2, 3):
        assert rigged.ask("stop", number).ok
    rigged.says(messages.TurnEnded(1, 2, 1, 1.0, 0.1))
    assert rigged.holds_turn() == 1
    assert "the next free turn" in rigged.ask("resume", 2).text
    rigged.says(messages.TurnEnded(1, 4, 2, 2.0, 0.1))
    assert rigged.holds_turn() == 2


# ---------------------------------------------------------------- the end


def test_the_end_waits_for_a_deleted_run_that_is_still_held(rigged):
    for number in (1, 2, 3):
        rigged.ask("delete", number)
    rigged.scheduler.ending.look()
    assert not rigged.sent(Quit)
    rigged.says(Halted(1, 1, None))
    rigged.scheduler.ending.look()
    assert rigged.sent(Quit) == [Quit(save=True)]


@pytest.mark.parametrize("op", ["resume", "clone"])
def test_what_would_start_a_run_is_refused_while_everything_ends(rigged, op):
    rigged.ask("stop", 3)
    rigged.ask("interrupt")
    answer = rigged.ask(op, 3, {RATE: 1.0})
    assert not answer.ok and answer.ending and "just ending" in answer.text
    assert len(rigged.registry.runs) == 3 and rigged.state(3) == STOPPED
    assert rigged.ask("stop", 2).ok and rigged.state(2) == STOPPED, "what ends a run is not"


def test_what_comes_while_the_last_metrics_are_sent_is_answered(rig):
    class Sending(Quiet):
        """Viewers come, ask and go while it sends."""

        def close(self, timeout):
            if asked:
                made.scheduler.server.inbox.put(asked.pop(0))
                return False
            return True

    asked = [messages.Attach("v"), Delete(1, id="1", viewer="v"), Leave(viewer="v")]
    made = rig()
    made.scheduler._tracking = Sending()
    made.closed = True
    made.scheduler.close()
    snapshot, reply = made.replies
    assert isinstance(snapshot, messages.Snapshot) and snapshot.experiment.state == "interrupted"
    assert not reply.ok and reply.ending and made.state(1) == QUEUED


def test_the_last_words_of_tracking_are_told(rig, experiment, capsys):
    class Slow(Quiet):
        def notices(self):
            return ["3 points are not there"]

        def close(self, timeout):
            made.scheduler.server.inbox.put(signal.SIGINT)
            return False

    made = rig()
    made.scheduler._tracking = Slow()
    made.closed = True
    made.scheduler.close()
    words = [event.text for event in Store.read(experiment.db).events()][-2:]
    assert words[0] == "3 points are not there" and "goes on in the background" in words[1]
    out = capsys.readouterr().out
    assert all(word in out for word in words)


def test_a_stop_that_the_end_overtook_is_kept(rigged, experiment, rig):
    rigged.ask("stop", 1)
    rigged.ask("interrupt")
    assert rigged.close() == 130  # no Halted came: the workers were killed
    states = [run.state for run in Store.read(experiment.db).runs()]
    assert states == [STOPPED, QUEUED, QUEUED]


def test_a_stop_that_a_killed_scheduler_had_accepted_is_kept(rigged, experiment, rig):
    rigged.ask("stop", 1)
    assert Store.read(experiment.db).run(1).state == STOPPING
    again = rig(fit=None)
    assert again.state(1) == STOPPED


def test_what_was_halted_goes_on_later(rigged):
    rigged.ask("interrupt")
    rigged.halts(1, 1)
    assert rigged.state(1) == WAITING and rigged.close() == 130


def test_a_clone_of_a_deleted_run_keeps_its_weights_where_the_end_overtook_the_pin(rigged, rig):
    rigged.commit(1, 2)
    number = clone(rigged)
    rigged.ask("delete", 1)
    rigged.ask("interrupt")
    assert rigged.close() == 130  # the workers were killed
    assert not rigged.experiment.run(1).path.exists()
    again = rig(fit=None)
    assert again.state(number) == QUEUED and again.run(number).start_step == 2


def test_where_nothing_can_be_kept_runs_that_cannot_be_saved_are_freed_without(rigged):
    """One of them was paused before, the other finds the disk full as it is to be saved."""
    rigged.says(messages.Unsaved(1, "no space is left", 1, 0.1))
    assert rigged.holds_turn() == 2
    rigged.scheduler.server.inbox.put(messages.Report("cpu", 1, [messages.Unsaved(2, "no space is left", 1, 0.1)]))
    alive = iter([True, False])
    rigged.scheduler.workers.alive = lambda: next(alive)
    rigged.scheduler.ending.give_up_unwritten(Unwritten("the database cannot be written", code=1))
    assert rigged.tasks[-3:] == [Quit(save=True), Halt(1, save=False), Halt(2, save=False)]
    with pytest.raises(UserError, match="cannot be written; mend that, and `rftui open exp` goes on"):
        rigged.close()


def test_a_terminal_hangs_up_more_than_once_and_means_one_thing(rigged):
    """The kernel says it, and so does the shell; only another signal after it means: at once."""
    killed = rigged.host.killed
    for _ in range(3):
        rigged.scheduler.receive(signal.SIGHUP)
    assert rigged.sent(Quit) == [Quit(save=True)] and killed == []
    rigged.scheduler.receive(signal.SIGTERM)
    assert killed == ["cpu"]


# ---------------------------------------------------------------- the inbox


def test_the_journal_is_committed_before_the_answer_leaves(rigged, experiment):
    """Also where nothing else changed."""
    seen = []

    def send(viewer, reply):
        (count,) = Store.read(experiment.db)._db.execute("SELECT count(*) FROM journal WHERE ok = 0").fetchone()
        seen.append(count)

    rigged.registry.flush()
    rigged.scheduler.server.send = send
    rigged.scheduler.receive(Stop(99))
    assert seen == [1]


def test_a_flood_of_reports_does_not_keep_the_loop_from_its_work(rig):
    """Each message brings the next one, as from workers that report faster than they are read."""
    made = rig(fit=None)
    scheduler, flooded, turned = made.scheduler, [], []

    def receive(message):
        flooded.append(message)
        if len(flooded) < 500 and not turned:
            scheduler.server.inbox.put(message)

    def assign():
        turned.append(len(flooded))
        scheduler.ending.begun = True

    scheduler.receive, made.turns.assign = receive, assign
    scheduler.server.inbox.put("report")
    made.closed = True
    scheduler.serve()
    assert turned[0] < 10


def test_a_terminal_that_has_hung_up_does_not_end_a_training(monkeypatch):
    def gone(*_, **__):
        raise OSError(5, "Input/output error")

    replaced = []
    monkeypatch.setattr("builtins.print", gone)
    monkeypatch.setattr(os, "dup2", lambda *files: replaced.append(files))
    Printer.__new__(Printer)._write("a line")
    assert replaced
