from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from rftui.chunks import Grid, chunks_per_epoch


@settings(deadline=None)
@given(st.integers(1, 500), st.none() | st.integers(1, 50), st.none() | st.integers(1, 600))
def test_there_is_at_least_one_chunk_and_at_most_one_a_row(rows, num_chunks, chunk_size):
    assert 1 <= chunks_per_epoch(rows, num_chunks, chunk_size) <= rows


@settings(deadline=None)
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


@settings(deadline=None)
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
def cuts(draw):
    """Rows of a span, steps of a span, and the rows of which an epoch is a multiple: 1 for SFT and DPO, the prompts of
    a generation for GRPO."""
    if draw(st.booleans()):
        return draw(st.integers(1, 40)), 1, 1
    prompts = draw(st.integers(1, 6))
    return prompts * draw(st.integers(1, 4)), draw(st.integers(1, 4)), prompts


@st.composite
def grids(draw):
    """Any grid that a run can have: whole, cut short by `max_steps`, or a warm clone of any parent at any step."""
    batch, span, least = draw(cuts())
    rows, epochs = least * draw(st.integers(1, 60 // least)), draw(st.integers(1, 4))
    per_epoch = chunks_per_epoch(rows, draw(st.integers(1, 12)))
    grid = Grid(rows, per_epoch, batch, 0, span=span)
    grid = shortened(draw, grid, grid.steps_per_epoch * epochs)
    for _ in range(draw(st.integers(0, 2))):  # clones, and clones of clones
        batch, span, least = draw(cuts())
        start = grid.row(draw(st.sampled_from([at for at in range(grid.steps + 1) if grid.between_spans(at)])))
        stop = start + least * draw(st.integers(1, max(1, 2 * rows // least)))
        grid = Grid(rows, per_epoch, batch, 0, start, stop, span)
        grid = shortened(draw, grid, grid.steps_per_epoch)
    return grid


def shortened(draw, grid, steps):
    return replace(grid, steps=draw(st.integers(1, steps)) if draw(st.booleans()) else steps)


def ends(grid):
    """Every row at which a chunk ends within the run, counted over all epochs, by the formula of the design."""
    last = grid.row(grid.steps)
    every = (e * grid.rows + grid.rows * (k + 1) // grid.per_epoch for e in range(13) for k in range(grid.per_epoch))
    return [row for row in every if grid.row(0) < row <= last]


@settings(deadline=None)
@given(grids())
def test_every_turn_ends_at_the_first_step_at_or_past_the_next_chunk_end(grid):
    step, every = 0, ends(grid)
    while step < grid.steps:
        end = grid.turn_end(step)
        assert step < end <= grid.steps
        if due := [row for row in every if row > grid.row(step)]:
            assert grid.row(end) >= due[0] and (end == step + 1 or grid.row(end - 1) < due[0])
        else:
            assert end == grid.steps
        assert {grid.turn_end(between) for between in range(step, end)} == {end}, "a resumed run ends its turn there"
        assert grid.between_spans(end) or end == grid.steps, "a span is not interrupted"
        step = end


@settings(deadline=None)
@given(grids())
def test_rows_and_chunks_only_grow_and_each_chunk_end_counts_once(grid):
    rows = [grid.row(step) for step in range(grid.steps + 1)]
    chunks = [grid.chunk(step) for step in range(grid.steps + 1)]
    assert rows == sorted(rows) and chunks == sorted(chunks)
    before, every = grid.chunk(0), ends(grid)
    for step in range(grid.steps):
        assert chunks[step] == before + sum(row <= rows[step] for row in every)
    at_an_end = rows[-1] in every and grid.between_spans(grid.steps)
    assert grid.total == chunks[-1] == before + len(every) + (not at_an_end)


@settings(deadline=None)
@given(grids())
def test_spans_cover_every_row_once(grid):
    between = [step for step in range(grid.steps + 1) if grid.between_spans(step)]
    taken = [range(grid.row(here), grid.row(there)) for here, there in pairwise(between)]
    assert all(1 <= len(rows) <= grid.batch for rows in taken)
    assert [row for rows in taken for row in rows] == list(range(grid.row(0), grid.row(between[-1])))
    assert all(grid.row(step) == grid.row(max(at for at in between if at <= step)) for step in range(grid.steps))
