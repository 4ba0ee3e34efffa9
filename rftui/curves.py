"""Curves as they are kept in memory and drawn: few points, evenly spread over the steps. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from math import isfinite

POINTS = 256
"""Points of a curve that is kept: more than the columns of a plot. 512 runs of ten metrics then take about 25 MB."""

Point = tuple[int, float]
"""Step and value."""

_EXTRAS = 3  # the last point, the lowest and the highest


class Thinned:
    """At most `POINTS` points of a curve, the same ones in whatever order they came.

    Steps are parted into bins of one width, a power of two, and of each bin the first point is kept; so is the last
    point of all, the lowest and the highest. Where too many bins are taken, they are made twice as wide.
    """

    __slots__ = ("_width", "_steps", "_values", "_last", "_low", "_high")

    def __init__(self, points: Iterable[Point] = ()) -> None:
        """`points` in the order of their steps."""
        points = list(points)
        self._width = 1
        self._last: Point | None
        self._low: Point | None
        self._high: Point | None
        self._steps = array("q", [step for step, _ in points])
        self._values = array("d", [value for _, value in points])
        self._see(points)
        self._widen()

    def __len__(self) -> int:
        return len(self.points())

    def points(self) -> list[Point]:
        """In the order of their steps."""
        kept = {extra[0]: extra[1] for extra in (self._low, self._high, self._last) if extra}
        kept.update(zip(self._steps, self._values, strict=True))
        return sorted(kept.items())

    def add(self, step: int, value: float) -> None:
        at = bisect_left(self._steps, step - step % self._width)
        if at == len(self._steps) or self._steps[at] // self._width > step // self._width:
            self._steps.insert(at, step)
            self._values.insert(at, value)
            self._widen()
        elif step < self._steps[at]:
            self._steps[at], self._values[at] = step, value
        if self._last is None or step > self._last[0]:
            self._last = (step, value)
        if isfinite(value):
            if self._low is None or (value, step) < self._low[::-1]:
                self._low = (step, value)
            if self._high is None or (-value, step) < (-self._high[1], self._high[0]):
                self._high = (step, value)

    def rewind(self, step: int) -> None:
        """Forget what is past `step`."""
        left = [point for point in self.points() if point[0] <= step]
        cut = bisect_right(self._steps, step)
        del self._steps[cut:], self._values[cut:]
        self._see(left)

    def copy(self) -> Thinned:
        """One that does not change with this one."""
        other = Thinned.__new__(Thinned)
        other._width, other._steps, other._values = self._width, self._steps[:], self._values[:]
        other._last, other._low, other._high = self._last, self._low, self._high
        return other

    def _see(self, points: list[Point]) -> None:
        finite = [point for point in points if isfinite(point[1])]
        self._last = points[-1] if points else None
        self._low = min(finite, key=lambda point: (point[1], point[0]), default=None)
        self._high = min(finite, key=lambda point: (-point[1], point[0]), default=None)

    def _widen(self) -> None:
        while len(self._steps) > POINTS - _EXTRAS:
            self._width *= 2
            bins = [step // self._width for step in self._steps]
            firsts = [at for at in range(len(bins)) if not at or bins[at] != bins[at - 1]]
            self._steps = array("q", [self._steps[at] for at in firsts])
            self._values = array("d", [self._values[at] for at in firsts])


class Curves(dict[int, dict[str, Thinned]]):
    """run -> metric -> curve."""

    def add(self, run: int, metric: str, step: int, value: float) -> None:
        of_run = self.setdefault(run, {})
        if metric not in of_run:
            of_run[metric] = Thinned()
        of_run[metric].add(step, value)

    def rewind(self, run: int, step: int) -> None:
        """Forget the run's points past `step`."""
        for curve in self.get(run, {}).values():
            curve.rewind(step)

    def points(self, run: int, metric: str) -> list[Point]:
        """The points of one curve; none where there is no such curve."""
        curve = self.get(run, {}).get(metric)
        return curve.points() if curve is not None else []

    def copy(self) -> Curves:
        """Curves that do not change with these."""
        return Curves(
            {run: {metric: curve.copy() for metric, curve in of_run.items()} for run, of_run in self.items()}
        )
