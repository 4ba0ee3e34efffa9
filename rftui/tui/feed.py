"""What the scheduler sends, brought to the app from a thread that touches no widget and waits for none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from rftui.errors import UserError
from rftui.link import LinkLost, numbered
from rftui.messages import Snapshot
from rftui.session import Session

MOST = 2000
"""Messages that wait for an app that is busy, as behind an open editor; then a fresh snapshot stands for them."""


class Receiver(Protocol):
    """The app; all of this happens in its own thread."""

    def call_later(self, callback: Callable[[], None]) -> Any: ...
    def receive(self, messages: list[Any]) -> None: ...
    def show_launch(self, tail: list[str]) -> None: ...
    def link_lost(self) -> None: ...
    def not_served(self, fault: UserError) -> None:
        """No scheduler came up, or none could be started."""


class Feed:
    """`follow` runs in a thread until the scheduler or the viewer ends. The app is called once for all that waits."""

    def __init__(self, app: Receiver, session: Session) -> None:
        self._app = app
        self._session = session
        self._lock = threading.Lock()
        self._called = False
        self._messages: list[Any] = []
        self._stale = False  # some were dropped: no update counts before the next snapshot,
        self._refresh = False  # which is yet to be asked for
        self._tail: list[str] | None = None
        self._end: Callable[[], None] | None = None

    @property
    def waiting(self) -> int:
        """Messages that the app has not taken yet."""
        return len(self._messages)

    def follow(self) -> None:
        session = self._session
        while not session.left:
            try:
                messages = session.poll(0.5)
            except LinkLost:
                return self._give(end=self._app.link_lost)
            except UserError as fault:
                return self._give(end=partial(self._app.not_served, fault))
            if messages:
                self._give(messages)
            elif not session.up and session.launch:
                self._give(tail=session.launch.tail(8))

    def _give(
        self, messages: list[Any] | None = None, tail: list[str] | None = None, end: Callable[[], None] | None = None
    ) -> None:
        with self._lock:
            for message in messages or ():
                self._stale &= not isinstance(message, Snapshot)
                if not (self._stale and numbered(message)):
                    self._messages.append(message)
            if len(self._messages) > MOST:
                self._messages = [message for message in self._messages if not numbered(message)]
                self._stale = self._refresh = True
            self._tail = tail or self._tail
            self._end = end or self._end
            if self._called:
                return
            self._called = True
        self._app.call_later(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            self._called = False
            messages, self._messages = self._messages, []
            tail, self._tail = self._tail, None
            end, self._end = self._end, None
            refresh, self._refresh = self._refresh, False
        if messages:
            self._app.receive(messages)
        if refresh:
            self._session.refresh()
        if tail is not None:
            self._app.show_launch(tail)
        if end:
            end()
