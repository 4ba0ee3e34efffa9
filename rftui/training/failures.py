"""What a run failed of: in one line, with the place in the user's own code, and whether it can be tried again."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import torch

from rftui.errors import UserError
from rftui.training.process_state import NoDirectory

_FULL = re.compile(r"out of memory|can't allocate memory|cannot allocate memory|not enough memory|_ALLOC_FAILED", re.I)
_DEAD_CHILD = re.compile(r"DataLoader worker \(pid")
_UNREGISTERED = re.compile(
    r"does not recognize this architecture|Unrecognized (configuration class|model)|is not registered|"
    r"Unknown (model|loss) type",
    re.I,
)

_NOT_THE_USERS = tuple(
    str(folder)
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(__file__).parents[1])
)


def line(error: BaseException, log: Path | None = None) -> str:
    """`error` in one line; one that is not meant for users is told with the place and the `log` of its traceback."""
    if isinstance(error, UserError):
        return error.lines[0]
    what = "".join(traceback.format_exception_only(error)[-1:]).strip().split("\n")[0]  # also where str() raises
    what = what.removeprefix(f"{type(error).__module__}.") or type(error).__name__
    told = f"{what.rstrip('.')}{place(error)}{unregistered(error)}"
    return f"{told}; see {log}" if log else told


def place(error: BaseException) -> str:
    """Where the user's own code failed: its function, file and line; nothing where none of it was being run."""
    for part in _chain(error):
        if frames := [(frame, number) for frame, number in traceback.walk_tb(part.__traceback__) if _users(frame)]:
            code, number = frames[-1][0].f_code, frames[-1][1]
            return f" in {code.co_qualname.rpartition('<locals>.')[2]} ({code.co_filename}, line {number})"
    return ""


def unregistered(error: BaseException) -> str:
    """What to do about a kind of model that the libraries do not know: a script may have made it known to itself."""
    if any(_UNREGISTERED.search(_text(part)) for part in _chain(error)):
        return (
            "; workers do not run the script: what it registers or patches goes into a function for "
            "run_fit(setup_fn=...)"
        )
    return ""


def cause(error: BaseException) -> str:
    """What kind of failure `error` is, as `messages.Failed` says it."""
    chain = list(_chain(error))
    if isinstance(error, NoDirectory):
        return "directory"
    if any(isinstance(part, (torch.OutOfMemoryError, MemoryError)) or _FULL.search(_text(part)) for part in chain):
        return "memory"
    # A child that dies while a batch is fetched from it is still alive for torch, which passes the broken link on.
    broken = isinstance(error, (ConnectionError, EOFError)) and any(
        frame.f_code.co_filename == torch.utils.data.dataloader.__file__
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )
    return "child" if broken or _DEAD_CHILD.search(_text(error)) else ""


def device_fault(device: torch.device) -> str:
    """Why nothing can be computed on the device any more; "" where it can.

    After some errors (an illegal access, a failed assertion in a kernel) CUDA answers every call of the process with
    an error. A device that is full is alive.
    """
    try:
        torch.ones(1, device=device).add_(1).item()
    except Exception as error:
        if cause(error) != "memory":
            return line(error)
    return ""


def forget(error: BaseException) -> None:
    """Let go of the trainer that the frames of a traceback hold, so that its memory is freed."""
    current: BaseException | None = error
    while current:
        with suppress(Exception):  # a generator of the user's that does not want to end
            traceback.clear_frames(current.__traceback__)
        current.__traceback__ = None
        current = current.__context__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those that led to it."""
    current: BaseException | None = error
    while current:
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error))


def _users(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not (
        file.startswith(("<frozen", *_NOT_THE_USERS)) or {"site-packages", "dist-packages"} & set(Path(file).parts)
    )
