"""The fair rule, held against any schedule that a simulator comes up with."""

import heapq
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rftui.runs import DONE, QUEUED, RUNNING, STOPPED, STOPPING, WAITING, Run
from rftui.scheduler.policy import Move, Start, choose, entry_turns


def waiting(number, turns=0, fit=1, state=WAITING):
    return Run(number, str(number), fit=fit, turns=turns, state=state)


class Simulation:
    """Runs of given turn lengths on some workers. `choose` is asked after every event, as the loop does."""

    def __init__(self, lengths, chunks, workers, halt=0.05, worth=True):
        self.runs = {number: waiting(number, state=QUEUED) for number in range(1, len(lengths) + 1)}
        self.lengths = dict(enumerate(lengths, 1))
        self.chunks, self.halt, self.worth = chunks, halt, worth
        self.idle = {f"w{number}" for number in range(workers)}
        self.resident, self.moving, self.events = {}, set(), []
        self.starts, self.moves, self.time, self.order = [], 0, 0.0, count()

    def later(self, seconds, what, run, worker=None):
        heapq.heappush(self.events, (self.time + seconds, next(self.order), what, run, worker))

    def decide(self):
        worth = self.runs if self.worth else ()
        for step in choose(self.runs.values(), self.idle, self.resident, moving=self.moving, worth_moving=worth):
            run = self.runs[step.run]
            if isinstance(step, Move):
                assert run.state == WAITING and self.resident[run.id] not in self.idle
                self.moving.add(run.id)
                self.moves += 1
                self.later(self.halt, "halted", run.id)
                continue
            assert run.state in (QUEUED, WAITING) and run.id not in self.moving and step.worker in self.idle
            assert self.resident.get(run.id, step.worker) == step.worker
            others = [each.turns for each in self.runs.values() if each.state != DONE]
            assert run.turns == min(others), "a run overtook another"
            run.turns, run.state = run.turns + 1, RUNNING
            self.resident[run.id] = step.worker
            self.idle.remove(step.worker)
            self.starts.append(run.id)
            self.later(self.lengths[run.id], "end", run.id, step.worker)

    def run(self):
        self.decide()
        while self.events:
            self.time, _, what, number, worker = heapq.heappop(self.events)
            run = self.runs[number]
            if what == "halted":
                self.moving.remove(number)
                del self.resident[number]
            else:
                self.idle.add(worker)
                run.chunk += 1
                run.state = DONE if run.chunk == self.chunks else WAITING
                if run.state == DONE:
                    del self.resident[number]
            self.decide()
        assert all(run.state == DONE for run in self.runs.values()), "it came to a halt"
        return self

    @property
    def bound(self):
        lengths = self.lengths.values()
        return self.chunks * max(sum(lengths) / (len(self.idle)), max(lengths))


lengths = st.lists(st.floats(0.1, 3.0), min_size=1, max_size=7)


@given(lengths, st.integers(1, 5), st.integers(1, 4), st.booleans())
@settings(max_examples=150, deadline=None)
def test_no_run_ever_overtakes_another_and_all_come_to_their_end(lengths, chunks, workers, worth):
    Simulation(lengths, chunks, workers, worth=worth).run()


@given(lengths, st.integers(2, 4), st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_every_run_starts_its_first_chunk_before_any_starts_its_second(lengths, chunks, workers):
    starts = Simulation(lengths, chunks, workers).run().starts
    assert sorted(starts[: len(lengths)]) == list(range(1, len(lengths) + 1))


def test_three_runs_on_two_workers_keep_both_busy():
    done = Simulation([1.0] * 3, 16, 2).run()
    assert done.time < 1.03 * done.bound


def test_runs_stay_where_they_are_while_each_worker_has_its_share():
    assert Simulation([1.0] * 4, 16, 2).run().moves == 0


def test_short_turns_are_not_worth_a_move_between_workers_with_like_shares():
    runs = [waiting(1, turns=2, state=RUNNING), waiting(2, turns=1), waiting(3, turns=2)]
    held = {1: "w0", 2: "w0", 3: "w1"}
    assert choose(runs, ["w1"], held) == []
    assert choose(runs, ["w1"], held, worth_moving={2}) == [Move(2)]


def test_a_worker_that_comes_late_gets_its_share_even_of_short_turns():
    runs = [waiting(number, turns=1) for number in range(1, 5)]
    runs[0].state, runs[0].turns = RUNNING, 2
    held = dict.fromkeys(range(1, 5), "w0")
    assert choose(runs, ["w1"], held) == [Move(2)]
    assert choose(runs, ["w1"], held, moving={2}) == []
    assert choose(runs, ["w1"], {1: "w0", 3: "w0", 4: "w0"}) == [Start(2, "w1")]


def test_a_run_that_moves_keeps_its_turn():
    runs = [waiting(1, turns=2), waiting(2, turns=2, state=RUNNING), waiting(3, turns=1)]
    held = {1: "w1", 2: "w0", 3: "w0"}
    assert choose(runs, ["w1"], held, worth_moving={3}) == [Move(3)]
    assert choose(runs, ["w1"], held, moving={3}, worth_moving={3}) == []


def test_a_worker_prefers_what_it_holds_then_what_nobody_holds():
    runs = [waiting(1), waiting(2), waiting(3)]
    assert choose(runs, ["w1"], {1: "w0", 3: "w1"}) == [Start(3, "w1")]
    assert choose(runs, ["w1"], {1: "w0"}) == [Start(2, "w1")]
    assert choose(runs, ["w0", "w1"], {}) == [Start(1, "w0"), Start(2, "w1")]


def test_blocked_runs_and_other_fits_hold_nobody_back():
    clone, ahead = waiting(1), waiting(2, turns=3)
    assert choose([clone, ahead], ["w0"], {}, blocked={1}) == [Start(2, "w0")]
    assert choose([waiting(1, state=STOPPED), ahead], ["w0"], {}) == [Start(2, "w0")]
    assert choose([waiting(1, fit=1, state=RUNNING), waiting(2, turns=3, fit=2)], ["w0"], {}) == [Start(2, "w0")]


@pytest.mark.parametrize(
    ("states", "turns"),
    [([WAITING, RUNNING], 4), ([STOPPED, RUNNING], 6), ([STOPPING, RUNNING], 6), ([DONE, STOPPED], 0)],
)
def test_a_late_joiner_enters_with_the_smallest_count_in_force(states, turns):
    runs = [waiting(1, 4, state=states[0]), waiting(2, 6, state=states[1])]
    assert entry_turns(runs, 1) == turns
    assert entry_turns([*runs, waiting(3, 1)], 1, blocked=[3]) == turns
