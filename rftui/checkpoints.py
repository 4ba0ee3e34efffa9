"""Committed checkpoints: where they lie, which are whole, and what their markers say."""

from __future__ import annotations

import json
import os
import re
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
        if not _sound(marker, checkpoint.name):
            return None
        whole = all((checkpoint / name).stat().st_size == size for name, size in marker["files"].items())
        return marker if whole else None
    except (OSError, ValueError):
        return None


def _sound(marker: Any, name: str) -> bool:
    """Whether it holds what the marker of a checkpoint of this name must, of the right types."""
    if not isinstance(marker, dict) or not isinstance(marker.get("files"), dict):
        return False
    needed: dict[str, Any] = {"step": int} if name == "final" else {"step": int, "epoch": (int, float), "row": int}
    if not all(isinstance(marker.get(key), types) and marker[key] >= 0 for key, types in needed.items()):
        return False
    named = _STEP.fullmatch(name)
    return not named or int(named[1]) == marker["step"]  # else it was copied or renamed by hand


def checkpoints_in(checkpoints: Path) -> list[Path]:
    """The checkpoints of a run's `checkpoints/`, whole or not, the one of the highest step first. Whatever else lies
    there, such as `step-12.bak` or a file, is none of ours. Raises OSError where it cannot be read."""
    try:
        found = {path: _STEP.fullmatch(path.name) for path in checkpoints.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        return []
    steps = {path: int(match[1]) for path, match in found.items() if match and path.is_dir()}
    return sorted(steps, key=steps.__getitem__, reverse=True)


_STEP = re.compile(r"step-(0|[1-9][0-9]*)")


def newest_checkpoint(checkpoints: Path) -> Path | None:
    """The committed checkpoint of the highest step in a run's `checkpoints/`."""
    return next((path for path in checkpoints_in(checkpoints) if checkpoint_marker(path)), None)


def committed(checkpoints: Path) -> dict[int, Path]:
    """Step -> the committed checkpoint of it, in a run's `checkpoints/`, the newest last."""
    found = {path: checkpoint_marker(path) for path in reversed(checkpoints_in(checkpoints))}
    return {int(marker["step"]): path for path, marker in found.items() if marker}


def clear(place: Path) -> None:
    """Make room for a checkpoint: remove what has its name, be it a file. What cannot be removed stays."""
    shutil.rmtree(place, ignore_errors=True)
    if place.is_symlink() or place.is_file():
        place.unlink()


def link_checkpoint(checkpoint: Path, target: Path) -> None:
    """Hard-link a checkpoint to `target`, so that neither end's deletion touches the other. Raises OSError."""
    clear(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(checkpoint, target, copy_function=link_or_copy)


def link_or_copy(file: str, target: str) -> None:
    """Hard-link a file; copy it where the file system has no hard links or `target` is on another one."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copy2(file, target)
