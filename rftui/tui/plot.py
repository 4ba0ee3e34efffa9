"""Curves as styled text: plots by plotext behind one function, and sparklines of block characters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.cells import set_cell_size
from rich.text import Text

Curve = Sequence[tuple[int, float]]

_COLOURS = (6, 3, 2, 5, 4, 1, 14, 11)
"""The terminal's own colours, so that they suit its theme."""

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-~=^*#"


def colour(run: int) -> str:
    """A run's colour, the same wherever and whenever it is shown."""
    return f"color({_COLOURS[(run - 1) % len(_COLOURS)]})"


def sparkline(values: Sequence[float], width: int, *, ascii: bool = False) -> str:
    """`values` in `width` cells, scaled from their least to their greatest; a value that is not finite is a "!"."""
    if not values or width < 1:
        return ""
    if len(values) > width:
        cut = [round(cell * len(values) / width) for cell in range(width + 1)]
        values = [_mean(values[start:end]) for start, end in zip(cut, cut[1:], strict=False)]
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    blocks = _ASCII_BLOCKS if ascii else _BLOCKS
    scale = (len(blocks) - 1) / (high - low) if high > low else 0.0
    return "".join(blocks[round((value - low) * scale)] if math.isfinite(value) else "!" for value in values)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def plot(curves: Mapping[int, Curve], labels: dict[int, str], width: int, height: int, *, ascii: bool = False) -> Text:
    """Overlaid curves with axes and a legend, in `width` x `height` cells.

    A curve that runs far off (beyond what the bulk of all points needs) is cut at the top, and its label says so.
    """
    series = {run: [point for point in curve if math.isfinite(point[1])] for run, curve in curves.items()}
    series = {run: curve for run, curve in series.items() if curve}
    if not series or width < 20 or height < 5:
        return Text("No points yet" if not series else "", style="dim")
    low, high = _range([value for curve in series.values() for _, value in curve])
    names = min(28, width // 3) if width >= 36 else 0  # beside the axes: over them it would hide the newest points
    drawn = _draw(series, low, high, width - names, height, ascii)
    for line, (run, curve) in zip(drawn if names else [], series.items(), strict=False):
        last = curve[-1][1]
        value = ("^" if ascii else "↑") + "off" if last > high else f"{last:.4g}"
        if not math.isfinite(curves[run][-1][1]):
            value = "nan!"
        label = set_cell_size(labels[run], names - len(value) - 2).rstrip()
        line.truncate(width - names, pad=True)
        line.append(f" {label} {value}", style=colour(run))
    return Text("\n").join(drawn)


def _range(values: list[float]) -> tuple[float, float]:
    """The values' range without far outliers: a diverging run must not flatten the others."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    upper = ordered[int(0.9 * (len(ordered) - 1))]
    middle = ordered[len(ordered) // 2]
    if high - low > 4 * (upper - low) > 0:
        high = upper + (upper - middle)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _draw(
    series: dict[int, list[tuple[int, float]]], low: float, high: float, width: int, height: int, ascii: bool
) -> list[Text]:
    """The lines of a plotext plot. Its figure is global, so everything is set anew each time."""
    from plotext import figure, marker, pixel, terminal

    terminal.limit(False, False)
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height)
    figure.axes(False, axis="x", side="upper")
    figure.axes(False, axis="y", side="right")
    first = min(curve[0][0] for curve in series.values())
    last = max(curve[-1][0] for curve in series.values())
    ticks = sorted({round(first + (last - first) * part / 4) for part in range(5)})
    figure.ruler("x").ticks([float(tick) for tick in ticks], [str(tick) for tick in ticks])
    figure.ruler("y").lim(low, high)
    figure.ruler("y").frequency(max(2, height // 3))
    for run, curve in series.items():
        steps = [float(step) for step, _ in curve]
        values = [min(value, high) for _, value in curve]
        dots = marker("*" if ascii else "braille", pixel(_COLOURS[(run - 1) % len(_COLOURS)]))
        signal = figure.signal(steps, values, marker=dots)
        if len(curve) > 1:
            signal.lines()
        figure.draw(signal)
    drawn = str(figure.build()).rstrip("\n")
    return [Text.from_ansi(line.translate(_ASCII_AXES) if ascii else line) for line in drawn.split("\n")]


_ASCII_AXES = str.maketrans("┤│└┬─┴├┼┘┌┐", "||++-++++++")
