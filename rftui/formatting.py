"""How numbers, values of knobs, times and sizes are written: the same on screen, in the shell, in messages. Pure."""

from __future__ import annotations

import math
import re

UNKNOWN = "-"

_LONGEST = 2000
"""Characters of a line: to lay out an error of 1 MB takes a terminal seconds."""

_CELL = 7
"""Columns of a number in a table."""


def clean(text: object, width: int | None = None) -> str:
    """One line, at most `width` long, without the control characters that a terminal would obey; of a very long one
    its beginning and its end."""
    line = str(text)
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST // 2]} [... {len(line) - _LONGEST} characters ...] {line[-_LONGEST // 2 :]}"
    line = re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", line)
    return line if width is None or len(line) <= width else line[: width - 3] + "..."


def format_number(value: float | None, digits: int = 4, width: int | None = None) -> str:
    """A number with at most `digits` significant digits, and with fewer where it would pass `width` characters.

    0.0005 -> "5e-4", 0.0123 -> "0.0123", 1.28412 -> "1.284", 1e5 -> "1e5"; what is not known is "-".
    """
    if value is None:
        return UNKNOWN
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    texts = [_spelled(value, count) for count in range(digits, 0, -1)]
    return next((text for text in texts if width is None or len(text) <= width), texts[-1])


def _spelled(value: float, digits: int) -> str:
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    power = int(exponent)
    if power >= 5 or power < 0:
        short = f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{power}"
        plain = f"{value:.{max(0, digits - 1 - power)}f}"
        plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
        if value and (power >= 5 or len(short) < len(plain)):
            return short
        return plain if value else "0"
    return f"{value:.{max(digits, power + 1)}g}"


def format_value(value: object, digits: int = 6) -> str:
    """A knob's value as a message tells it: 0.0002 -> "2e-4", True -> "true", a list with commas, None -> "-"."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return format_number(value, digits)
    if isinstance(value, (list, tuple)):
        return ",".join(format_value(item, digits) for item in value)
    return clean(value)


def format_cell(value: object) -> str:
    """A knob's or a metric's value as a cell of a table shows it: numbers fit, modules go without their "_proj"."""
    if isinstance(value, float):
        return format_number(value, width=_CELL)
    if isinstance(value, (list, tuple)):
        return ",".join(format_cell(item).removesuffix("_proj") for item in value)
    return format_value(value)


def format_duration(seconds: float | None) -> str:
    """Seconds as "9s", "41m" or "3h05m"; "-" while unknown."""
    if seconds is None:
        return UNKNOWN
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 1:
        return f"{rest}s"
    return f"{minutes // 60}h{minutes % 60:02}m" if minutes >= 60 else f"{minutes}m"


def format_bytes(count: float) -> str:
    """A size in bytes as "2.2 MB" or "13.5 GB"."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} B"
