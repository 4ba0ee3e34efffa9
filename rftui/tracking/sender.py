"""What goes from an experiment's database to a tracker: each thing once, in order, whatever fails in between."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from rftui.runs import DELETED, DONE, FAILED, QUEUED, STOPPED, Run
from rftui.tracking.ledger import Entry, Ledger, Point

log = logging.getLogger("rftui.tracking")

_STATUS = {DONE: "FINISHED", FAILED: "FAILED", STOPPED: "KILLED", DELETED: "DELETED", QUEUED: "SCHEDULED"}
_ENDED = ("FINISHED", "FAILED", "KILLED")


class Tracks(Protocol):
    """A tracker, as far as the sender knows it."""

    def open(self) -> None: ...
    def create(self, run: Run) -> str: ...
    def log_params(self, tracker_run: str, params: dict[str, str]) -> None: ...
    def log_changes(self, tracker_run: str, changes: dict[str, str]) -> None: ...
    def log_points(self, tracker_run: str, points: list[Point]) -> None: ...
    def last_step(self, tracker_run: str, metric: str) -> int: ...
    def log_artifacts(self, tracker_run: str, run: Run) -> None: ...
    def set_status(self, tracker_run: str, status: str) -> None: ...
    def delete(self, tracker_run: str) -> None: ...


class Sender:
    """Brings a tracker up to date with the database; the outbox is written after each thing that succeeded.

    `lasting` says of an error that trying again will not help; the run it belongs to is then left alone.
    """

    def __init__(self, ledger: Ledger, tracker: Tracks, lasting: Callable[[Exception], bool], batch: int) -> None:
        self._ledger = ledger
        self._tracker = tracker
        self._lasting = lasting
        self._batch = batch
        self._failures: Counter[int] = Counter()
        self._given_up: set[int] = set()

    def send(self, closing: bool = False) -> list[str]:
        """Send what is pending; what the user should know of runs that cannot be tracked any more.

        `closing`: no scheduler will go on with the runs, so none of them is running. Raises the first error that may
        pass by itself.
        """
        self._tracker.open()
        notices = []
        entries = self._ledger.entries()
        # A run that failed last time comes last, so that it cannot keep the others from being sent.
        for run in sorted(self._ledger.runs(), key=lambda run: (self._failures[run.id], run.id)):
            if run.id in self._given_up:
                continue
            try:
                self._bring_up(run, entries.get(run.id) or Entry(run.id), closing)
            except Exception as error:
                self._failures[run.id] += 1
                if not self._lasting(error):
                    raise
                log.exception("run %d is not tracked any more", run.id)
                self._given_up.add(run.id)
                notices.append(f"MLflow refuses run {run.id}, which is not tracked any more: {one_line(error)}")
        return notices

    def _bring_up(self, run: Run, entry: Entry, closing: bool) -> None:
        status = _STATUS.get(run.state, "RUNNING")
        if (closing and run.active) or (run.state == DELETED and run.before):  # which may still be brought back
            status = "KILLED"
        if status == "DELETED":
            self._delete(entry)
            return
        if entry.tracker_run is None:
            entry.tracker_run = self._tracker.create(run)
            self._ledger.save(entry)
        self._send_params(run, entry, entry.tracker_run)
        self._send_points(entry, entry.tracker_run)
        if status != entry.status:
            if status in _ENDED:
                self._tracker.log_artifacts(entry.tracker_run, run)
            self._tracker.set_status(entry.tracker_run, status)
            entry.status = status
            self._ledger.save(entry)

    def _delete(self, entry: Entry) -> None:
        if entry.tracker_run and entry.status != "DELETED":
            self._tracker.delete(entry.tracker_run)
            entry.status = "DELETED"
            self._ledger.save(entry)

    def _send_params(self, run: Run, entry: Entry, tracker_run: str) -> None:
        texts = {knob: str(value) for knob, value in run.to_dict()["knobs"].items()}
        digests = {knob: hashlib.sha256(text.encode()).hexdigest()[:16] for knob, text in texts.items()}
        fresh = [knob for knob in texts if knob not in entry.params]
        changed = [knob for knob in texts if knob not in fresh and entry.params[knob] != digests[knob]]
        if fresh:
            self._tracker.log_params(tracker_run, {knob: texts[knob] for knob in fresh})
        if changed:
            self._tracker.log_changes(tracker_run, {knob: texts[knob] for knob in changed})
        if fresh or changed:
            entry.params |= digests
            self._ledger.save(entry)

    def _send_points(self, entry: Entry, tracker_run: str) -> None:
        for metric in entry.sending:  # a crash, or a lost answer, came between sending them and noting it
            entry.steps[metric] = max(entry.steps.get(metric, -1), self._tracker.last_step(tracker_run, metric))
        entry.sending = []
        while points := self._ledger.points(entry.run, entry.last_seq, self._batch):
            news = [point for point in points if point.step > entry.steps.get(point.metric, -1)]
            if news:
                entry.sending = sorted({point.metric for point in news})
                self._ledger.save(entry)
                self._tracker.log_points(tracker_run, news)
            entry.steps |= {point.metric: point.step for point in news}
            entry.sending = []
            entry.last_seq = points[-1].seq
            self._ledger.save(entry)


def one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
