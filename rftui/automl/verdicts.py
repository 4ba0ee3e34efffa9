"""What the rules decide at chunk ends: a function of the runs, their values there and what was decided before. Pure.

Runs of one fit and algo are compared with one another. A *rung* is the number of a chunk after which a rule judges a
run. What it decides there about a run is decided once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean, median
from typing import Any

from rftui.automl.rules import RFEarlyStopping, RFMedianStopping, RFSuccessiveHalving, Rule, greater_is_better
from rftui.formatting import format_number
from rftui.runs import DELETED, DONE, QUEUED, RUNNING, WAITING, Run

KEEP, STOP, PASS = "keep", "stop", "pass"
"""Outcomes; PASS: the rung is passed over, and the run goes on."""


@dataclass(frozen=True)
class End:
    """A chunk of a run has ended at `step`; `values`: metric -> what it was there."""

    step: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Verdict:
    """`reason` is why a run stops; for others it is "", or something that the user should know."""

    run: int
    rung: int
    outcome: str
    reason: str = ""


Ends = Mapping[int, Mapping[int, End]]
"""run -> chunk -> how it ended there. Where one step ended several chunks, only the last of them is there."""

Taken = Mapping[tuple[int, int], str]
"""(run, rung) -> what the rule decided."""


def chunk_value(metric: str, values: list[float]) -> float:
    """What a metric was at a chunk's end, from its values in the chunk in order: of an evaluation the last one, of the
    training their mean."""
    return values[-1] if metric.startswith("eval_") else mean(values)


def decide(rule: Rule, runs: Iterable[Run], ends: Ends, taken: Taken, after: Mapping[int, int]) -> list[Verdict]:
    """What the rule decides now and has not decided before. Where runs are stopped, ask again once they are.

    `after`: run -> the chunk past which the rule may judge it, where that is not the first.
    """
    groups: dict[tuple[int, str], list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.id):
        if run.state != DELETED:
            groups.setdefault((run.fit, run.algo), []).append(run)
    verdicts: list[Verdict] = []
    for members in groups.values():
        verdicts += _DECIDE[type(rule)](rule, _Group(rule, members, ends), taken, after)
    return verdicts


class _Group:
    """Runs that are compared with one another, by one metric. A score is smaller the better it is."""

    def __init__(self, rule: Rule, runs: list[Run], ends: Ends) -> None:
        self.runs = runs
        self.open = [run for run in runs if run.state in (QUEUED, RUNNING, WAITING) and not run.exempt]
        self._ends = ends
        self._averages: dict[tuple[int, int], float | None] = {}
        self.metric = rule.metric or self._usual()
        self._sign = -1.0 if greater_is_better(rule, self.metric) else 1.0

    def _usual(self) -> str:
        if self.runs[0].algo == "GRPO":
            return "reward"
        logged = any("eval_loss" in end.values for run in self.runs for end in self._of(run).values())
        return "eval_loss" if logged else "loss"

    def _of(self, run: Run) -> Mapping[int, End]:
        return self._ends.get(run.id, {})

    def newest(self, run: Run) -> int:
        return max(self._of(run), default=0)

    def end(self, run: Run, rung: int) -> End | None:
        """How the run stood once that chunk had ended; None where it has not."""
        if rung in self._of(run):
            return self._of(run)[rung]
        return self._of(run)[min(past)] if (past := [chunk for chunk in self._of(run) if chunk >= rung]) else None

    def value(self, run: Run, rung: int) -> float | None:
        end = self.end(run, rung)
        return end.values.get(self.metric) if end else None

    def score(self, run: Run, rung: int) -> float | None:
        """None where it has no value there. What is not a number is the worst."""
        return self._score(self.value(run, rung))

    def _score(self, value: float | None) -> float | None:
        return None if value is None else math.inf if math.isnan(value) else self._sign * value

    def scores(self, run: Run, last: int) -> dict[int, float]:
        """chunk -> score, in order, where there is one."""
        ends = self._of(run)
        found = {chunk: self._score(ends[chunk].values.get(self.metric)) for chunk in sorted(ends) if chunk <= last}
        return {chunk: score for chunk, score in found.items() if score is not None}

    def average(self, run: Run, last: int) -> float | None:
        """Its mean score up to that chunk; None where it has not come there, or has no score."""
        if (run.id, last) not in self._averages:
            scores = self.scores(run, last) if self.end(run, last) else {}
            self._averages[run.id, last] = _mean(tuple(scores.values())) if scores else None
        return self._averages[run.id, last]

    def shown(self, score: float) -> str:
        return format_number(self._sign * score)

    def in_warmup(self, run: Run, chunk: int) -> bool:
        end = self.end(run, chunk)
        return end is not None and end.step < _warmup(run)


@lru_cache(maxsize=8192)
def _mean(scores: tuple[float, ...]) -> float:
    """The same scores are asked for again at each chunk end of another run."""
    return mean(scores)


def _warmup(run: Run) -> float:
    """The step of the run's own at which its warm-up is over."""
    steps = (run.config.get("training_args") or {}).get("warmup_steps") or 0
    before = run.start_step if run.continue_schedule else 0  # it goes on with its parent's schedule
    return (math.ceil(steps * (before + run.total_steps)) if steps < 1 else steps) - before


# ---------------------------------------------------------------- successive halving


def _halve(rule: RFSuccessiveHalving, group: _Group, taken: Taken, after: Mapping[int, int]) -> list[Verdict]:
    past = max((after.get(run.id, 0) for run in group.runs), default=0)
    last = max(group.newest(run) for run in group.runs)
    for rung in rule.rungs():
        if rung > last:
            break
        if rung <= past:
            continue
        known = {run.id: taken[run.id, rung] for run in group.runs if (run.id, rung) in taken}
        fresh = [run for run in group.open if group.end(run, rung) and run.id not in known]
        if not known and _is_waited_for(group, rung, last):
            break
        if fresh:
            return _at_rung(rule, group, rung, fresh, known, taken)
    return []


def _is_waited_for(group: _Group, rung: int, last: int) -> bool:
    """Whether a run is about to come to the rung. Turns are fair, so that one that is two chunks behind another joined
    late or was set back: nobody waits for it, nor for clones."""
    return last < rung + 2 and any(run.parent is None and not group.end(run, rung) for run in group.open)


def _at_rung(
    rule: RFSuccessiveHalving, group: _Group, rung: int, fresh: list[Run], known: dict[int, str], taken: Taken
) -> list[Verdict]:
    """The verdicts on the runs that have come to a rung; on late ones against those that were judged there."""
    if PASS in known.values():
        return [Verdict(run.id, rung, PASS) for run in fresh]
    if not known:
        if young := [run for run in fresh if group.in_warmup(run, rung)]:
            why = f"nothing is decided after chunk {rung}: run {young[0].id} is still in its warm-up"
            return [Verdict(run.id, rung, PASS, why) for run in fresh]
        rivals = fresh + [run for run in group.runs if run.state == DONE and group.end(run, rung)]
        return _ranked(rule, group, rung, rivals, fresh, taken)
    verdicts = []
    for run in fresh:
        if group.in_warmup(run, rung):
            verdicts.append(Verdict(run.id, rung, KEEP))
        else:
            rivals = [other for other in group.runs if other.id in known]
            verdicts += _ranked(rule, group, rung, [*rivals, run], [run], taken)
    return verdicts


def _ranked(
    rule: RFSuccessiveHalving, group: _Group, rung: int, rivals: list[Run], judged: list[Run], taken: Taken
) -> list[Verdict]:
    """The verdicts on `judged`, which are among the `rivals`. Those without a value go on and take nobody's place."""
    scores = {run.id: score for run in rivals if (score := group.score(run, rung)) is not None}
    if not scores:
        why = f"nothing is decided after chunk {rung}: no run has logged {group.metric}"
        return [Verdict(run.id, rung, KEEP, why) for run in judged]
    ids = {run.id for run in group.runs}
    first = not any(run in ids and other < rung and outcome != PASS for (run, other), outcome in taken.items())
    places = math.ceil(len(scores) / (2 if first else rule.reduction_factor))
    order = sorted(scores, key=lambda run: (scores[run], run))
    cut = scores[order[places - 1]]
    # Runs that tie with the last one that goes on go on, too, but for what is no number.
    staying = set(order[:places]) | {run for run in order if scores[run] == cut < math.inf}
    verdicts = []
    for run in judged:
        outcome, why = KEEP, ""
        if run.id in scores and run.id not in staying:
            place = _ordinal(order.index(run.id) + 1)
            outcome = STOP
            why = (
                f"{_after(group, run, rung)} is {place} of {len(scores)}; "
                f"{len(staying)} {'goes' if len(staying) == 1 else 'go'} on"
            )
        verdicts.append(Verdict(run.id, rung, outcome, why))
    return verdicts


def _after(group: _Group, run: Run, rung: int) -> str:
    return f"{group.metric} {format_number(group.value(run, rung))} after chunk {rung} of {run.chunks}"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


# ---------------------------------------------------------------- the other rules


def _to_judge(group: _Group, taken: Taken, after: Mapping[int, int], least: int = 1) -> Iterator[tuple[Run, int]]:
    """The runs, each with the chunk that it has just ended, that are to be judged there."""
    for run in group.open:
        rung = group.newest(run)
        if rung < least or rung <= after.get(run.id, 0) or (run.id, rung) in taken or group.in_warmup(run, rung):
            continue
        yield run, rung


def _below_median(rule: RFMedianStopping, group: _Group, taken: Taken, after: Mapping[int, int]) -> list[Verdict]:
    verdicts = []
    for run, rung in _to_judge(group, taken, after, rule.min_chunks):
        own = group.scores(run, rung).values()
        others = (group.average(other, rung) for other in group.runs if other is not run)
        averages = [average for average in others if average is not None]
        if not own or len(averages) < rule.min_runs:
            continue
        best, middle = min(own), median(averages)
        outcome, why = (STOP if best > middle else KEEP), ""
        if outcome == STOP:
            why = (
                f"its best {group.metric} in {rung} of {run.chunks} chunks, {group.shown(best)}, is worse than "
                f"{group.shown(middle)}, the median of the averages of {len(averages)} others"
            )
        verdicts.append(Verdict(run.id, rung, outcome, why))
    return verdicts


def _impatient(rule: RFEarlyStopping, group: _Group, taken: Taken, after: Mapping[int, int]) -> list[Verdict]:
    verdicts = []
    for run, rung in _to_judge(group, taken, after):
        scores = group.scores(run, rung)
        if rung not in scores:
            continue
        best, best_chunk, waited = math.inf, 0, 0
        for chunk, score in scores.items():
            if group.in_warmup(run, chunk):
                continue
            if not best_chunk or score < best - rule.min_delta:
                best, best_chunk, waited = score, chunk, 0
            else:
                waited += 1
        outcome, why = (STOP if waited >= rule.patience else KEEP), ""
        if outcome == STOP:
            by = f" by more than {format_number(rule.min_delta)}" if rule.min_delta else ""
            ends = "chunk end" if waited == 1 else f"{waited} chunk ends"
            why = (
                f"{_after(group, run, rung)}; it has not become better{by} at the last {ends}, "
                f"its best is {group.shown(best)} after chunk {best_chunk}"
            )
        verdicts.append(Verdict(run.id, rung, outcome, why))
    return verdicts


_DECIDE: dict[type[Rule], Callable[[Any, _Group, Taken, Mapping[int, int]], list[Verdict]]] = {
    RFSuccessiveHalving: _halve,
    RFMedianStopping: _below_median,
    RFEarlyStopping: _impatient,
}
