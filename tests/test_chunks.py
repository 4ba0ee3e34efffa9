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


@st.composite
def grids(draw):
    """Any grid that a run can have: whole, cut short by `max_steps`, or a warm clone of any parent at any step."""
    rows, epochs = draw(st.integers(1, 120)), draw(st.integers(1, 4))
    per_epoch = chunks_per_epoch(rows, draw(st.integers(1, 12)))
    batch = draw(st.integers(1, 40))
    steps = -(-rows // batch) * epochs
    parent = Grid(rows, per_epoch, batch, draw(st.integers(1, steps)) if draw(st.booleans()) else steps)
    if draw(st.booleans()):
        return parent
    start = parent.row(draw(st.integers(0, parent.steps)))
    stop = draw(st.integers(start + 1, start + 3 * rows))
    other = draw(st.integers(1, 40))
    steps = -(-(stop - start) // other)
    grid = Grid(rows, per_epoch, other, draw(st.integers(1, steps)) if draw(st.booleans()) else steps, start, stop)
    if draw(st.booleans()) and grid.steps > 1:  # a clone of a clone
        start = grid.row(draw(st.integers(1, grid.steps - 1)))
        return Grid(rows, per_epoch, batch, -(-(stop - start) // batch), start, stop)
    return grid


def ends(grid):
    """Every row at which a chunk ends within the run, counted over all epochs, by the formula of the design."""
    last = grid.row(grid.steps)
    every = (e * grid.rows + grid.rows * (k + 1) // grid.per_epoch for e in range(9) for k in range(grid.per_epoch))
    return [row for row in every if grid.row(0) < row <= last]


@given(grids())
def test_every_turn_ends_at_the_first_step_at_or_past_the_next_chunk_end(grid):
    step = 0
    while step < grid.steps:
        end = grid.turn_end(step)
        assert step < end <= grid.steps
        due = next((row for row in ends(grid) if row > grid.row(step)), grid.row(grid.steps))
        assert grid.row(end) >= due
        assert end == step + 1 or grid.row(end - 1) < due
        assert {grid.turn_end(between) for between in range(step, end)} == {end}, "a resumed run ends its turn there"
        step = end


@given(grids())
def test_rows_and_chunks_only_grow_and_each_chunk_end_counts_once(grid):
    rows = [grid.row(step) for step in range(grid.steps + 1)]
    chunks = [grid.chunk(step) for step in range(grid.steps + 1)]
    assert rows == sorted(set(rows)) and chunks == sorted(chunks), "each step takes rows, none gives any back"
    before = grid.chunk(0)
    for step in range(grid.steps):
        assert chunks[step] == before + sum(row <= rows[step] for row in ends(grid))
    assert grid.total == chunks[-1] == before + sum(row < rows[-1] for row in ends(grid)) + 1


@given(grids())
def test_steps_in_any_cut_cover_every_row_once(grid):
    taken = [range(grid.row(step), grid.row(step + 1)) for step in range(grid.steps)]
    assert all(1 <= len(of_step) <= grid.batch for of_step in taken)
    assert [row for of_step in taken for row in of_step] == list(range(grid.row(0), grid.row(grid.steps)))
