"""What the tracking process does: send at each wake-up, and say what does not arrive."""

from __future__ import annotations

import fcntl
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any

from rftui.paths import ExperimentDir, how_to_open
from rftui.redaction import hide_credentials
from rftui.tracking.ledger import Ledger, count_unsent
from rftui.tracking.sender import Sender, log
from rftui.tracking.trackers import Target

_PAUSE = 1.0
"""Seconds between two sends: metrics of a busy second travel together."""

_LONGEST_WAIT = 60.0


class Service:
    """Sends in a thread of its own, so that a tracker that does not answer cannot keep it from saying so.

    `say` is told what the user should know, a line each. After `slow` seconds of one send the user hears what has not
    arrived; what has not arrived `last_tries` seconds after the end was asked for is left for the next time.
    """

    def __init__(
        self,
        experiment: ExperimentDir,
        target: Target,
        say: Callable[[str], Any],
        *,
        slow: float = 20.0,
        last_tries: float = 25.0,
    ) -> None:
        self._experiment = experiment
        self._target = target
        self._secrets = target.secrets
        self._say = say
        self._slow = slow
        self._last_tries = last_tries
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._ended, self._given_up = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._sender: Sender | None = None
        self._since: float | None = None
        """When the send began that is not over."""
        self._troubled = False
        self._told_slow = False
        self._sent_all = False

    def run(self, wakes: int) -> None:
        """Until the end of the file `wakes` or the death of the process that started this one, and then until all is
        sent or the time is up. Raises what the sending thread died of."""
        parent, deadline = os.getppid(), None
        os.set_blocking(wakes, False)
        threading.Thread(target=self._work, name="sender", daemon=True).start()
        while not self._ended.wait(0.05 if deadline else 0):
            if deadline is None:
                # A process that the scheduler forked may hold the other end open after the scheduler's death.
                if not self._awake(wakes) or os.getppid() != parent:
                    deadline = time.monotonic() + self._last_tries
                    self._closing.set()
                    self._wake.set()
            elif time.monotonic() > deadline:
                self._given_up.set()
                break
            self._look()
        if self._error:
            raise self._error
        if not self._sent_all:
            self._tell_what_is_left()

    def tell(self, text: str) -> None:
        self._say(self._plain(text))

    def _plain(self, text: str) -> str:
        """On one line, without credentials."""
        return hide_credentials(" ".join(text.split()), self._secrets)

    def _awake(self, wakes: int) -> bool:
        """Wait a while for a wake-up; False at the end of them."""
        if not select.select([wakes], [], [], 1.0)[0]:
            return True
        self._wake.set()
        return bool(os.read(wakes, 65536))

    # ------------------------------------------------------------ the sending thread

    def _work(self) -> None:
        try:
            with open(self._experiment.logs / "tracking.lock", "w") as lock:
                # The tracking process of a scheduler before this one may still be sending the same points.
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._send_all()
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()

    def _send_all(self) -> None:
        tracker = self._target.connect(self._experiment)
        ledger, wait = Ledger(self._experiment), _PAUSE
        self._sender = Sender(ledger, tracker)
        while not self._sent_all:
            self._wake.clear()
            closing = self._closing.is_set()  # after that, lest the wake-up of the end is lost
            self._since = time.monotonic()
            try:
                for notice in self._sender.send(closing):
                    self.tell(f"{self._target} {notice}")
            except Exception as error:
                log.exception("tracking failed; it is tried again in %.0f s", wait)
                if not self._troubled:
                    why = self._plain(tracker.explain(error))  # alone: what follows is no part of an address
                    self._say(f"{self._target} {why}; what is missing there is sent again later")
                self._troubled, self._since = True, None
                # Each is over at once when the end begins, and tried again then as at first.
                if closing:
                    if self._given_up.wait(wait):
                        break
                elif self._closing.wait(wait):
                    wait = _PAUSE
                    continue
                wait = min(2 * wait, _LONGEST_WAIT)
                continue
            self._since = None
            if self._troubled or self._told_slow:
                self.tell(f"{self._target} has everything again")
            wait, self._troubled, self._told_slow = _PAUSE, False, False
            self._sent_all = closing
            if not closing:
                self._closing.wait(_PAUSE)
                self._wake.wait()
        ledger.close()

    # ------------------------------------------------------------ what does not arrive

    def _look(self) -> None:
        """Tell once if a send takes long."""
        since = self._since
        if since is None or self._troubled or self._told_slow or time.monotonic() - since < self._slow:
            return
        self._told_slow = True
        self.tell(f"{self._target} is slow: {self._missing()} not there yet; training does not wait for it")

    def _tell_what_is_left(self) -> None:
        how = how_to_open(self._experiment)
        self.tell(f"{self._target} did not take everything: {self._missing()} not there; `{how}` sends the rest")

    def _missing(self) -> str:
        given_up = self._sender.given_up if self._sender else ()
        try:
            points = count_unsent(self._experiment, set(given_up))
        except Exception as error:  # it is only about the number
            log.exception("cannot count what is not sent")
            return f"an unknown number of points ({type(error).__name__}) is"
        return f"{points:,} points are" if points else "the last states of runs are"
