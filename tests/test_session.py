"""The tie to a scheduler and to the next one, over schedulers that are not there."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest

from rftui.errors import UserError
from rftui.link import LinkLost
from rftui.messages import Clone, Command, Field, Reply, Stop, Update
from rftui.paths import ExperimentDir
from rftui.session import NotServed, Session

GONE = ExperimentDir(Path("/nowhere/exp"))
FIELDS = [Field("training_args.learning_rate", "float")]


class Scheduler:
    """A launch and the link it leads to: `says` is what `poll` gives, one batch a call; then the link is lost."""

    title = "exp"
    started = True

    def __init__(self, *says: list[Any], exit_status: int | None = None, tail: str = "") -> None:
        self.sent: list[Command] = []
        self.exit_status = exit_status
        self._tail = tail
        self._says: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
        for batch in says:
            self._says.put(batch)

    def poll(self, timeout: float | None = None, *, brief: bool = False) -> Any:
        if timeout is None:  # as a launch
            return self if self.exit_status is None else None
        if self._says.empty():
            raise LinkLost("the scheduler has ended")
        return self._says.get()

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def tail(self, lines: int) -> list[str]:
        return [self._tail] if self._tail else []


def session(*schedulers: Scheduler) -> Session:
    """A session over the first; each of the others is started where one is wanted."""
    first, *others = schedulers
    return Session(first, lambda experiment: others.pop(0))  # type: ignore[arg-type, return-value]


def to_the_end(of: Session) -> list[Any]:
    """What it hears until the link is lost."""
    heard: list[Any] = []
    with pytest.raises(LinkLost):
        while True:
            heard += of.poll(0.01)
    return heard


def test_what_is_not_answered_is_asked_of_the_next_scheduler_and_of_no_third() -> None:
    schedulers = [Scheduler([Update(1)]) for _ in range(3)]
    tie, stop = session(*schedulers), Stop(1)
    tie.submit(stop)
    to_the_end(tie)
    assert tie.ended and tie.pending == {stop.id: stop}
    tie.go_on(GONE)
    to_the_end(tie)
    assert tie.pending == {}
    tie.go_on(GONE)
    to_the_end(tie)
    assert [scheduler.sent for scheduler in schedulers] == [[stop], [stop], []]


def test_an_answer_ends_it_and_a_refusal_of_one_that_is_ending_does_not() -> None:
    done, late = Stop(1), Stop(2)
    ending = [Reply(done.id, True, "yes"), Reply(late.id, False, "just ending", ending=True)]
    first, second = Scheduler(ending), Scheduler([Reply(late.id, False, "just ending, too", ending=True)])
    tie = session(first, second)
    tie.submit(done)
    tie.submit(late)
    assert to_the_end(tie) == ending and tie.pending == {late.id: late}
    tie.go_on(GONE)
    assert to_the_end(tie)[0].text == "just ending, too"
    assert second.sent == [late] and tie.pending == {}


def test_a_clone_waits_until_each_scheduler_has_described_the_fields() -> None:
    described = Update(1, schema={"SFT": FIELDS})
    first, second = Scheduler([Update(0)], [described]), Scheduler([Update(0)], [described])
    tie, clone, seen = session(first, second), Clone(1), []
    tie.submit(clone, "SFT", lambda fields: seen.append((fields, len(first.sent), len(second.sent))))
    tie.poll(0.01)
    tie.poll(0.01)
    assert tie.waits_for(clone.id) == "has not described its settings" and first.sent == []
    to_the_end(tie)
    tie.go_on(GONE)
    to_the_end(tie)
    assert first.sent == second.sent == [clone]
    assert seen == [(FIELDS, 0, 0), (FIELDS, 1, 0)], "made anew for each, right before it is sent"


def test_what_cannot_be_prepared_is_not_asked() -> None:
    def refuse(fields: list[Field]) -> None:
        raise UserError("lr must be a number")

    first = Scheduler([Update(1, schema={"SFT": FIELDS})])
    tie = session(first)
    tie.submit(Clone(1), "SFT", refuse)
    tie.poll(0.01)
    with pytest.raises(UserError, match="must be a number"):
        tie.poll(0.01)
    assert first.sent == [] and tie.pending == {}


def test_one_that_ends_before_it_serves_says_how() -> None:
    tie = session(Scheduler(exit_status=3, tail="rftui: the disk is full"))
    with pytest.raises(NotServed, match="exp: rftui: the disk is full") as fault:
        tie.poll(0.01)
    assert fault.value.status == 3 and tie.ended


def test_one_that_ends_without_a_word_leaves_it_to_its_launch() -> None:
    first = Scheduler()
    tie = session(first)
    assert tie.poll(0.01) == [] and tie.up
    assert tie.poll(0.01) == [] and not tie.up and not tie.ended
    first.exit_status = 1
    with pytest.raises(NotServed):
        tie.poll(0.01)


def test_nothing_is_started_where_that_is_not_wanted() -> None:
    tie = Session()
    tie.go_on(GONE)
    with pytest.raises(UserError, match="its scheduler has ended"):
        tie.poll(0.01)
    assert tie.ended
