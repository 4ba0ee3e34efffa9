"""What a scheduler does first with an experiment that another one left: nothing of that one lives any more."""

from __future__ import annotations

import shutil

from rftui.runs import DELETED, STOPPED
from rftui.scheduler.board import Board
from rftui.scheduler.turns import Turns


def take_up(board: Board, turns: Turns) -> None:
    """Every run stands where its newest whole checkpoint is, whatever the other scheduler was just doing."""
    runs = [run for run in board.runs.values() if run.active or run.state == STOPPED]
    for run in runs:
        folder = board.experiment.run(run.id)
        for unfinished in [*folder.checkpoints.glob(".step-*"), folder.path / ".final"]:
            shutil.rmtree(unfinished, ignore_errors=True)
        turns.go_back(run, keep=run.state == STOPPED)
    for run in runs:
        if run.warm and not run.start_step and (run.active or run.state == STOPPED):
            turns.pins.take_up(run)
    discard_deleted(board)  # last: a clone may still have needed its parent's files


def discard_deleted(board: Board) -> None:
    """Remove the files of deleted runs, which cannot be brought back from then on."""
    for run in board.runs.values():
        if run.state == DELETED:
            run.before = ""
            board.touch(run)
            shutil.rmtree(board.experiment.run(run.id).path, ignore_errors=True)
