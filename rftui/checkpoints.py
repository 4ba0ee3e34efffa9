"""Committed checkpoints: where they lie, which are whole, and what their markers say."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

CHECKPOINT_MARKER = "rftui.json"
"""In a committed checkpoint (`checkpoints/step-N`, `start/`, `final/`): its step, its files' sizes, and more."""


def checkpoint_marker(checkpoint: Path) -> dict[str, Any] | None:
    """What the marker of a checkpoint says (step, threads, files; but for `final/` also epoch, row, rows, evaluate);
    None where it is not whole."""
    try:
        marker = json.loads((checkpoint / CHECKPOINT_MARKER).read_text())
        whole = all((checkpoint / name).stat().st_size == size for name, size in marker["files"].items())
        return marker if whole else None
    except (OSError, ValueError, KeyError):
        return None


def checkpoints_in(checkpoints: Path) -> list[Path]:
    """The checkpoints of a run's `checkpoints/`, whole or not, the one of the highest step first."""
    return sorted(checkpoints.glob("step-*"), key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)


def newest_checkpoint(checkpoints: Path) -> Path | None:
    """The committed checkpoint of the highest step in a run's `checkpoints/`."""
    return next((path for path in checkpoints_in(checkpoints) if checkpoint_marker(path)), None)


def committed(checkpoints: Path) -> dict[int, Path]:
    """Step -> the committed checkpoint of it, in a run's `checkpoints/`, the newest last."""
    found = {path: checkpoint_marker(path) for path in reversed(checkpoints_in(checkpoints))}
    return {int(marker["step"]): path for path, marker in found.items() if marker}


def link_checkpoint(checkpoint: Path, target: Path) -> None:
    """Hard-link a checkpoint to `target`, so that neither end's deletion touches the other."""
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(checkpoint, target, copy_function=link_or_copy)


def link_or_copy(file: str, target: str) -> None:
    """Hard-link a file; copy it where the file system has no hard links or `target` is on another one."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copy2(file, target)
