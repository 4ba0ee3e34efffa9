"""Curves in memory stay few points, evenly spread, whatever comes."""

import math
import pickle
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from rftui.curves import POINTS, Curves, Thinned

STEPS = st.lists(st.integers(0, 20_000), min_size=1, max_size=1500, unique=True)


def grown(points):
    curve = Thinned()
    for step, value in points:
        curve.add(step, value)
    return curve


@settings(deadline=None, max_examples=60)
@given(steps=STEPS, every=st.sampled_from([1, 7, 50]), chance=st.randoms(use_true_random=False))
def test_a_curve_is_even_by_step_in_whatever_order_its_points_come(steps, every, chance):
    logged = [(every * step, chance.gauss(1, 1)) for step in sorted(steps)]
    shuffled = chance.sample(logged, len(logged))
    kept = grown(shuffled).points()
    assert kept == grown(logged).points() == Thinned(logged).points()
    assert len(kept) <= POINTS and kept == sorted(kept) and set(kept) <= set(logged)
    assert {logged[0], logged[-1]} <= set(kept)
    assert {min(logged, key=lambda p: p[1]), max(logged, key=lambda p: p[1])} <= set(kept)
    if len(logged) < POINTS - 3:
        assert kept == logged
    # No stretch of steps is told by fewer points than another with as many points in it.
    widest = max(after - before for (before, _), (after, _) in zip(kept, kept[1:], strict=False)) if kept[1:] else 0
    gap = max(after - before for (before, _), (after, _) in zip(logged, logged[1:], strict=False)) if logged[1:] else 0
    assert widest <= gap + 4 * (logged[-1][0] - logged[0][0]) / (POINTS - 3) + 2 or len(logged) < POINTS


def test_six_thousand_points_one_by_one_cover_all_steps_alike():
    """Old points are not halved again and again while new ones stay."""
    kept = grown((step, 1 / step) for step in range(1, 6001)).points()
    quarters = [sum(1500 * n < step <= 1500 * (n + 1) for step, _ in kept) for n in range(4)]
    assert max(quarters) - min(quarters) <= 2 and sum(quarters) > POINTS // 3


@settings(deadline=None, max_examples=40)
@given(steps=STEPS, back=st.integers(0, 20_000), chance=st.integers(0, 99))
def test_what_is_past_a_rewind_is_gone_and_can_come_again(steps, back, chance):
    values = random.Random(chance)
    curve = grown((step, values.random()) for step in sorted(steps))
    curve.rewind(back)
    assert all(step <= back for step, _ in curve.points())
    left = curve.points()
    for step in range(back + 1, back + 400):
        curve.add(step, 9.0)
    kept = curve.points()
    assert len(kept) <= POINTS and kept[-1] == (back + 399, 9.0)
    assert len({step for step, _ in kept}) == len(kept) and {p[1] for p in kept if p[0] > back} == {9.0}
    assert not left or kept[0] == left[0]


def test_what_is_no_number_is_kept_as_a_point_and_is_no_extreme():
    curve = grown([(1, 2.0), (2, math.nan), (3, -math.inf), (4, 1.0)])
    assert [step for step, _ in curve.points()] == [1, 2, 3, 4]
    curve.rewind(0)
    assert curve.points() == [] and len(curve) == 0


def test_curves_travel_and_a_copy_does_not_change_with_them():
    curves = Curves()
    for step in range(1, 3000):
        curves.add(1, "loss", step, 1 / step)
    there = pickle.loads(pickle.dumps(curves.copy()))
    before = there.points(1, "loss")
    copied = curves.copy()
    curves.add(1, "loss", 3000, 5.0)
    curves.rewind(1, 10)
    assert there.points(1, "loss") == copied.points(1, "loss") == before
    there.add(1, "loss", 3000, 5.0)
    assert there.points(1, "loss")[-1] == (3000, 5.0) and len(there[1]["loss"]) <= POINTS
    assert there.points(2, "loss") == there.points(1, "eval_loss") == []
