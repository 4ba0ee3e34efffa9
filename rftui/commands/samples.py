"""`init`: the sample experiments."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from rftui.errors import DONE, UserError


def init(arguments: argparse.Namespace) -> int:
    """Copy the samples to a directory; files that are there already are left alone."""
    source, target = samples(), Path(arguments.dir)
    written, kept = 0, []
    try:
        for file in sorted(source.rglob("*")):
            if not file.is_file() or "__pycache__" in file.parts:
                continue
            copy = target / file.relative_to(source)
            if copy.exists():
                kept.append(copy)
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
            written += 1
    except OSError as error:
        raise UserError(f"cannot write to {target}: {error.strerror}; name another directory") from error
    for copy in kept:
        print(f"kept {copy} (already there)")
    scripts = sorted(path.name for path in source.glob("*.py") if "run_fit" in path.read_text(encoding="utf-8"))
    print(f"{written} files in {target}; next: rftui run {target / scripts[0]}")
    return DONE


def samples() -> Path:
    """Where the samples lie: in the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "sample_experiments", package.parent / "sample_experiments"):
        if folder.is_dir():
            return folder
    raise UserError("this installation has no samples; reinstall rftui")
