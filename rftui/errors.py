"""The one exception that a user sees: a line that says what is wrong and what to do."""

from __future__ import annotations

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: done; a run failed, or what was asked for is not there; wrong usage or faults; interrupted."""


class UserError(Exception):
    """Something the user can fix. `str(fault)` is one line; `code` is the exit code of the command that meets it.

    Several faults found together are one UserError whose `lines` holds each of them.
    """

    def __init__(self, *lines: str, code: int = USAGE) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.code = code
