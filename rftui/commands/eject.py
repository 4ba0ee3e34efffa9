"""`eject`: a run as a plain TRL script."""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import closing
from pathlib import Path

from rftui import paths
from rftui.checkpoints import checkpoint_marker, newest_checkpoint
from rftui.errors import DONE, FAILED, UserError
from rftui.formatting import clean
from rftui.paths import ExperimentDir
from rftui.runs import Run, why_not
from rftui.store import Store
from rftui.views import find_run


def eject(arguments: argparse.Namespace) -> int:
    """Write the script and the folder beside it, and say how to run it."""
    experiment = paths.find(arguments.home, arguments.name)
    with closing(Store.read(experiment.db)) as store:
        runs, turns = {run.id: run for run in store.runs()}, store.turns()
    run = find_run(list(runs.values()), arguments.run)
    if reason := why_not(run, "eject"):
        raise UserError(f"cannot eject run {run.id}: {reason}", code=FAILED)
    goal = _goal(experiment, run)
    file, beside = _free(Path(arguments.output or f"{experiment.name}-run{run.id}.py").absolute())
    devices = {turn["run"]: turn["device"] for turn in turns}  # the last one of each
    lineage = [(each, devices.get(each.id, "").startswith("gpu")) for each in _lineage(runs, run)]

    print("Loading torch and TRL...", file=sys.stderr, flush=True)
    from rftui.training import eject_script as training

    training.eject(experiment, lineage, goal, file, beside)
    which = f"run {run.id} ({clean(run.name)})" + "".join(f" after run {each.id}" for each, _ in lineage[-2::-1])
    what = "its final/" if goal.name == "final" else f"its checkpoint at step {goal.name.rpartition('-')[2]}"
    shown = arguments.output or file.name
    wrote = f"wrote {shown} and {beside.name}/, {which} in plain TRL"
    print(f"{wrote}, which makes {what} again: python {shlex.quote(shown)} [OUT]")
    return DONE


def _goal(experiment: ExperimentDir, run: Run) -> Path:
    """The weights that are made again: the run's `final/`, else its newest checkpoint."""
    folder = experiment.run(run.id)
    newest = folder.final if checkpoint_marker(folder.final) else newest_checkpoint(folder.checkpoints)
    if newest is None:
        first = f"; rftui stop {shlex.quote(experiment.name)} {run.id} writes one" if run.step else ""
        raise UserError(
            f"run {run.id} {clean(run.name)} has no checkpoint yet, so there are no weights to reproduce{first}",
            code=FAILED,
        )
    return newest


def _lineage(runs: dict[int, Run], run: Run) -> list[Run]:
    """The run, and before it those from which it was cloned warm."""
    lineage = [run]
    while lineage[0].warm:
        lineage.insert(0, runs[lineage[0].parent or 0])
    return lineage


def _free(file: Path) -> tuple[Path, Path]:
    """`file`, and the folder beside it for what is no code, where neither is there yet. Raises UserError."""
    if not file.parent.is_dir():
        raise UserError(f"there is no directory {file.parent} to write {file.name} to")
    beside = file.with_name(f"{file.stem}_files")
    for taken in (file, beside):
        if taken.exists():
            raise UserError(f"{taken} exists already: remove it, or name another file with -o FILE")
    return file, beside
