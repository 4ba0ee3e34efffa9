"""One run thread at a time holds the lock: it trains until its turn ends, or carries out an order and steps back."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any


class Closed(BaseException):
    """Raised in a run's thread at its next step boundary once the turnstile is closed."""


class Turnstile:
    """`capture` and `restore` save and put back the process-wide state of the thread that holds the lock."""

    def __init__(self, capture: Callable[[], Any], restore: Callable[[Any], None]) -> None:
        self._capture = capture
        self._restore = restore
        self._change = threading.Condition()
        self._holder: Slot | None = None
        self._training: Slot | None = None
        self._waiting: deque[Slot] = deque()
        self._closed = False

    def train(self, slot: Slot) -> None:
        """Give `slot` the turn: it trains whenever no other slot has an order to carry out."""
        with self._change:
            self._training = slot
            self._pass()

    def order(self, slot: Slot, order: Any) -> bool:
        """Have `slot` carry out `order` at its next step boundary; a parked one does so at the holder's next.

        False where its thread has left already.
        """
        with self._change:
            if slot._left:
                return False
            slot._orders.append(order)
            slot._unseen = True
            if slot is not self._holder and slot not in self._waiting:
                self._waiting.append(slot)
            self._pass()
            return True

    def close(self) -> None:
        """End every run thread at its next step boundary."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _pass(self) -> None:
        if self._holder is None:
            self._holder = self._waiting.popleft() if self._waiting else self._training
            self._change.notify_all()


class Slot:
    """A run's place at the turnstile. All but `ordered` are called by the run's own thread.

    `held` is the time in seconds that the thread has held the lock.
    """

    def __init__(self, turnstile: Turnstile) -> None:
        self._turnstile = turnstile
        self._orders: deque[Any] = deque()
        self._unseen = False
        self._left = False
        self._state: Any = None
        self._since = 0.0
        self._held = 0.0

    @property
    def held(self) -> float:
        return self._held + time.perf_counter() - self._since

    @property
    def left(self) -> bool:
        """Whether its thread has given the lock up for good; it may still be alive for a moment."""
        return self._left

    def ordered(self, kind: type) -> bool:
        """Whether an order of this type waits."""
        return any(isinstance(order, kind) for order in tuple(self._orders))

    def enter(self) -> None:
        """Wait for the lock."""
        turnstile = self._turnstile
        with turnstile._change:
            turnstile._change.wait_for(lambda: turnstile._holder is self or turnstile._closed)
            if turnstile._closed:
                raise Closed
        turnstile._restore(self._state)
        self._since = time.perf_counter()

    def boundary(self, allowed: Callable[[Any], bool] = lambda order: True) -> Any | None:
        """Called between two steps: an order to carry out (call again after it), or None: train the next step.

        Parks while the turn is another's, and while others have orders to carry out. An order that is not `allowed`
        between these two steps waits for a later boundary.
        """
        turnstile = self._turnstile
        while True:
            if turnstile._closed:
                raise Closed
            self._unseen = False
            order = next((order for order in tuple(self._orders) if allowed(order)), None)
            if order is not None:
                self._orders.remove(order)
                return order
            with turnstile._change:
                if turnstile._training is self and not turnstile._waiting:
                    return None
            self._step_back()
            self.enter()

    def end_turn(self) -> None:
        with self._turnstile._change:
            if self._turnstile._training is self:
                self._turnstile._training = None

    def leave(self) -> list[Any]:
        """Give the lock up for good; returns the orders that were not carried out."""
        self.end_turn()
        with self._turnstile._change:
            self._left = True
            if self in self._turnstile._waiting:
                self._turnstile._waiting.remove(self)
        if self._turnstile._holder is self:
            self._pass_on()
        self._state = None
        return list(self._orders)

    def _step_back(self) -> None:
        self._state = self._turnstile._capture()
        self._held = self.held
        self._pass_on()

    def _pass_on(self) -> None:
        turnstile = self._turnstile
        with turnstile._change:
            turnstile._holder = None
            if self._unseen and not self._left:  # it came as this thread was about to step back
                turnstile._waiting.append(self)
            turnstile._pass()
