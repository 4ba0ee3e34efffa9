"""The scheduler's loop: messages in, turns and ops out. It sleeps until something arrives."""

from __future__ import annotations

import queue
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rftui import messages
from rftui.faults import DONE, FAILED, INTERRUPTED, Fault
from rftui.link import Server
from rftui.paths import ExperimentDir, newest_checkpoint
from rftui.runs import DELETED, STOPPED, STOPPING, Run
from rftui.runs import DONE as RUN_DONE
from rftui.runs import FAILED as RUN_FAILED
from rftui.scheduler.board import Board
from rftui.scheduler.control import Control
from rftui.scheduler.headless import Printer
from rftui.scheduler.store import Store
from rftui.scheduler.turns import Turns
from rftui.scheduler.workers import Workers
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

    Returns an exit code: 0 all done, 1 a run failed, 130 interrupted and resumable. Raises Fault where faults were
    found before any started, where another scheduler has the experiment, or where no worker can be started.
    """
    lock = experiment.lock()
    if lock is None:
        name = experiment.name
        raise Fault(f"{name} is already running; `rftui open {name}` attaches to it", code=FAILED)
    with lock:
        scheduler = Scheduler(experiment, fit, rendezvous, devices, viewer)
        with scheduler.signals():
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
            self.workers = Workers(experiment, self.server, devices)
        except Fault:
            self.server.close()
            raise
        self.board = Board(experiment, self.store, self.server, list(self.workers.slots))
        self.turns = Turns(self.board, self.server, self.workers)
        self.control = Control(self)
        self._fit = fit
        self._viewer = viewer
        self._printer = Printer(self.board)
        self._tracking: Outbox | None = None  # once there is something to track
        self._faults: list[str] = []
        self._broken = ""  # why no worker can be started
        self._early_deaths: Counter[str] = Counter()
        self._ending = False
        self._interrupted = False
        self._alone_since = time.monotonic()

    # ------------------------------------------------------------ what the ops need

    @property
    def resident(self) -> dict[int, str]:
        return self.turns.resident

    @property
    def pinning(self) -> dict[int, int]:
        return self.turns.pinning

    @property
    def ending(self) -> bool:
        """Whether no turn is given any more."""
        return self._ending

    def halt(self, run: Run, why: str) -> None:
        self.turns.halt(run, why)

    def go_back(self, run: Run, checkpoint: Path | None) -> None:
        self.turns.go_back(run, checkpoint)

    def task(self, worker: str, message: Any) -> None:
        self.server.task(worker, message)

    def finish(self) -> None:
        """End once no run is active."""
        self._viewer = False

    def interrupt(self) -> None:
        """Stop every run at its next step, resumable, and end."""
        if self._interrupted:
            return
        self._interrupted = True
        self.board.set_info(self.board.info.state, "every run stops at its next step")
        self.board.log("every run stops at its next step and goes on when the experiment is opened", None, "notice")
        self._end()

    # ------------------------------------------------------------ the loop

    def serve(self) -> int:
        """Until there is nothing left to do; the exit code."""
        self.board.set_info("loading", "the workers import torch and TRL")
        for name in self.workers.slots:
            self.board.devices[name].pid = self.workers.start(name)
            self.board.touch_device(name)
        self._take_up()
        tidied = 0.0
        try:
            while not (self._ending and not self.workers.alive()):
                timeout = self.board.due()
                try:
                    message = self.server.inbox.get(timeout=_HOUSEKEEPING if timeout is None else timeout or 0.001)
                    self._receive(message)
                    # Only what has come by now: workers could report faster than they are read.
                    for _ in range(self.server.inbox.qsize()):
                        self._receive(self.server.inbox.get())
                except queue.Empty:
                    pass
                if not self._ending:
                    self.turns.assign()
                now = time.monotonic()
                if now - tidied > _HOUSEKEEPING:
                    tidied = now
                    self._tidy()
                if self.board.due() == 0.0:
                    self._flush()
                self._look_at_the_end()
        finally:
            code = self._close()
        return code

    def _flush(self) -> None:
        self.board.flush()
        if self._tracking:
            self._tracking.wake()
        if not (self._viewer or self._faults):
            self._printer.print()

    def _receive(self, message: Any) -> None:
        match message:
            case messages.Report(worker, incarnation, reports):
                if self.workers.current(worker, incarnation):
                    for report in reports:
                        self._report(worker, report)
            case messages.Attach(viewer):
                self.board.flush()
                self.server.send(viewer, self.board.snapshot())
            case messages.Command(op="leave"):
                self.server.drop_viewer(message.viewer)
            case messages.Command():
                reply = self.control.handle(message)
                self.board.flush()
                self.server.send(message.viewer, reply)
            case signal.Signals():
                self._signalled()

    def _report(self, worker: str, report: Any) -> None:
        match report:
            case messages.Ready(pid):
                self._ready(worker, pid)
            case messages.Schema(fields):
                self.board.set_schema(fields)
            case messages.Checked():
                self._checked(report)
            case messages.Gauge(used, total, load):
                device = self.board.devices[worker]
                device.memory_used, device.memory_total, device.load = used, total, load
                self.board.touch_device(worker, urgent=False)
            case messages.Note(text, run, level):
                self.board.log(text, self.board.runs.get(run or 0), level)
            case messages.Gone(status):
                self._gone(worker, status)
            case messages.Pinned(_, clones):
                for clone in clones:
                    if clone in self.pinning and not self.control.pinned(self.board.runs[clone]):
                        self.turns.fail(self.board.runs[clone], "its parent's weights were not linked whole")
            case _:
                self.turns.report(worker, report)

    # ------------------------------------------------------------ workers

    def _ready(self, worker: str, pid: int) -> None:
        device = self.board.devices[worker]
        device.state, device.pid = "ready", pid
        self.board.touch_device(worker)
        if worker == next(iter(self.workers.slots)):
            if not self.board.schema:
                algos = sorted({run.algo for run in self.board.runs.values()})
                self.server.task(worker, messages.Describe(algos))
            if self._fit is not None and not self.turns.open:
                runs = [run for run in self.board.runs.values() if run.fit == self._fit]
                self.board.set_info("loading", "the configs are checked")
                self.server.task(worker, messages.Check(self._fit, runs))
        if self._fit is None:
            self._open_turns()

    def _checked(self, answer: messages.Checked) -> None:
        for run, text in answer.notices:
            self.board.log(text, self.board.runs.get(run or 0), "notice")
        for run, text in answer.faults:
            named = self.board.runs.get(run or 0)
            self._faults.append(f"run {named.id} {named.name}: {text}" if named else text)
            self.board.log(text, named, "error")
        if self._faults:
            self._end()
        else:
            self._open_turns()

    def _open_turns(self) -> None:
        self.turns.open = True
        self._tracking = self._tracking or start_tracking(self.experiment)
        self.board.set_info("running")

    def _gone(self, worker: str, status: int) -> None:
        if self._ending:
            return
        device = self.board.devices[worker]
        early = device.state != "ready" or not self.turns.open
        self._early_deaths[worker] = self._early_deaths[worker] + 1 if early else 0
        words = self.workers.last_words(worker)
        device.state = "lost"
        self.board.touch_device(worker)
        self.turns.lost(worker)
        if self._early_deaths[worker] > 1:
            self._broken = f"worker {worker} could not start: {words}; see {self.workers.log(worker)}"
            self.board.log(self._broken, None, "error")
            self._end()
            return
        self.board.log(f"worker {worker} died (status {status}: {words}) and is started again", None, "error")
        device.pid, device.state = self.workers.start(worker), "starting"

    # ------------------------------------------------------------ beginning and end

    def _take_up(self) -> None:
        """Runs that an earlier scheduler left go on from their last committed checkpoint."""
        for run in self.board.runs.values():
            if run.active:
                stopping = run.state == STOPPING
                self.turns.go_back(run, newest_checkpoint(self.experiment.run(run.id).checkpoints))
                run.state = STOPPED if stopping else run.state
            if run.warm and not run.start_step and not self.control.pinned(run) and run.active:
                self.turns.fail(run, "the experiment ended before its parent's weights were pinned")
        self.board.store.commit()

    def _tidy(self) -> None:
        self.server.forget_dead_viewers()
        if self.server.viewers:
            self._alone_since = time.monotonic()
        self.board.estimate(len(self.workers.slots))
        for notice in self._tracking.notices() if self._tracking else ():
            self.board.log(notice, None, "notice")

    def _look_at_the_end(self) -> None:
        if self._ending or not self.turns.open or any(run.active for run in self.board.runs.values()):
            if self.board.info.state == "idle" and not self._ending:
                self.board.set_info("running")
            return
        if self.turns.resident:  # a deleted run that is still to be freed
            return
        if self._viewer and (self.server.viewers or time.monotonic() - self._alone_since < _LINGER):
            self.board.set_info("idle")
            return
        self._end()

    def _end(self) -> None:
        if not self._ending:
            self._ending = True
            for worker, device in self.board.devices.items():
                if device.state == "ready":
                    self.server.task(worker, messages.Quit(save=True))
            self.workers.kill([name for name, device in self.board.devices.items() if device.state != "ready"])

    def _close(self) -> int:
        self.workers.end(10.0)
        while not self.server.inbox.empty():
            self._receive(self.server.inbox.get())
        for run in self.board.runs.values():
            if run.state == DELETED:
                shutil.rmtree(self.experiment.run(run.id).path, ignore_errors=True)
        left = any(run.active for run in self.board.runs.values())
        if left:
            self.turns.park()
        self.board.set_info("interrupted" if left else "done")
        self._flush()
        if not (self._viewer or self._faults):
            self._printer.summary()
        self._let_tracking_end()
        self.store.close()
        self.server.close()  # last: a viewer that waits for the end leaves when its link is lost
        if self._broken:
            raise Fault(self._broken, code=FAILED)
        if self._faults:
            raise Fault(*self._faults)
        if left:
            return INTERRUPTED
        ended = [run for run in self.board.runs.values() if run.state in (RUN_DONE, RUN_FAILED)]
        return FAILED if any(run.state == RUN_FAILED for run in ended) else DONE

    def _let_tracking_end(self) -> None:
        """Wait until all is sent, unless Ctrl-C says not to: the tracking process then goes on by itself."""
        until = time.monotonic() + _LAST_SENDS
        while self._tracking and not self._tracking.close(0.2) and time.monotonic() < until:
            while not self.server.inbox.empty():
                match message := self.server.inbox.get():
                    case signal.Signals():
                        return
                    case messages.Attach() | messages.Command(op="leave"):
                        self._receive(message)
                    case messages.Command():
                        self.server.send(message.viewer, self.control.too_late(message))

    # ------------------------------------------------------------ signals

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM: the first ends at the next step, the second at once. Only on the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            signal.signal(number, lambda number, _: self.server.inbox.put(signal.Signals(number)))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signalled(self) -> None:
        if self._interrupted:
            self.workers.kill()
        self.interrupt()
