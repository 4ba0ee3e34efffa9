"""The scheduler's loop: messages in, turns and ops out. It sleeps until something arrives."""

from __future__ import annotations

import queue
import signal
import time
from pathlib import Path
from typing import Any

from rftui import messages
from rftui.errors import DONE, FAILED, INTERRUPTED, UserError
from rftui.link_server import Server
from rftui.paths import ExperimentDir
from rftui.runs import FAILED as RUN_FAILED
from rftui.scheduler.control import Control
from rftui.scheduler.crew import Crew
from rftui.scheduler.headless import Printer
from rftui.scheduler.pruning import Rules
from rftui.scheduler.recovery import discard_deleted
from rftui.scheduler.registry import Registry
from rftui.scheduler.signals import caught
from rftui.scheduler.turns import Turns
from rftui.scheduler.workers import Workers
from rftui.store import Store, Unwritten
from rftui.tracking.outbox import Outbox
from rftui.tracking.outbox import start as start_tracking

_HOUSEKEEPING = 2.0
_LINGER = 10.0
"""Seconds that an idle scheduler waits for a viewer to come back."""


_LAST_SENDS = 30.0
"""Seconds that the end of everything waits for what is still to be sent to MLflow."""


def run(
    experiment: ExperimentDir,
    fit: int | None = None,
    *,
    rendezvous: Path | None = None,
    devices: str = "auto",
    viewer: bool = False,
) -> int:
    """Train the runs of `fit` that are to be trained (None: of all fits, taken up again), and serve viewers.

    Returns an exit code: 0 all done, 1 a run failed, 130 interrupted and resumable. Raises UserError where faults were
    found before any started, where another scheduler has the experiment, no worker can be started, or the database
    cannot be written any more (then with the code 130).
    """
    lock = experiment.lock()
    if lock is None:
        name = experiment.name
        raise UserError(f"{name} is already running; `rftui open {name}` attaches to it", code=FAILED)
    with lock:
        try:
            scheduler = Scheduler(experiment, fit, rendezvous, devices, viewer)
        except OSError as error:
            raise UserError(f"cannot write to {experiment.path}: {error.strerror}", code=FAILED) from error
        with caught(scheduler.server.inbox):
            return scheduler.serve()


class Scheduler:
    """Holds the parts together; `serve` is the loop."""

    def __init__(
        self, experiment: ExperimentDir, fit: int | None, rendezvous: Path | None, devices: str, viewer: bool
    ) -> None:
        self.experiment = experiment
        self.store = Store(experiment.db)
        self.server = Server(experiment, rendezvous)
        try:
            self.workers = Workers(experiment, self.store, self.server, devices)
        except UserError:
            self.server.close()
            raise
        self.registry = Registry(experiment, self.store, self.server, list(self.workers.slots))
        self.turns = Turns(self.registry, self.server, self.workers)
        self.turns.park()  # whatever an earlier scheduler was doing with them
        self.rules = Rules(self.registry)
        self.control = Control(self, self.registry, self.turns, self.rules)
        self.crew = Crew(self.registry, self.server, self.workers, self.turns, fit)
        self._viewer = viewer
        self._printer = Printer(self.registry)
        self._tracking: Outbox | None = None  # once there is something to track
        self._unwritten: UserError | None = None  # the database can take nothing more
        self._ending = False
        self._interrupted = False
        self._alone_since = time.monotonic()

    # ------------------------------------------------------------ what the ops need

    @property
    def ending(self) -> bool:
        """Whether no turn is given any more."""
        return self._ending

    def finish(self) -> None:
        """End once no run is active."""
        self._viewer = False

    def interrupt(self) -> None:
        """Stop every run at its next step, resumable, and end."""
        if self._interrupted:
            return
        self._interrupted = True
        self.registry.set_info(self.registry.info.state, "every run stops at its next step")
        self.registry.log("every run stops at its next step and goes on when the experiment is opened", None, "notice")
        self._end()

    # ------------------------------------------------------------ the loop

    def serve(self) -> int:
        """Until there is nothing left to do; the exit code."""
        try:
            self._loop()
        except Unwritten as trouble:
            self._give_up(trouble)
        finally:
            code = self._close()
        return code

    def _loop(self) -> None:
        tidied = 0.0
        while not (self._ending and not self.workers.alive()):
            if not self._ending and not self.crew.begun:
                self.crew.begin()
            self._hear()
            if self.turns.open and not self._tracking:
                self._tracking = start_tracking(self.experiment)
            if not self._ending:
                self.turns.assign()
            now = time.monotonic()
            if now - tidied > _HOUSEKEEPING:
                tidied = now
                self._tidy()
            if self.registry.due() == 0.0:
                self._flush()
            self._look_at_the_end()

    def _hear(self) -> None:
        """Wait for a message, until something else is due, and take what has come by then."""
        due = self.registry.due()
        timeout = _HOUSEKEEPING if due is None else due or 0.001
        try:
            self._receive(self.server.inbox.get(timeout=timeout if self.crew.begun else min(timeout, 0.1)))
            # Only what has come by now: workers could report faster than they are read.
            for _ in range(self.server.inbox.qsize()):
                self._receive(self.server.inbox.get())
        except queue.Empty:
            pass

    def _flush(self) -> None:
        self.registry.flush()
        if self._tracking:
            self._tracking.wake()
        if not (self._viewer or self.crew.faults):
            self._printer.print()

    def _receive(self, message: Any) -> None:
        match message:
            case messages.Report(worker, incarnation, reports):
                if self.workers.current(worker, incarnation):
                    for report in reports:
                        if not (self._ending and isinstance(report, messages.Gone)):
                            self.crew.hear(worker, report)
            case messages.Attach(viewer):
                self.registry.flush()
                self.server.send(viewer, self.registry.snapshot())
            case messages.Leave():
                self.server.drop_viewer(message.viewer)
            case messages.Command():
                self._command(message)
            case signal.Signals():
                self._signalled(message)
        if self.turns.open and not self._ending:
            for press in self.rules.presses():
                self.control.handle(press)

    def _command(self, command: messages.Command) -> None:
        try:
            reply = self.control.handle(command)
            self.registry.flush()
        except Unwritten as trouble:
            self.server.send(command.viewer, messages.Reply(command.id, False, str(trouble)))
            raise
        self.server.send(command.viewer, reply)

    def _signalled(self, number: signal.Signals) -> None:
        """The first ends it at the next step, the second at once. A terminal that hangs up says so more than once."""
        if self._interrupted and number != signal.SIGHUP:
            self.workers.kill()
        self.interrupt()

    # ------------------------------------------------------------ the end

    def _tidy(self) -> None:
        self.server.forget_dead_viewers()
        if self.server.viewers:
            self._alone_since = time.monotonic()
        self.turns.retries.look(self.turns.resident)
        self.registry.estimate(len(self.workers.slots))
        for notice in self._tracking.notices() if self._tracking else ():
            self.registry.log(notice, None, "notice")

    def _look_at_the_end(self) -> None:
        if self.crew.faults or self.crew.broken:
            self._end()
        if self._ending or not self.turns.open or any(run.active for run in self.registry.runs.values()):
            if self.registry.info.state == "idle" and not self._ending:
                self.registry.set_info("running")
            return
        if self.turns.resident:  # a deleted run that is still to be freed
            return
        if self._viewer and (self.server.viewers or time.monotonic() - self._alone_since < _LINGER):
            self.registry.set_info("idle")
            return
        self._end()

    def _end(self) -> None:
        if not self._ending:
            self._ending = True
            for worker, device in self.registry.devices.items():
                if device.state == "ready":
                    self.server.task(worker, messages.Quit(save=True))
            self.workers.kill([name for name, device in self.registry.devices.items() if device.state != "ready"])

    def _give_up(self, trouble: Unwritten) -> None:
        """The database cannot be written, so nothing that is trained could be kept. The workers end with a checkpoint;
        what the database has last is where the experiment is taken up."""
        name = self.experiment.name
        text = f"{trouble}; mend that, and `rftui open {name}` goes on from the last checkpoints"
        self._unwritten = UserError(text, code=INTERRUPTED)
        self.registry.tell(text)
        self._end()
        self.turns.free_unsaved()
        while self.workers.alive():
            try:
                message = self.server.inbox.get(timeout=_HOUSEKEEPING)
            except queue.Empty:
                continue
            match message:
                case messages.Report(worker, incarnation, reports) if self.workers.current(worker, incarnation):
                    for report in reports:
                        if isinstance(report, messages.Unsaved):  # and would wait for room
                            self.server.task(worker, messages.Halt(report.run, save=False))
                case signal.Signals():
                    if self._interrupted:
                        self.workers.kill()
                    self._interrupted = True
                case messages.Attach(viewer):
                    self.server.send(viewer, self.registry.snapshot())
                case messages.Command():
                    self.server.send(message.viewer, messages.Reply(message.id, False, text))

    def _close(self) -> int:
        self.workers.end(10.0)
        if not self._unwritten:
            try:
                self._put_down()
            except Unwritten as trouble:
                self._give_up(trouble)
        if not (self._viewer or self._unwritten or self.crew.faults):
            self._printer.summary()
        self._let_tracking_end()
        self.store.close()
        self.server.close()  # last: a viewer that waits for the end leaves when its link is lost
        if self._unwritten:
            raise self._unwritten
        if self.crew.broken:
            raise UserError(self.crew.broken, code=FAILED)
        if self.crew.faults:
            raise UserError(*self.crew.faults)
        runs = self.registry.runs.values()
        if any(run.active for run in runs):
            return INTERRUPTED
        return FAILED if any(run.state == RUN_FAILED for run in runs) else DONE

    def _put_down(self) -> None:
        """Keep what the workers said last, and how everything stands."""
        while not self.server.inbox.empty():
            self._receive(self.server.inbox.get())
        if self.crew.begun:
            self.turns.snapshots.all_lost()
            discard_deleted(self.registry)
        left = any(run.active for run in self.registry.runs.values())
        if left:
            self.turns.park()
        self.registry.set_info("interrupted" if left else "done")
        self._flush()

    def _let_tracking_end(self) -> None:
        """Wait until all is sent, unless Ctrl-C says not to: the tracking process then goes on by itself."""
        until = time.monotonic() + _LAST_SENDS
        while self._tracking and not self._tracking.close(0.2) and time.monotonic() < until:
            while not self.server.inbox.empty():
                match message := self.server.inbox.get():
                    case signal.Signals():
                        return
                    case messages.Attach() | messages.Leave():
                        self._receive(message)
                    case messages.Command():
                        self.server.send(message.viewer, self.control.too_late(message))
