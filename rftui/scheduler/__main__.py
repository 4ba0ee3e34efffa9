"""`python -m rftui.scheduler NAME`: take up a finished or interrupted experiment; its script is not run again."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rftui.errors import UserError
from rftui.paths import find, home_dir
from rftui.scheduler.loop import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rftui.scheduler", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--home")
    parser.add_argument("--devices", default=os.environ.get("RFTUI_DEVICES", "auto"))
    arguments = parser.parse_args()
    rendezvous = os.environ.get("RFTUI_RENDEZVOUS")
    try:
        return run(
            find(home_dir(arguments.home), arguments.name),
            rendezvous=Path(rendezvous) if rendezvous else None,
            devices=arguments.devices,
            viewer=os.environ.get("RFTUI_VIEWER") == "1",
        )
    except UserError as fault:
        for line in fault.lines:
            print(f"rftui: {line}", file=sys.stderr)
        return fault.code


if __name__ == "__main__":
    sys.exit(main())
