"""One spelling of numbers, values, times and sizes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rftui.formatting import clean, format_bytes, format_cell, format_duration, format_number, format_value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5e-4, "5e-4"),
        (2e-4, "2e-4"),
        (1.5e-5, "1.5e-5"),
        (1e-3, "1e-3"),
        (0.005, "5e-3"),
        (0.01, "0.01"),
        (0.0051, "0.0051"),
        (1.28412, "1.284"),
        (-0.02412, "-0.0241"),
        (-7.95e-5, "-7.9e-5"),
        (0.0, "0"),
        (1000.0, "1000"),
        (123456.0, "1.235e5"),
        (-123456.0, "-1.23e5"),
        (1e5, "1e5"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (16, "16"),
        (True, "true"),
        (None, "-"),
        ("cosine", "cosine"),
        (["q_proj", "v_proj"], "q,v"),
        ("a\x1b[2J\nb", "a [2J b"),
    ],
)
def test_a_cell(value, text):
    assert format_cell(value) == text


@given(st.floats(-1e9, 1e9).filter(lambda value: value == 0 or abs(value) > 1e-9))
def test_no_number_is_cut_in_its_exponent_or_told_wrong(value):
    assert float(format_number(value)) == pytest.approx(value, rel=1e-3)
    assert float(format_value(value)) == pytest.approx(value, rel=1e-5)
    cell = format_cell(value)
    assert float(cell) == pytest.approx(value, rel=0.5) and len(cell) <= 7


@given(st.sampled_from([1, 1.5, 2, 3, 5, 7.5]), st.integers(-9, 0))
def test_a_learning_rate_has_one_spelling_everywhere(mantissa, power):
    rate = float(f"{mantissa}e{power}")
    assert format_cell(rate) == format_value(rate) == format_number(rate)


def test_values_of_knobs():
    assert format_value(["q_proj", "v_proj"]) == "q_proj,v_proj"
    assert [format_value(each) for each in (None, False, 3e-4, 128, 0.123456)] == [
        "-",
        "false",
        "3e-4",
        "128",
        "0.123456",
    ]


def test_durations():
    assert [format_duration(s) for s in (None, 5, 59.9, 60, 3599, 11100)] == ["-", "5s", "59s", "1m", "59m", "3h05m"]


def test_sizes():
    assert [format_bytes(n) for n in (0, 999, 2.2e6, 13.46e9, 1500)] == ["0 B", "999 B", "2.2 MB", "13.5 GB", "1.5 kB"]


def test_clean_leaves_no_control_character():
    assert clean("lr=[1e-4\r\n\x1b]0;x\x07 \x9b2J é") == "lr=[1e-4 ]0;x   2J é"
    assert clean("a" * 70, 60) == "a" * 57 + "..."
