"""Each thing is sent once, whatever the tracker does."""

import sqlite3
import stat

import pytest

from rftui.redaction import HIDDEN
from rftui.tracking.ledger import Ledger, count_unsent
from rftui.tracking.sender import Sender


class Refused(Exception):
    pass


class Recorder:
    """A tracker that keeps what it is told, and fails at the calls it is told to fail at."""

    batch = 3

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

    def lasting(self, error):
        return isinstance(error, Refused)

    def explain(self, error):
        return f"says {error}"


@pytest.fixture
def recorder():
    return Recorder()


def sender(database, recorder):
    return Sender(Ledger(database.experiment), recorder)


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
    assert len(recorder.points) == 3, "a batch"
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
    assert sending.send() == ["refuses run 1, which is not tracked any more: says it was purged"]
    assert sending.send() == []
    assert recorder.statuses == [("t2", "SCHEDULED")]


def test_what_an_older_rftui_sent_is_not_sent_again(database, recorder):
    """It kept what it had sent in the experiment's own database; a crash had left eval_loss on its way."""
    database.run(1, state="running", knobs={"a": 1})
    database.points(1, "loss", [1, 2, 3])
    database.points(1, "eval_loss", [2])
    recorder.points = [("t1", "loss", 1), ("t1", "loss", 2), ("t1", "eval_loss", 2)]
    digest = "6b86b273ff34fce1"  # of "1"
    database.kept_before(1, "t1", 2, steps={"loss": 2}, sending=["eval_loss"], params={"a": digest}, status="RUNNING")
    sender(database, recorder).send()
    database.run(1, state="done")
    sender(database, recorder).send()
    assert recorder.points[3:] == [("t1", "loss", 3)]
    assert recorder.params == [] and recorder.changes == []
    assert recorder.statuses == [("t1", "FINISHED")]


def test_the_experiments_database_is_only_read(database, recorder):
    before = database.dump()
    database.run(1)
    database.points(1, "loss", [1])
    written = database.dump()
    sender(database, recorder).send()
    assert database.dump() == written != before
    assert stat.S_IMODE(database.experiment.outbox.stat().st_mode) == 0o600


class Counted:
    """The virtual machine steps that SQLite takes for this process."""

    def __init__(self, monkeypatch):
        self.steps = 0
        connect = sqlite3.connect

        def counting(*args, **kwargs):
            connection = connect(*args, **kwargs)
            connection.set_progress_handler(self._step, 1)
            return connection

        monkeypatch.setattr(sqlite3, "connect", counting)

    def _step(self):
        self.steps += 1


def test_a_wake_reads_only_what_is_new(make_database, tmp_path, recorder, monkeypatch):
    counted = Counted(monkeypatch)
    recorder.batch = 1000

    def cost(points, home):
        """SQLite's steps for one new point after so many old ones of each of 8 runs; and for nothing new."""
        database = make_database(tmp_path / home)
        for number in range(1, 9):
            database.run(number, state="running")
            database.points(number, "loss", range(points))
        sending = sender(database, recorder)
        sending.send()
        database.points(1, "loss", [points])
        database.run(1, step=points)
        before = counted.steps
        sending.send()
        with_one = counted.steps
        sending.send()
        return with_one - before, counted.steps - with_one

    assert cost(20, "short") == cost(2000, "long")
    assert len(recorder.points) == 8 * 2020 + 2


def test_only_runs_that_changed_are_looked_at(database, recorder):
    for number in range(1, 9):
        database.run(number, state="running")
    sending = sender(database, recorder)
    sending.send()
    calls = recorder.calls
    database.run(3, state="done")
    sending.send()
    assert recorder.calls == calls + 2, "run 3's artifacts and status"
    assert recorder.statuses[-1] == ("t3", "FINISHED")


def test_what_is_unsent_is_counted_exactly(database, recorder):
    assert count_unsent(database.experiment) == 0
    database.run(1)
    database.run(2)
    database.points(1, "loss", range(1, 8))
    database.points(2, "loss", range(1, 3))
    assert count_unsent(database.experiment) == 9, "before there is an outbox"
    sending = sender(database, recorder)
    recorder.fails = {3: OSError("down")}  # run 1's second batch
    with pytest.raises(OSError):
        sending.send()
    database.points(2, "loss", [3])
    assert count_unsent(database.experiment) == 4 + 3
    assert count_unsent(database.experiment, {1}) == 3
    sending.send()
    assert count_unsent(database.experiment) == 0


def test_points_that_were_trained_again_before_they_were_sent_are_sent_as_they_are_now(database, recorder):
    database.run(1)
    database.points(1, "loss", range(1, 4))
    recorder.fails = {2: OSError("down")}
    sending = sender(database, recorder)
    with pytest.raises(OSError):
        sending.send()
    database.rewind(1, 1)
    database.points(1, "loss", [2, 3], lambda step: -step)
    seen = []
    recorder.log_points = lambda _, points: seen.extend((point.step, point.value) for point in points)
    sending.send()
    assert seen == [(1, 1.0), (2, -2.0), (3, -3.0)]


@pytest.mark.parametrize("statement", ["INSERT OR REPLACE INTO sent", "DELETE FROM queue"])
def test_an_outbox_that_cannot_be_written_loses_and_repeats_nothing(database, recorder, statement):
    database.run(1)
    database.points(1, "loss", range(1, 4))
    sending = sender(database, recorder)
    with sqlite3.connect(database.experiment.outbox) as other:
        verb, table = ("INSERT", "sent") if statement.startswith("INSERT") else ("DELETE", "queue")
        other.execute(f"CREATE TRIGGER full BEFORE {verb} ON {table} BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    with pytest.raises(sqlite3.Error, match="disk full"):
        sending.send()
    with sqlite3.connect(database.experiment.outbox) as other:
        other.execute("DROP TRIGGER full")
    sending.send()
    sender(database, recorder).send()
    assert recorder.points == [("t1", "loss", step) for step in (1, 2, 3)]


def test_a_kill_between_any_two_statements_loses_and_repeats_nothing(database, recorder, monkeypatch):
    """Each moment at which the outbox is written is kept, with what had arrived by then, and taken up from."""
    moments = []
    connect = sqlite3.connect

    def watched(*args, **kwargs):
        connection = connect(*args, **kwargs)
        connection.set_trace_callback(keep)
        return connection

    def keep(statement):
        files = {path.name: path.read_bytes() for path in database.experiment.path.glob("outbox.db*")}
        moments.append((statement, files, list(recorder.points)))

    database.run(1, state="done", knobs={"a": 1})
    database.points(1, "loss", range(1, 8))
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", watched)
        sender(database, recorder).send()
    assert any("DELETE FROM queue" in statement for statement, _, _ in moments)
    for statement, files, points in moments:
        for path in database.experiment.path.glob("outbox.db*"):
            path.unlink()
        for name, content in files.items():
            if not name.endswith("-shm"):  # made again from the log
                (database.experiment.path / name).write_bytes(content)
        recorder.points = points
        sender(database, recorder).send()
        assert recorder.points == [("t1", "loss", step) for step in range(1, 8)], statement
        assert count_unsent(database.experiment) == 0
