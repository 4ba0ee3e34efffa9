"""`python -m rftui.tracking EXPERIMENT_DIR`: the process that sends an experiment's database to a tracker.

Each line on stdin is a wake-up. The end of stdin, or the death of the process that started this one, means: send
everything, set the final statuses, and end. What the user should know goes to stdout, a line each. Exit code: 0, or
REFUSED where trying again cannot help; after anything else it may be started again.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from rftui.paths import ExperimentDir
from rftui.redaction import hide_credentials
from rftui.tracking.outbox import REFUSED
from rftui.tracking.sender import log
from rftui.tracking.service import Service
from rftui.tracking.trackers import target


class Log(io.TextIOBase):
    """A text file into which no credentials get, whoever writes: a tracker's library logs the addresses it calls."""

    def __init__(self, file: TextIO, hide: Callable[[str], str]) -> None:
        self._file = file
        self._hide = hide

    def write(self, text: str) -> int:
        self._file.write(self._hide(text))
        self._file.flush()
        return len(text)

    def fileno(self) -> int:
        return self._file.fileno()


def main(argv: list[str]) -> int:
    experiment = ExperimentDir(Path(argv[0]))
    told = os.dup(1)
    os.set_blocking(told, False)
    os.dup2(2, 1)  # what the tracker's library prints goes to the log
    os.umask(0o077)
    os.nice(5)
    where = target(experiment.home)
    secrets = where.secrets
    sys.stdout = sys.stderr = Log(sys.stderr, lambda text: hide_credentials(text, secrets))
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")

    def say(line: str) -> None:
        """To the scheduler's event log; lost where nobody reads."""
        try:
            os.write(told, line.encode(errors="replace") + b"\n")
        except OSError:
            pass

    if fault := where.fault:
        say(f"not tracked: {fault}")
        return REFUSED
    service = Service(experiment, where, say)
    code = 0
    try:
        service.run(0)
    except BaseException:
        log.exception("the tracking process fails")
        code = 1
    logging.shutdown()
    os._exit(code)  # a thread that waits for the tracker must not hold the process


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
