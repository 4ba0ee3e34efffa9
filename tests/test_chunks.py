from hypothesis import given
from hypothesis import strategies as st

from rftui.chunks import Grid, chunks_per_epoch


@given(st.integers(1, 500), st.none() | st.integers(1, 50), st.none() | st.integers(1, 600))
def test_there_is_at_least_one_chunk_and_at_most_one_a_row(rows, num_chunks, chunk_size):
    assert 1 <= chunks_per_epoch(rows, num_chunks, chunk_size) <= rows


@given(st.integers(1, 300), st.integers(1, 12), st.integers(1, 40), st.integers(1, 4), st.data())
def test_turns_cover_every_step_once_and_end_with_each_epoch(rows, chunks, batch, epochs, data):
    per_epoch = chunks_per_epoch(rows, chunks)
    steps_per_epoch = -(-rows // batch)
    steps = steps_per_epoch * epochs
    if data.draw(st.booleans()):
        steps = data.draw(st.integers(1, steps))
    grid = Grid(rows, per_epoch, batch, steps)
    ends, step = [], 0
    while step < steps:
        end = grid.turn_end(step)
        assert end > step and grid.chunk(end) > grid.chunk(step)
        ends.append(end)
        step = end
    assert ends[-1] == steps and grid.chunk(steps) == grid.total
    assert set(range(steps_per_epoch, steps + 1, steps_per_epoch)) <= set(ends)
    if steps == steps_per_epoch * epochs:
        assert grid.total == per_epoch * epochs


@given(st.integers(2, 200), st.integers(1, 8), st.integers(1, 16), st.integers(1, 16), st.data())
def test_a_warm_clone_ends_its_first_turn_at_its_parents_chunk_end(rows, chunks, batch, other, data):
    per_epoch = chunks_per_epoch(rows, chunks)
    parent = Grid(rows, per_epoch, batch, -(-rows // batch) * 2)
    at = data.draw(st.integers(1, parent.steps - 1))
    start, stop = parent.row(at), rows * 2
    clone = Grid(rows, per_epoch, other, -(-(stop - start) // other), start, stop)
    assert clone.total == parent.total
    first = clone.turn_end(0)
    parents_end = next(
        row
        for row in sorted(e * rows + rows * k // per_epoch for e in range(2) for k in range(1, per_epoch + 1))
        if row > start
    )
    assert clone.row(first) >= min(parents_end, stop)
    assert first == 1 or clone.row(first - 1) < parents_end
