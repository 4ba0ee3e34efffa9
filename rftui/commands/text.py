"""Plain output: tables, numbers, and whether there is a terminal to draw on."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from rftui.errors import UserError


def has_terminal() -> bool:
    """Whether somebody sits at a terminal that can be drawn on.

    Textual draws on stderr and reads stdin; stdout says how large the terminal is, and takes the last words.
    """
    streams = (sys.__stdin__, sys.__stdout__, sys.__stderr__)
    return all(stream and stream.isatty() for stream in streams) and os.environ.get("TERM", "") not in ("", "dumb")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; numbers stand to the right."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    right = [bool(rows) and all(re.fullmatch(r"[-+.\d][\d.e+/-]*|nan|-?inf", cell) for cell in column[1:])
             for column in columns]  # fmt: skip
    lines = []
    for row in [header, *rows]:
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def dump(data: Any) -> str:
    """JSON that any reader takes: what is not finite is null."""
    return json.dumps(_finite(data), indent=2, allow_nan=False, default=str)


def dump_line(data: Any) -> str:
    """The same on one line."""
    return json.dumps(_finite(data), allow_nan=False, default=str)


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def pair(text: str, form: str) -> tuple[str, str]:
    """What a `--set` names, and the value that it gives. Raises UserError that tells the `form`."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UserError(f"--set {text}: write it as {form}")
    return name.strip(), value
