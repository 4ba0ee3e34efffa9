"""Where a run stands: its newest whole checkpoint is the truth, and the database is brought to agree with it."""

from __future__ import annotations

import json
from pathlib import Path

from rftui.paths import checkpoint_marker, checkpoints_in, committed, newest_checkpoint
from rftui.runs import DONE, Run, curve_values
from rftui.scheduler.board import Board


def reposition(board: Board, run: Run) -> None:
    """Put a run that no worker holds where its newest whole checkpoint is, or at its beginning; done if it is at its
    end. The event log tells what is done again.

    What the database holds past that step is void: it is trained again. What it lacks up to it (a checkpoint is there
    before the reports of its last steps are stored) is taken from the history that the checkpoint holds.
    """
    folder = board.experiment.run(run.id)
    found, newest = checkpoints_in(folder.checkpoints), newest_checkpoint(folder.checkpoints)
    for torn in found[: found.index(newest) if newest else None]:
        board.log(f"run {run.id}: its checkpoint {torn.name} is not whole and is passed over", run, "notice")
    marker = (checkpoint_marker(newest) if newest else None) or {"step": 0, "epoch": 0.0}
    before, step = run.step, int(marker["step"])
    if step < before:
        again = f"step {before} is" if before == step + 1 else f"steps {step + 1} to {before} are"
        board.log(f"run {run.id} goes back from step {before} to step {step}: {again} done again", run, "notice")
    elif step > before:
        board.log(f"run {run.id} stands at step {step} by its checkpoint, not at step {before}", run, "notice")
    final = checkpoint_marker(folder.final)
    board.rewind(run, step, [*_history(newest), *_history(folder.final if final else None)])
    run.epoch = float(marker["epoch"])
    run.chunk = run.chunk if step else 0  # else told again by `Begun`
    run.checkpoint, run.device = str(newest) if newest else None, None
    run.checkpoints = list(committed(folder.checkpoints))
    if final:
        run.state, run.final, run.error = DONE, str(folder.final), None
        run.chunk = run.chunks if int(final["step"]) >= run.total_steps else run.chunk
        board.log(f"run {run.id} is done", run)


def _history(checkpoint: Path | None) -> list[tuple[int, dict[str, float]]]:
    """What the trainer had logged when it wrote the checkpoint: (step, metric -> value), in order."""
    if checkpoint is None:
        return []
    try:
        state = json.loads((checkpoint / "trainer_state.json").read_text())
    except FileNotFoundError:
        return []
    return [(int(entry["step"]), curve_values(entry)) for entry in state["log_history"]]
