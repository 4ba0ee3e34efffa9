"""A process of the fuzz: forked from one that has imported everything, and killed where it hangs."""

import faulthandler
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HANG = 40.0
"""Seconds after which a process hangs: all that it waits for by itself is shorter."""


@dataclass
class Ended:
    """How a forked process ended: its exit code, what it wrote, and whether it had to be killed."""

    code: int
    text: str
    hung: bool = False


class Forked:
    """A child that runs `body` and exits with what that returns; its output goes to a file."""

    def __init__(self, output: Path, body: Callable[[], int]) -> None:
        self.output, self._begun = output, time.monotonic()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                os.setsid()
                file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                os.dup2(file, 1), os.dup2(file, 2)
                sys.stdout, sys.stderr = (
                    io.TextIOWrapper(open(1, "wb", 0, closefd=False), write_through=True),
                    sys.stdout,
                )
                sys.stderr = io.TextIOWrapper(open(2, "wb", 0, closefd=False), write_through=True)
                faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
                code = body()
            except BaseException:
                traceback.print_exc()
            os._exit(code)

    def poll(self) -> Ended | None:
        done, status = os.waitpid(self.pid, os.WNOHANG)
        if done:
            return Ended(os.waitstatus_to_exitcode(status), self.output.read_text(errors="replace"))
        if time.monotonic() - self._begun < HANG:
            return None
        os.kill(self.pid, signal.SIGUSR1)  # where every thread is
        time.sleep(0.5)
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return Ended(-9, self.output.read_text(errors="replace"), hung=True)
