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
from rftui.scheduler.ending import HOUSEKEEPING, Ending, wait_until_sent
from rftui.scheduler.headless import Printer
from rftui.scheduler.hosts import WorkerHost
from rftui.scheduler.incidents import LOG, Incidents, log_traceback, one_line
from rftui.scheduler.pruning import Rules
from rftui.scheduler.recovery import discard_deleted
from rftui.scheduler.registry import Registry
from rftui.scheduler.signals import caught
from rftui.scheduler.turns import Turns
from rftui.scheduler.watch import Watch
from rftui.scheduler.workers import Crew, Workers
from rftui.store import Store, Unwritten
from rftui.tracking.outbox import Outbox
from rftui.tracking.outbox import start as start_tracking


def run(
    experiment: ExperimentDir,
    fit: int | None = None,
    *,
    rendezvous: Path | None = None,
    devices: str = "auto",
    viewer: bool = False,
    host: WorkerHost | None = None,
) -> int:
    """Train the runs of `fit` that are to be trained (None: of all fits, taken up again), and serve viewers.

    Returns an exit code: 0 all done, 1 a run failed, 130 interrupted and resumable. Raises UserError where faults were
    found before any started, where another scheduler has the experiment, no worker can be started, or the database
    cannot be written any more (then with the code 130).
    """
    with experiment.hold():
        try:
            scheduler = Scheduler(experiment, fit, rendezvous, devices, viewer, host)
        except UserError:
            raise
        except OSError as error:
            raise UserError(f"cannot write to {experiment.path}: {error.strerror}", code=FAILED) from error
        except Exception as error:
            log_traceback(experiment, "opening the experiment", error)
            raise UserError(
                f"cannot open {experiment.name}: {one_line(error)} (a fault of rftui: the traceback is in logs/{LOG})",
                code=FAILED,
            ) from error
        with caught(scheduler.server.inbox):
            return scheduler.serve()


class Scheduler:
    """Holds the parts together; `serve` is the loop."""

    def __init__(
        self,
        experiment: ExperimentDir,
        fit: int | None,
        rendezvous: Path | None,
        devices: str,
        viewer: bool,
        host: WorkerHost | None = None,
    ) -> None:
        self.experiment = experiment
        self.store = Store(experiment.db)
        self.server = Server(experiment, rendezvous)
        try:
            self._assemble(fit, devices, viewer, host)
        except BaseException:
            self.server.close()
            raise

    def _assemble(self, fit: int | None, devices: str, viewer: bool, host: WorkerHost | None) -> None:
        self.workers = Workers(self.experiment, self.store, self.server, devices, host)
        self.registry = Registry(self.experiment, self.store, self.server, list(self.workers.slots))
        self.incidents = Incidents(self.registry)
        self.turns = Turns(self.registry, self.server, self.incidents)
        self.turns.park()  # whatever an earlier scheduler was doing with them
        self.rules = Rules(self.registry)
        self.crew = Crew(self.registry, self.server, self.workers, self.turns, fit)
        self.ending = Ending(self.registry, self.server, self.workers, self.turns, self.crew, self.incidents, viewer)
        self.store.when_full = self.ending.wait_for_room
        self.control = Control(self.ending, self.registry, self.turns, self.rules)
        self._watch = Watch(self.registry, self.ending)
        self._printer = Printer(self.registry, fit)
        self._tracking: Outbox | None = None  # once there is something to track
        self._unshown: list[messages.Attach] = []  # what could not be shown, to be tried again

    # ------------------------------------------------------------ the loop

    def serve(self) -> int:
        """Until there is nothing left to do; the exit code."""
        try:
            self._loop()
        except Unwritten as trouble:
            self.ending.give_up_unwritten(trouble)
        except UserError as trouble:
            self.ending.give_up(trouble)
        except Exception as error:
            self.ending.give_up_broken(error)
        return self.close()

    def _loop(self) -> None:
        tidied = 0.0
        while not (self.ending.begun and not self.workers.alive()):
            if not self.ending.begun and not self.crew.begun:
                self.crew.begin()
            self._hear()
            if self.turns.open and not self._tracking:
                self._tracking = start_tracking(self.experiment)
            if not self.ending.begun:
                self.incidents.guarded("giving out turns", self.turns.assign)
            now = time.monotonic()
            if now - tidied > HOUSEKEEPING:
                tidied = now
                self._tidy()
            if self.registry.due() == 0.0:
                self.incidents.guarded("keeping what changed", self._flush)
            self.incidents.guarded("looking for the end", self.ending.look)

    def _hear(self) -> None:
        """Wait for a message, until something else is due, and take what has come by then."""
        self._take_held()
        due = self.registry.due()
        timeout = HOUSEKEEPING if due is None else due or 0.001
        try:
            self.receive(self.server.inbox.get(timeout=timeout if self.crew.begun else min(timeout, 0.1)))
            # Only what has come by now: workers could report faster than they are read.
            for _ in range(self.server.inbox.qsize()):
                self._take_held()
                self.receive(self.server.inbox.get_nowait())  # a wait for room may have taken it
        except queue.Empty:
            pass
        self._take_held()

    def _take_held(self) -> None:
        """Take in what came while the disk was full, before anything that came later."""
        while self.ending.held:
            self.receive(self.ending.held.popleft())

    def _flush(self) -> None:
        self.registry.flush()
        if self._tracking:
            self._tracking.wake()
        if not (self.ending.waits_for_viewers or self.crew.faults):
            self._printer.print()

    def receive(self, message: Any) -> None:
        """Take in one message; what goes wrong with it is told, and ends nothing else."""
        match message:
            case messages.Report(worker, incarnation, reports):
                if self.workers.current(worker, incarnation):
                    self._watch.heard(worker, reports)
                    for report in reports:
                        if not (self.ending.begun and isinstance(report, messages.Gone)):
                            self._heard(worker, report)
            case messages.Attach():
                self._show(message)
            case messages.Leave():
                self.server.drop_viewer(message.viewer)
            case messages.Command():
                self._command(message)
            case signal.Signals():
                self._signalled(message)
        if self.turns.open and not self.ending.begun:
            self.incidents.guarded("judging by the rules", self._obey_rules)

    def _heard(self, worker: str, report: Any) -> None:
        """A report that cannot be taken in is set aside: its run goes back to where its files say that it is."""
        try:
            self.crew.hear(worker, report)
        except UserError:
            raise
        except Exception as error:
            self.incidents.note(f"taking in {type(report).__name__} of worker {worker}", error)
            self.crew.recover(worker, report)

    def _show(self, attach: messages.Attach) -> None:
        try:
            self.registry.flush()
            self.registry.welcome(attach)
        except UserError:
            raise
        except Exception as error:
            self.incidents.note("showing the experiment to a viewer", error)
            self._unshown.append(attach)

    def _obey_rules(self) -> None:
        for press in self.rules.presses():
            self.control.handle(press)

    def _command(self, command: messages.Command) -> None:
        try:
            reply = self.control.handle(command)
            self.registry.flush()
        except Unwritten as trouble:
            self.server.send(command.viewer, messages.Reply(command.id, False, str(trouble)))
            raise
        except Exception as error:
            self.incidents.note(f"keeping the answer to {command.op}", error)
            text = f"{command.op} may not be done: {one_line(error)} (a fault of rftui)"
            reply = messages.Reply(command.id, False, text)
        self.server.send(command.viewer, reply)

    def _signalled(self, number: signal.Signals) -> None:
        """The first ends it at the next step, the second at once. A terminal that hangs up says so more than once."""
        if self.ending.interrupted and number != signal.SIGHUP:
            self.workers.kill()
        self.ending.interrupt()

    # ------------------------------------------------------------ the end

    def _tidy(self) -> None:
        unshown, self._unshown = self._unshown, []
        for attach in unshown:
            self._show(attach)
        guarded = self.incidents.guarded
        guarded("looking after viewers", self.ending.look_after_viewers)
        guarded("saving runs that wait for room on the disk", self.turns.retries.look)
        guarded("estimating the time that is left", lambda: self.registry.estimate(len(self.workers.slots)))
        guarded("watching what is waited for", self._watch.look)
        guarded("hearing the tracker", self._hear_tracker)

    def _hear_tracker(self) -> None:
        for notice in self._tracking.notices() if self._tracking else ():
            self.registry.log(notice, None, "notice")

    def close(self) -> int:
        """Put everything down; the exit code, or what ended it raised."""
        self.ending.attempt("ending the workers", lambda: self.workers.end(10.0))
        if self.ending.kept:
            try:
                self._put_down()
            except Unwritten as trouble:
                self.ending.give_up_unwritten(trouble)
            except Exception as error:
                self.ending.give_up_broken(error)
        if not (self.ending.waits_for_viewers or self.ending.trouble or self.crew.faults):
            self.ending.attempt("printing the summary", self._printer.summary)
        self.ending.attempt("ending the tracker", self._let_tracking_end)
        self.ending.attempt("closing the database", self.store.close)
        self.ending.attempt("closing the link", self.server.close)  # last: a viewer leaves when its link is lost
        if self.ending.trouble:
            raise self.ending.trouble
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
        self._take_held()
        while not self.server.inbox.empty():
            self.receive(self.server.inbox.get())
            self._take_held()
        if self.crew.begun:
            self.turns.snapshots.all_lost()
            discard_deleted(self.registry)
        left = any(run.active for run in self.registry.runs.values())
        if left:
            self.turns.park()
        self.registry.set_info("interrupted" if left else "done")
        self._flush()

    def _let_tracking_end(self) -> None:
        """Wait until all is sent, unless Ctrl-C says not to, and say what was not sent."""
        if not self._tracking:
            return
        text = wait_until_sent(self._tracking, self.server.inbox, self._answer_late)
        notices = self._tracking.notices() + ([text] if text else [])
        if notices and not self.ending.trouble:
            for notice in notices:
                self.registry.log(notice, None, "notice")
            self.registry.flush()
            if not (self.ending.waits_for_viewers or self.crew.faults):
                self._printer.print()

    def _answer_late(self, message: Any) -> None:
        match message:
            case messages.Attach() | messages.Leave():
                self.receive(message)
            case messages.Command():
                self.server.send(message.viewer, self.control.too_late(message))
