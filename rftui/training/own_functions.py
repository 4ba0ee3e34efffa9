"""The functions of the user's that a run calls as it trains, and what they keep between their calls.

Each run has its own, as a process of its own would; what they keep goes into checkpoints and comes back as the run is
resumed. Evaluations that leave no trace call copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from rftui.config.pickles import LIMIT, Unpickler, by_value, dumps, importable
from rftui.config.spec import plain_value
from rftui.training.rewards import checked, listed

_FILE = "functions.pkl"
_STATELESS = ("trl", "functools", "evaluate", "rftui")
"""Packages whose functions keep nothing in their modules."""


class OwnFunctions:
    """The reward functions and the metrics function of one run's config, which are nobody else's objects.

    `rewards` and `metrics` are what its trainer gets. Reward models, and names of some, are the trainer's own affair.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        given = listed(config.get("reward_funcs") or [])
        self._called: list[Any] = [*given, config.get("compute_metrics")]
        self._kept = self._called
        self._told = False
        self.rewards = checked(given, lambda number: self._called[number])
        self.metrics = self._metrics() if self._called[-1] is not None else None

    def _metrics(self) -> Callable[..., Any]:
        @wraps(self._called[-1])
        def metrics(*args: Any, **kwargs: Any) -> Any:
            return self._called[-1](*args, **kwargs)

        metrics.__qualname__ = str(plain_value(self._called[-1]))  # an object has none that `wraps` could take over
        return metrics

    @property
    def _names(self) -> str:
        return ", ".join(str(plain_value(function)) for function in self._kept if _stateful(function))

    def _state(self) -> bytes:
        """What the functions keep now. Raises what their own pickling raises."""
        with by_value():
            return dumps([function if _stateful(function) else None for function in self._kept], LIMIT)

    def notices(self) -> list[str]:
        """What cannot be each run's own: the variables of installed modules, which a process has once."""
        owners = [function if hasattr(function, "__qualname__") else type(function) for function in self._called]
        return [
            f"{owner.__qualname__} is imported from {owner.__module__}: what that module itself keeps is shared by "
            "the runs of a worker, and is lost at a stop"
            for owner, function in zip(owners, self._called, strict=True)
            if _stateful(function) and owner.__module__.split(".")[0] not in _STATELESS and importable(owner)
        ]

    def save(self, folder: Path) -> str | None:
        """Write what they keep into `folder`; why that is not possible, where it is not."""
        if not any(map(_stateful, self._kept)):
            return None
        try:
            (folder / _FILE).write_bytes(self._state())
        except OSError:
            raise
        except Exception as error:  # a user's __reduce__ may raise anything
            return f"what {self._names} kept could not be saved ({_line(error)})"
        return None

    def load(self, folder: Path) -> None:
        """Go on with what was kept in `folder`, if it was."""
        if (folder / _FILE).is_file():
            self._called[:] = self._merged(Unpickler((folder / _FILE).read_bytes()).load())

    def _merged(self, functions: list[Any]) -> list[Any]:
        return [own if own is not None else given for own, given in zip(functions, self._kept, strict=True)]

    @contextmanager
    def copied(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Within it, copies of the reward functions are called. Those that cannot be copied are called themselves,
        which `tell` is told once."""
        rewards = self._kept[:-1]
        try:
            copies = self._merged(Unpickler(self._state()).load())[:-1] if any(map(_stateful, rewards)) else rewards
        except Exception as error:
            copies = rewards
            if not self._told:
                self._told = True
                tell(f"evaluations call {self._names} too, and what it keeps goes on in them: {_line(error)}")
        self._called = [*copies, self._kept[-1]]
        try:
            yield
        finally:
            self._called = self._kept


def _stateful(function: Any) -> bool:
    return function is not None and not isinstance(function, (str, torch.nn.Module))


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
