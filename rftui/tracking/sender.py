"""What goes from an experiment's database to a tracker: each thing once, in order, whatever fails in between."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter

from rftui.runs import DELETED, DONE, FAILED, QUEUED, STOPPED, Run
from rftui.tracking.ledger import Entry, Ledger
from rftui.tracking.trackers import Tracker

log = logging.getLogger("rftui.tracking")

_STATUS = {DONE: "FINISHED", FAILED: "FAILED", STOPPED: "KILLED", DELETED: "DELETED", QUEUED: "SCHEDULED"}
_ENDED = ("FINISHED", "FAILED", "KILLED")


class Sender:
    """Brings a tracker up to date with the experiment; what was sent is noted after each thing that succeeded.

    A run for which trying again will not help is left alone from then on, and is in `given_up`.
    """

    def __init__(self, ledger: Ledger, tracker: Tracker) -> None:
        self._ledger = ledger
        self._tracker = tracker
        self._runs: dict[int, Run] = {}
        self._due: set[int] = set()
        self._failures: Counter[int] = Counter()
        self.given_up: set[int] = set()

    def send(self, closing: bool = False) -> list[str]:
        """Send what is pending; what the user should know of runs that are not tracked any more, each the end of a
        sentence that begins with the tracker's name.

        `closing`: no scheduler will go on with the runs, so none of them is running. Raises the first error that may
        pass by itself.
        """
        self._tracker.open()
        self._ledger.gather()
        for run in self._ledger.changed_runs():
            self._runs[run.id] = run
            self._due.add(run.id)
        self._due |= self._runs.keys() if closing else self._ledger.queued() & self._runs.keys()
        notices = []
        # A run that failed last time comes last, so that it cannot keep the others from being sent.
        for number in sorted(self._due - self.given_up, key=lambda number: (self._failures[number], number)):
            try:
                self._bring_up(self._runs[number], self._ledger.entry(number), closing)
            except Exception as error:
                self._failures[number] += 1
                if not self._tracker.lasting(error):
                    raise
                log.exception("run %d is not tracked any more", number)
                self.given_up.add(number)
                notices.append(f"refuses run {number}, which is not tracked any more: {self._tracker.explain(error)}")
            self._due.discard(number)
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
        self._ledger.drop(entry.run)

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
        if entry.sending:  # a crash, or a lost answer, came between sending them and noting it
            last = [(metric, self._tracker.last_step(tracker_run, metric)) for metric in entry.sending]
            self._ledger.arrived(entry, [(metric, step) for metric, step in last if step >= 0])
        while points := self._ledger.points(entry.run, self._tracker.batch):
            entry.sending = sorted({point.metric for point in points})
            self._ledger.save(entry)
            self._tracker.log_points(tracker_run, points)
            self._ledger.arrived(entry, {point.metric: point.step for point in points}.items())
