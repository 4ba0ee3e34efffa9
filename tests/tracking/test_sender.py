"""Each thing is sent once, whatever the tracker does."""

import pytest

from rftui.redaction import HIDDEN
from rftui.tracking.ledger import Ledger
from rftui.tracking.sender import Sender


class Refused(Exception):
    pass


class Recorder:
    """A tracker that keeps what it is told, and fails at the calls it is told to fail at."""

    def __init__(self):
        self.points, self.params, self.changes, self.statuses, self.artifacts = [], [], [], [], []
        self.deleted = []
        self.fails, self.unanswered = {}, None
        self.calls = 0

    def _may_fail(self):
        self.calls += 1
        if self.calls in self.fails:
            raise self.fails[self.calls]

    def open(self):
        pass

    def create(self, run):
        self._may_fail()
        return f"t{run.id}"

    def log_params(self, tracker_run, params):
        self._may_fail()
        self.params.append((tracker_run, params))

    def log_changes(self, tracker_run, changes):
        self._may_fail()
        self.changes.append((tracker_run, changes))

    def log_points(self, tracker_run, points):
        self._may_fail()
        self.points += [(tracker_run, point.metric, point.step) for point in points]
        if self.unanswered:
            raise self.unanswered

    def last_step(self, tracker_run, metric):
        self._may_fail()
        return max((step for run, name, step in self.points if (run, name) == (tracker_run, metric)), default=-1)

    def log_artifacts(self, tracker_run, run):
        self._may_fail()
        self.artifacts.append(tracker_run)

    def set_status(self, tracker_run, status):
        self._may_fail()
        self.statuses.append((tracker_run, status))

    def delete(self, tracker_run):
        self.deleted.append(tracker_run)


@pytest.fixture
def recorder():
    return Recorder()


def sender(database, recorder):
    return Sender(Ledger(database.experiment.db), recorder, lambda error: isinstance(error, Refused), batch=3)


@pytest.mark.parametrize("failing", range(1, 10))
def test_whatever_call_fails_each_thing_is_sent_once(database, recorder, failing):
    database.run(1, state="done", knobs={"training_args.learning_rate": 1e-4})
    database.points(1, "loss", range(1, 9))
    recorder.fails = {failing: OSError("down")}
    sending = sender(database, recorder)
    for _ in range(2):
        try:
            sending.send()
        except OSError:
            pass
    assert recorder.points == [("t1", "loss", step) for step in range(1, 9)]
    assert recorder.params == [("t1", {"training_args.learning_rate": "0.0001"})]
    assert recorder.statuses == [("t1", "FINISHED")]


def test_a_second_process_sends_only_what_is_new(database, recorder):
    database.run(1, state="running")
    database.points(1, "loss", [1, 2])
    sender(database, recorder).send()
    database.points(1, "loss", [3])
    database.run(1, state="done")
    sender(database, recorder).send()
    assert [step for _, _, step in recorder.points] == [1, 2, 3]
    assert recorder.statuses == [("t1", "RUNNING"), ("t1", "FINISHED")]


def test_steps_that_are_trained_again_are_not_sent_again(database, recorder):
    database.run(1, state="running")
    database.points(1, "loss", range(1, 8))
    database.points(1, "eval_loss", [4])
    sending = sender(database, recorder)
    sending.send()
    database.rewind(1, 3)
    database.points(1, "eval_loss", [4])
    database.points(1, "loss", range(4, 11))
    database.points(1, "eval_loss", [8])
    sending.send()
    assert [step for _, metric, step in recorder.points if metric == "loss"] == list(range(1, 11))
    assert [step for _, metric, step in recorder.points if metric == "eval_loss"] == [4, 8]


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("how", [Killed(), OSError("the answer was lost")])
def test_what_arrived_before_a_crash_could_note_it_is_not_sent_again(database, recorder, how):
    """Also where the crash was everyone's: the steps are trained again, at another time and with other numbers."""
    database.run(1, state="running")
    database.points(1, "loss", range(1, 4))
    database.points(1, "eval_loss", [3])
    recorder.unanswered = how
    with pytest.raises(type(how)):
        sender(database, recorder).send()
    assert [step for _, _, step in recorder.points] == [1, 2, 3]
    recorder.unanswered = None
    database.rewind(1, 1)
    database.points(1, "loss", range(2, 5))
    database.points(1, "eval_loss", [3])
    sending = sender(database, recorder)
    sending.send()
    sending.send()
    assert sorted(recorder.points) == [("t1", "eval_loss", 3)] + [("t1", "loss", step) for step in range(1, 5)]


def test_what_did_not_arrive_before_a_crash_is_sent(database, recorder):
    database.run(1, state="running")
    database.points(1, "loss", range(1, 4))
    recorder.fails = {2: Killed()}
    with pytest.raises(Killed):
        sender(database, recorder).send()
    sender(database, recorder).send()
    assert [step for _, _, step in recorder.points] == [1, 2, 3]


def test_statuses_follow_a_run_that_is_stopped_resumed_and_interrupted(database, recorder):
    sending = sender(database, recorder)
    for state in ("queued", "running", "waiting", "stopping", "stopped", "waiting"):
        database.run(1, state=state)
        sending.send()
    sending.send(closing=True)
    assert [status for _, status in recorder.statuses] == ["SCHEDULED", "RUNNING", "KILLED", "RUNNING", "KILLED"]
    assert recorder.artifacts == ["t1", "t1"]


def test_a_deleted_run_is_deleted_once_it_cannot_be_brought_back(database, recorder):
    database.run(1, state="running")
    database.run(2, state="deleted")
    sending = sender(database, recorder)
    sending.send()
    database.run(1, state="deleted", before="running")
    sending.send()
    database.run(1, state="running", before="")
    sending.send()
    database.run(1, state="deleted", before="running")
    sending.send()
    assert recorder.deleted == []
    assert [status for _, status in recorder.statuses] == ["RUNNING", "KILLED", "RUNNING", "KILLED"]
    database.run(1, before="")
    sending.send()
    sending.send()
    assert recorder.deleted == ["t1"]


def test_params_are_sent_once_and_changes_become_tags(database, recorder):
    database.run(1, knobs={"a": 1, "hf_token": "hf_SECRETSECRET"})
    sending = sender(database, recorder)
    sending.send()
    database.run(1, knobs={"a": 2, "hf_token": "hf_SECRETSECRET", "b": 3})
    sending.send()
    sending.send()
    assert recorder.params == [("t1", {"a": "1", "hf_token": HIDDEN}), ("t1", {"b": "3"})]
    assert recorder.changes == [("t1", {"a": "2"})]


def test_a_run_that_fails_does_not_keep_the_others_from_being_sent(database, recorder):
    database.run(1)
    database.run(2)
    recorder.fails = {1: OSError("run 1 again"), 4: OSError("and again")}
    sending = sender(database, recorder)
    with pytest.raises(OSError):
        sending.send()
    with pytest.raises(OSError):
        sending.send()
    assert recorder.statuses == [("t2", "SCHEDULED")]


def test_a_run_that_the_tracker_refuses_for_good_is_told_once(database, recorder):
    database.run(1)
    database.run(2)
    recorder.fails = {1: Refused("it was purged")}
    sending = sender(database, recorder)
    assert sending.send() == ["MLflow refuses run 1, which is not tracked any more: it was purged"]
    assert sending.send() == []
    assert recorder.statuses == [("t2", "SCHEDULED")]
