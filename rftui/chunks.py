"""Where a run's chunks end. Pure arithmetic on rows; a run's trainer turns rows into optimizer steps."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from math import ceil, gcd


def span(micro_batches: int, accumulation: int) -> int:
    """Optimizer steps of `accumulation` micro-batches after which a generation of `micro_batches` ends with one."""
    return micro_batches // gcd(micro_batches, accumulation)


def chunks_per_epoch(rows: int, num_chunks: int | None = None, chunk_size: int | None = None) -> int:
    """The number of chunks an epoch of `rows` rows is cut into: at least 1, at most one a row.

    `num_chunks` wins over `chunk_size` (rows); with neither it is 4.
    """
    if num_chunks is None:
        num_chunks = ceil(rows / chunk_size) if chunk_size else 4
    return max(1, min(num_chunks, rows))


@dataclass(frozen=True)
class Grid:
    """The chunk ends of one run, counted in rows over all its epochs.

    `rows`: rows of an epoch; `per_epoch`: chunks an epoch is cut into; `steps`: optimizer steps of the whole run. A
    *span* is `span` optimizer steps, which take `batch` rows together and must not be interrupted: one step of batch
    size x accumulation rows for SFT and DPO; for GRPO, whose rows are unique prompts, what lies between two moments at
    which generations and steps both begin anew. A warm clone is one sequential pass over the rows `start` to `stop`,
    counted over all epochs of its first ancestor; `stop` is None for any other run.
    """

    rows: int
    per_epoch: int
    batch: int
    steps: int
    start: int = 0
    stop: int | None = None
    span: int = 1

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch (of the whole pass of a warm clone); the last of them may be ragged."""
        rows = self.rows if self.stop is None else self.stop - self.start
        return ceil(rows * self.span / self.batch)

    def row(self, step: int) -> int:
        """Rows consumed, over all epochs, once `step` optimizer steps are done; those of whole spans."""
        epoch, within = divmod(step, self.steps_per_epoch)
        if self.stop is not None:
            return self.stop if epoch else self.start + within // self.span * self.batch
        return epoch * self.rows + within // self.span * self.batch

    def epoch(self, passes: float) -> float:
        """The epochs done since the first ancestor's start, after `passes` over the run's own rows."""
        return passes if self.stop is None else (self.start + passes * (self.stop - self.start)) / self.rows

    def between_spans(self, step: int) -> bool:
        """Whether the run can be saved and gone on with after `step` optimizer steps."""
        return step % self.steps_per_epoch % self.span == 0

    def chunk(self, step: int) -> int:
        """How many chunks have ended once `step` optimizer steps are done; all of them at the last step."""
        return self.total if step >= self.steps else self._ended(self.row(step))

    @cached_property
    def total(self) -> int:
        """The chunks of the whole run, over all epochs; one that `max_steps` cuts short counts whole."""
        last = self.row(self.steps)
        return self._ended(last) + (last % self.rows not in self._ends or not self.between_spans(self.steps))

    def turn_end(self, step: int) -> int:
        """The optimizer step that ends a turn begun after `step` steps: the first at or past the next chunk end."""
        begun = self._ended(self.row(step))
        end = step + 1
        while end < self.steps and self._ended(self.row(end)) == begun:
            end += 1
        return min(end, self.steps)

    @cached_property
    def _ends(self) -> list[int]:
        return [self.rows * k // self.per_epoch for k in range(self.per_epoch)]

    def _ended(self, row: int) -> int:
        epoch, within = divmod(row, self.rows)
        return epoch * self.per_epoch + bisect_right(self._ends, within) - 1
