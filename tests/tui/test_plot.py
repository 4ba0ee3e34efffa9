"""Curves as text."""

from __future__ import annotations

import math

import pytest
from rich.cells import cell_len

from rftui.tui.plot import colour, plot, sparkline

FALLING = [(step, 1.0 + 1.5 / (1 + step / 40)) for step in range(5, 400, 5)]


def drawn(curves, width=80, height=16, **how) -> str:
    return plot(curves, {run: f"{run} run-{run}" for run in curves}, width, height, **how).plain


def test_a_sparkline_is_scaled_from_least_to_greatest():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([7, 0], 8) == "█▁"
    assert sparkline([3, 3, 3], 8) == "▁▁▁"
    assert sparkline([], 8) == "" and sparkline([1.0], 0) == ""


def test_a_sparkline_fits_its_cells():
    assert sparkline([float(n) for n in range(512)], 8) == "▁▂▃▄▅▆▇█"
    assert [len(sparkline([1.0] * count, 20)) for count in (1, 19, 20, 21, 39, 512)] == [1, 19, 20, 20, 20, 20]


def test_a_sparkline_marks_what_is_not_finite():
    assert sparkline([1.0, math.nan, 2.0, math.inf], 8) == "▁!█!"
    assert sparkline([math.nan, -math.inf], 8) == "!!"
    assert "!" in sparkline([1.0] * 100 + [math.nan], 8)


def test_an_ascii_sparkline():
    line = sparkline([float(n) for n in range(100)], 8, ascii=True)
    assert line.isascii() and len(set(line)) == 8


@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("size", [(80, 16), (20, 5), (130, 33), (51, 7)])
def test_a_plot_fills_its_room_and_no_more(size, ascii):
    width, height = size
    lines = drawn({1: FALLING, 2: FALLING[:9], 11: FALLING[:1]}, width, height, ascii=ascii).split("\n")
    assert len(lines) == height
    assert all(cell_len(line) <= width for line in lines)


def test_the_legend_names_each_curve_and_its_last_value():
    text = drawn({1: FALLING, 2: FALLING[:9]})
    assert f"1 run-1 {FALLING[-1][1]:.4g}" in text and f"2 run-2 {FALLING[8][1]:.4g}" in text


def test_the_legend_does_not_hide_the_curves():
    lines = drawn({1: FALLING}).split("\n")
    assert "⠒" in "".join(lines) or "⠤" in "".join(lines)
    assert lines[0].rstrip().endswith(f"1 run-1 {FALLING[-1][1]:.4g}")


@pytest.mark.parametrize("curve", [[(5, 2.0)], [(0, 0.0)], [(5, 2.0), (5, 2.0)], [(1, 1.0), (2, 1.0)]])
def test_one_point_and_flat_curves(curve):
    assert "1 run-1" in drawn({1: curve})


@pytest.mark.parametrize("curves", [{}, {1: []}, {1: [(5, math.nan)]}, {1: [(5, math.inf), (10, -math.inf)]}])
def test_nothing_finite_is_said(curves):
    assert drawn(curves) == "No points yet"


@pytest.mark.parametrize("size", [(0, 0), (1, 1), (19, 20), (80, 4)])
def test_no_room_is_no_plot(size):
    assert drawn({1: FALLING}, *size) == ""


def test_a_diverging_curve_is_cut_and_says_so():
    bad = [(step, 2.0 + (step / 20) ** 6) for step in range(5, 100, 5)]
    curves = {1: FALLING, 2: FALLING, 3: FALLING, 4: bad}
    text = drawn(curves)
    assert "4 run-4 ↑off" in text and "1 run-1 1." in text
    top = float(text.split("┤")[0])
    assert top < 10, "the others are not flattened"
    assert "4 run-4 ^off" in drawn(curves, ascii=True)


def test_a_curve_with_a_nan_in_it_is_drawn_and_one_that_ends_in_a_nan_says_so():
    assert "1 run-1 1.1" in drawn({1: [*FALLING[:-1], (394, math.nan), FALLING[-1]]})
    text = drawn({1: [*FALLING, (400, math.nan)], 2: FALLING})
    assert "1 run-1 nan!" in text and "2 run-2 1.1" in text


def test_the_ascii_plot_has_only_ascii():
    bad = [(step, 2.0**step) for step in range(1, 60)]
    assert drawn({1: FALLING, 2: bad}, ascii=True).isascii()


def test_colours_are_stable_and_the_terminals_own():
    assert colour(1) == colour(9) != colour(2)
    assert colour(0).startswith("color(")
