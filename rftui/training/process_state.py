"""The process-wide state that a trainer leaves behind and finds again: random generators, accelerate's singletons,
torch's switches and the working directory.

Two trainers that take turns in one process would otherwise draw from one generator, and a sibling's
`sync_gradients=False` would silently skip optimizer steps.
"""

from __future__ import annotations

import os
import random
from typing import Any, NamedTuple

import numpy
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState

from rftui.errors import UserError

_SINGLETONS = (PartialState, AcceleratorState, GradientState)


class Rng(NamedTuple):
    """The states of Python's, NumPy's, torch's and (where CUDA is in use) the current GPU's generator."""

    python: Any
    numpy: Any
    torch: torch.Tensor
    cuda: torch.Tensor | None


def rng() -> Rng:
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return Rng(random.getstate(), numpy.random.get_state(), torch.random.get_rng_state(), cuda)


def set_rng(state: Rng) -> None:
    random.setstate(state.python)
    numpy.random.set_state(state.numpy)
    torch.random.set_rng_state(state.torch)
    if state.cuda is not None:
        torch.cuda.set_rng_state(state.cuda)


class Switches(NamedTuple):
    """What the training arguments full_determinism and tf32 switch for the whole process."""

    deterministic: bool
    warn_only: bool
    cudnn_deterministic: bool
    cudnn_benchmark: bool
    fp32_precision: str


def _switches() -> Switches:
    return Switches(
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        torch.backends.fp32_precision,  # type: ignore[attr-defined]
    )


def _set_switches(switches: Switches) -> None:
    torch.use_deterministic_algorithms(switches.deterministic, warn_only=switches.warn_only)
    torch.backends.cudnn.deterministic = switches.cudnn_deterministic
    torch.backends.cudnn.benchmark = switches.cudnn_benchmark
    torch.backends.fp32_precision = switches.fp32_precision  # type: ignore[attr-defined]


_AT_FIRST = _switches()


class NoDirectory(UserError):
    """The directory that the relative paths of a run are meant from is not there; nothing else is wrong with it."""


def work_in(directory: str | None) -> None:
    """Make it the working directory; None is one that was removed meanwhile. Raises NoDirectory."""
    if directory == _directory():
        return
    try:
        os.chdir(directory or "")
    except OSError as error:
        where = f"the script's directory {directory}" if directory else "its working directory"
        raise NoDirectory(f"{where} cannot be entered ({error.strerror}): put it back, then resume") from error


def _directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


class ProcessState(NamedTuple):
    rng: Rng
    singletons: list[dict[str, Any]]
    switches: Switches
    directory: str | None


def capture() -> ProcessState:
    shared = [dict(singleton._shared_state) for singleton in _SINGLETONS]
    return ProcessState(rng(), shared, _switches(), _directory())


def restore(state: ProcessState | None) -> None:
    """Put `state` back; None is the state of a process in which no trainer was made yet (its generators are seeded
    by the trainer itself). The dictionaries are refilled, never replaced: every live object points at them. Raises
    NoDirectory."""
    for number, singleton in enumerate(_SINGLETONS):
        singleton._shared_state.clear()
        if state:
            singleton._shared_state.update(state.singletons[number])
    now = state.switches if state else _AT_FIRST
    if now != _switches():
        _set_switches(now)
    if state:
        set_rng(state.rng)
        work_in(state.directory)
