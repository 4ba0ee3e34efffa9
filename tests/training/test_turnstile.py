import queue
import threading

import pytest

from rftui.training.turnstile import Closed, Slot, Turnstile


class Run(threading.Thread):
    """A thread that 'trains' until its slot is told to stop, writing what it does into a shared record."""

    def __init__(self, name, turnstile, record, steps_a_turn=3, **how):
        super().__init__(name=name, daemon=True)
        self.slot = Slot(turnstile)
        self.record, self.steps_a_turn = record, steps_a_turn
        self.ended = threading.Event()
        self.how = how

    def run(self):
        try:
            self.slot.enter()
            self.record.put((self.name, "in"))
            step = 0
            while True:
                while (order := self.slot.boundary()) is not None:
                    self.record.put((self.name, order))
                    if order == "stop":
                        return
                step += 1
                self.record.put((self.name, step))
                if "at_step" in self.how and step == self.how["at_step"]:
                    self.how["do"]()
                if step % self.steps_a_turn == 0:
                    self.record.put((self.name, "turn over"))
                    self.slot.end_turn()
        except Closed:
            self.record.put((self.name, "closed"))
        finally:
            self.left_over = self.slot.leave()
            self.ended.set()


def take(record, count):
    return [record.get(timeout=10) for _ in range(count)]


@pytest.fixture
def turnstile():
    current = {}
    turnstile = Turnstile(lambda: dict(current), lambda state: (current.clear(), current.update(state or {})))
    yield turnstile
    turnstile.close()


def test_turns_do_not_overlap_and_a_parked_run_stays_parked(turnstile):
    record = queue.Queue()
    a, b = Run("a", turnstile, record), Run("b", turnstile, record)
    a.start(), b.start()
    for run, first in ((a, ["in"]), (b, ["in"]), (a, [])):
        turnstile.train(run.slot)
        seen = take(record, len(first) + 4)
        assert {name for name, _ in seen} == {run.name} and seen[-1][1] == "turn over"
    assert record.empty()


def test_a_parked_run_is_stopped_in_the_middle_of_anothers_turn_which_then_goes_on(turnstile):
    record = queue.Queue()
    b = Run("b", turnstile, record)
    a = Run("a", turnstile, record, at_step=2, do=lambda: turnstile.order(b.slot, "stop"))
    a.start(), b.start()
    turnstile.train(b.slot)
    take(record, 5)
    turnstile.train(a.slot)
    seen = take(record, 6)
    assert seen == [("a", "in"), ("a", 1), ("a", 2), ("b", "stop"), ("a", 3), ("a", "turn over")]
    assert b.ended.wait(10) and not a.ended.is_set()


def test_an_order_to_a_parked_run_is_carried_out_while_nobody_trains(turnstile):
    record = queue.Queue()
    a = Run("a", turnstile, record)
    a.start()
    turnstile.train(a.slot)
    take(record, 5)
    turnstile.order(a.slot, "save")
    assert take(record, 1) == [("a", "save")]
    turnstile.order(a.slot, "stop")
    assert take(record, 1) == [("a", "stop")] and a.ended.wait(10)


def test_closing_ends_every_thread(turnstile):
    record = queue.Queue()
    runs = [Run(name, turnstile, record) for name in "abc"]
    for run in runs:
        run.start()
    turnstile.close()
    assert all(run.ended.wait(10) for run in runs)


def test_a_seat_that_has_left_takes_no_orders_and_does_not_block_the_others(turnstile):
    record = queue.Queue()
    a, b = Run("a", turnstile, record), Run("b", turnstile, record)
    a.start(), b.start()
    turnstile.train(a.slot)
    take(record, 5)
    turnstile.order(a.slot, "stop")
    assert a.ended.wait(10) and a.left_over == []
    assert turnstile.order(a.slot, "save") is False
    turnstile.train(b.slot)
    assert take(record, 6)[-1] == ("b", "turn over")


def test_an_order_that_comes_as_a_run_steps_back_is_carried_out():
    record, late = queue.Queue(), ["save"]
    turnstile = Turnstile(lambda: late and turnstile.order(a.slot, late.pop()), lambda state: None)
    a = Run("a", turnstile, record)
    a.start()
    turnstile.train(a.slot)
    assert take(record, 6)[-2:] == [("a", "turn over"), ("a", "save")]
    turnstile.close()


def test_a_run_that_cannot_be_parked_or_taken_up_gives_the_floor_up():
    """Whatever capture and restore raise: a broken one, too, must not keep the others from training."""
    broken = {"capture": False, "restore": False}

    def fails(which):
        if broken[which]:
            broken[which] = False
            raise RuntimeError(which)

    turnstile, record = Turnstile(lambda: fails("capture"), lambda state: fails("restore")), queue.Queue()
    other = Run("other", turnstile, record)
    other.start()
    for which in ("restore", "capture"):
        run = Run(which, turnstile, record, at_step=1, do=lambda which=which: broken.update({which: True}))
        broken["restore"] = which == "restore"
        run.start()
        turnstile.train(run.slot)
        assert run.ended.wait(10)
    broken["capture"] = True  # as the last thing that a run does
    last = Run("last", turnstile, record)
    last.start()
    turnstile.order(last.slot, "stop")
    turnstile.train(last.slot)
    assert last.ended.wait(10)
    turnstile.train(other.slot)
    while record.get(timeout=10) != ("other", "turn over"):
        pass
    turnstile.close()
