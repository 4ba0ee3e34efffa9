"""A text in the user's own editor."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from textual.app import App, SuspendNotSupported

from rftui.errors import UserError


def _command() -> list[str]:
    """The command that edits a file. Raises UserError where there is none."""
    for name in ("VISUAL", "EDITOR"):
        if command := shlex.split(os.environ.get(name, "")):
            return command
    for known in ("vi", "nano"):
        if shutil.which(known):
            return [known]
    raise UserError("No editor found; set $EDITOR")


def edit(app: App[Any], text: str, suffix: str) -> str:
    """What the user's editor makes of `text`, while the app is out of the way. Raises UserError where that cannot be.

    `suffix` tells the editor what kind of text it is.
    """
    command = _command()
    with tempfile.TemporaryDirectory(prefix="rftui-") as folder:
        path = Path(folder, f"rftui{suffix}")
        path.write_text(text, encoding="utf-8")
        try:
            with app.suspend(), _interrupts_are_the_editors():
                status = subprocess.call([*command, str(path)])
            written = path.read_text(encoding="utf-8", errors="replace")
        except SuspendNotSupported:
            raise UserError("This terminal can't run an editor") from None
        except OSError as error:
            what = "left no file to read" if error.filename == str(path) else "cannot be started"
            raise UserError(f"{command[0]} {what}: {error.strerror}") from None
        if status:
            raise UserError(f"{command[0]} exited with code {status}; nothing changed")
        return written


@contextmanager
def _interrupts_are_the_editors() -> Iterator[None]:
    """A Ctrl-C typed in the editor reaches all processes of the terminal: it must not end the viewer afterwards.

    Nor is a SIGTERM lost that comes meanwhile: it acts when the editor has ended.
    """
    came: list[int] = []
    wakeup = signal.set_wakeup_fd(-1)  # asyncio's: whatever comes through it acts later
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda got, _: came.append(got)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        if signal.SIGTERM in came:
            signal.raise_signal(signal.SIGTERM)
