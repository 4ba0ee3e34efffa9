"""How a scheduler ends: when nothing is left to do, when it is told to, or when something fails that it cannot
survive."""

from __future__ import annotations

import queue
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rftui import messages
from rftui.errors import INTERRUPTED, UserError
from rftui.link_server import Server
from rftui.scheduler.incidents import LOG, Incidents, one_line
from rftui.scheduler.registry import Registry
from rftui.scheduler.turns import Turns
from rftui.scheduler.workers import Crew, Workers
from rftui.store import Unwritten
from rftui.tracking.outbox import Outbox

HOUSEKEEPING = 2.0
"""Seconds between two looks at what brings no message by itself."""

_LAST_SENDS = 30.0
"""Seconds that the end of everything waits for what is still to be sent to MLflow."""

_REMIND = 60.0
"""Seconds between two reminders that the disk is full."""

_LINGER = 10.0
"""Seconds that an idle scheduler waits for a viewer to come back."""


class Ending:
    """`begun`: no turn is given any longer. `interrupted`: every run stops at its next step. `trouble`: why nothing
    goes on, and `kept`: the database can still be written. `waits_for_viewers`: it stays, idle, for ops. `held`:
    reports that came while the disk was full, and are still to be taken in. `at_once`: how the user ends what an
    interrupt waits for."""

    def __init__(
        self,
        registry: Registry,
        server: Server,
        workers: Workers,
        turns: Turns,
        crew: Crew,
        incidents: Incidents,
        waits_for_viewers: bool,
    ) -> None:
        self.begun = False
        self.interrupted = False
        self.kept = True
        self.trouble: UserError | None = None
        self.waits_for_viewers = waits_for_viewers
        watched = f"kill -INT {registry.info.pid}" if waits_for_viewers else "Ctrl-C again"
        self.at_once = f"{watched} ends at once, losing the steps since the last checkpoints"
        self._registry = registry
        self._server = server
        self._workers = workers
        self._turns = turns
        self._crew = crew
        self._incidents = incidents
        self._alone_since = time.monotonic()
        self.held: deque[messages.Report] = deque()
        self._told_full = -_REMIND

    def finish(self) -> None:
        """End once no run is active."""
        self.waits_for_viewers = False

    def interrupt(self) -> None:
        """Stop every run at its next step, resumable, and end."""
        if self.interrupted:
            return
        self.interrupted = True
        text = "Pausing all runs at their next step"
        self._registry.set_info(self._registry.info.state, text)
        self._registry.log(f"{text} (reopening resumes them); {self.at_once}", None, "notice")
        self.begin()

    def look_after_viewers(self) -> None:
        self._server.forget_dead_viewers()
        if self._server.viewers:
            self._alone_since = time.monotonic()

    def look(self) -> None:
        """Begin to end where there is nothing left to do."""
        if self._crew.faults or self._crew.broken:
            self.begin()
        if self.begun or not self._turns.open or any(run.active for run in self._registry.runs.values()):
            if self._registry.info.state == "idle" and not self.begun:
                self._registry.set_info("running")
            return
        if self._turns.resident:  # a deleted run that is still to be freed
            return
        if self.waits_for_viewers and (self._server.viewers or time.monotonic() - self._alone_since < _LINGER):
            self._registry.set_info("idle")
            return
        self.begin()

    def begin(self) -> None:
        """Have every run saved and the workers end."""
        if not self.begun:
            self.begun = True
            for worker, device in self._registry.devices.items():
                if device.state == "ready":
                    self._server.task(worker, messages.Quit(save=True))
            self._workers.kill([name for name, device in self._registry.devices.items() if device.state != "ready"])

    def wait_for_room(self, trouble: Unwritten) -> None:
        """The disk is full under the database. Nothing is taken in until the next try, and so nothing is lost: workers
        train to the ends of their turns. Raises Unwritten where the user would rather end it."""
        if self.interrupted:
            raise trouble
        if time.monotonic() - self._told_full > _REMIND:
            self._told_full = time.monotonic()
            text = f"{trouble}; training pauses at the ends of the turns and goes on by itself when there is room"
            self._registry.tell(text)
            print(text, flush=True)
        until = time.monotonic() + HOUSEKEEPING
        while (left := until - time.monotonic()) > 0:
            try:
                message = self._server.inbox.get(timeout=left)
            except queue.Empty:
                return
            match message:
                case messages.Report():
                    self.held.append(message)
                case messages.Attach():
                    self._registry.welcome(message)
                case messages.Leave():
                    self._server.drop_viewer(message.viewer)
                case messages.Interrupt() | signal.Signals():
                    self.interrupted = True
                    raise trouble
                case messages.Command():
                    self._server.send(message.viewer, messages.Reply(message.id, False, str(trouble)))

    def give_up_unwritten(self, trouble: Unwritten) -> None:
        """The database cannot be written, so nothing that is trained could be kept. The workers end with a checkpoint;
        what the database has last is where the experiment is reopened."""
        self.kept = False
        name = self._registry.experiment.name
        text = f"{trouble}; mend that, and `rftui open {name}` goes on from the last checkpoints"
        self.give_up(UserError(text, code=INTERRUPTED))

    def give_up_broken(self, error: Exception) -> None:
        """What failed cannot be set aside: the workers end with a checkpoint of every run."""
        self._incidents.log("the scheduler", error)
        name = self._registry.experiment.name
        text = (
            f"the scheduler failed, and every run is saved: {one_line(error)} (a fault of rftui: the traceback is in "
            f"logs/{LOG}); `rftui open {name}` goes on"
        )
        self.give_up(UserError(text, code=INTERRUPTED))

    def give_up(self, trouble: UserError) -> None:
        """Nothing goes on: tell viewers, have every run saved, and wait until the workers have ended."""
        self.trouble, text = trouble, str(trouble)
        try:
            self._registry.tell(text)
        except Exception as error:
            self._incidents.log("telling viewers of it", error)
        self.begin()
        self._turns.free_unsaved()
        while self._workers.alive():
            try:
                message = self._server.inbox.get(timeout=HOUSEKEEPING)
            except queue.Empty:
                continue
            match message:
                case messages.Report(worker, incarnation, reports) if self._workers.current(worker, incarnation):
                    for report in reports:
                        if isinstance(report, messages.Unsaved):  # and would wait for room
                            self._server.task(worker, messages.Halt(report.run, save=False))
                case signal.Signals():
                    if self.interrupted:
                        self._workers.kill()
                    self.interrupted = True
                case messages.Attach():
                    self._registry.welcome(message)
                case messages.Command():
                    self._server.send(message.viewer, messages.Reply(message.id, False, text))

    def attempt(self, what: str, do: Callable[[], object]) -> None:
        """Whatever fails at the end must not keep the rest of it from being done."""
        try:
            do()
        except Unwritten as trouble:
            self.trouble = self.trouble or UserError(str(trouble), code=INTERRUPTED)
        except Exception as error:
            self._incidents.log(what, error)


def wait_until_sent(tracking: Outbox, inbox: queue.SimpleQueue[Any], answer: Callable[[Any], None]) -> str:
    """Wait for the tracking process, unless Ctrl-C says not to; what is to be said of one that has not ended. `answer`
    is given every other message that comes meanwhile."""
    until = time.monotonic() + _LAST_SENDS
    while not tracking.close(0.2):
        if time.monotonic() > until:
            return "tracking has not ended: what it does not send is sent when the experiment is opened"
        while not inbox.empty():
            message = inbox.get()
            if isinstance(message, signal.Signals):
                return "tracking goes on in the background; what it does not send is sent at the next open"
            answer(message)
    return ""
