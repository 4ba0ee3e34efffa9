"""`run`, `open` and the bare command: start or find a scheduler, and watch it."""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from rftui import link, paths
from rftui.commands import listing
from rftui.commands.text import has_terminal
from rftui.faults import DONE, FAILED, INTERRUPTED, USAGE, Fault
from rftui.paths import ExperimentDir
from rftui.runs import FAILED as RUN_FAILED
from rftui.runs import Run

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(arguments: argparse.Namespace) -> int:
    """Run a script: on a terminal under the UI, else with plain progress lines."""
    script = Path(arguments.script)
    if not script.is_file():
        raise Fault(f"no script {arguments.script}" + (": it is a directory" if script.is_dir() else ""))
    argv = [str(script), *arguments.args]
    if arguments.headless or not has_terminal():
        return _plain(argv, arguments)
    view = _viewer(arguments)
    launch = link.spawn(argv, arguments.home, title=script.name, devices=arguments.devices)
    code = view(launch)
    if launch.log and launch.exit_status is not None and (child := _Child(launch.log)).experiment() is None:
        return _explained(launch.exit_status, argv, child)
    return code


def open_experiment(arguments: argparse.Namespace) -> int:
    """Attach to an experiment, or start its scheduler again first."""
    experiment = paths.find(arguments.home, arguments.name)
    alive = experiment.alive()
    if arguments.headless or not has_terminal():
        if alive:
            name, holder = experiment.name, (experiment.path / "lock").read_text()
            raise Fault(
                f"{name} is open already in process {holder}; rftui show {name} tells how far it is", code=FAILED
            )
        runs = listing.view(experiment).runs
        if not any(run.active for run in runs):
            print(f"{experiment.name}: no run is left to train; rftui show {experiment.name} shows them")
            return _code(runs)
        return _plain(_reopen(experiment), arguments)
    view = _viewer(arguments)
    if alive:
        return view(link.attach(experiment))
    if arguments.readonly:
        raise Fault(
            f"{experiment.name} is not running, and --readonly starts nothing; rftui show shows it", code=FAILED
        )
    return view(reopen(experiment, arguments.devices))


def reopen(experiment: ExperimentDir, devices: str | None = None) -> link.Launch:
    """Start a scheduler for an experiment that has none, in a session of its own."""
    return link.spawn(_reopen(experiment), experiment.home, title=experiment.name, devices=devices)


def _reopen(experiment: ExperimentDir) -> list[str]:
    return ["-m", "rftui.scheduler", experiment.name, "--home", str(experiment.home)]


def pick(arguments: argparse.Namespace) -> int:
    """Choose an experiment by its number and open it; without a terminal, list them."""
    found = listing.views(arguments.home)
    lines = listing.experiments_table(found, arguments.home).splitlines()
    if not found or not has_terminal():
        print("\n".join(lines))
        return DONE
    print("   " + lines[0])
    for index, line in enumerate(lines[1:], 1):
        print(f"{index:2} {line}")
    try:
        answer = input(f"open which? [1-{len(found)}, Enter for none] ").strip()
    except EOFError:
        return DONE
    if not answer:
        return DONE
    names = [each.experiment.name for each in found]
    if answer not in names and not (answer.isdecimal() and 1 <= int(answer) <= len(names)):
        raise Fault(f"no experiment {answer!r}: type a number from 1 to {len(names)}")
    arguments.name = answer if answer in names else names[int(answer) - 1]
    arguments.headless = False
    return open_experiment(arguments)


def _viewer(arguments: argparse.Namespace) -> Callable[[link.Launch], int]:
    """The terminal UI; loaded before anything is started for it."""
    from rftui.tui import app

    return partial(app.run, readonly=arguments.readonly, ascii=arguments.ascii)


@dataclass
class _Child:
    """A scheduler that was started: its log, beside which it says which experiment it holds."""

    log: Path

    @property
    def rendezvous(self) -> Path:
        return self.log.with_suffix(".json")

    def experiment(self) -> ExperimentDir | None:
        try:
            return ExperimentDir(Path(json.loads(self.rendezvous.read_text())["experiment"]))
        except (OSError, ValueError, KeyError):
            return None


def _plain(argv: list[str], arguments: argparse.Namespace) -> int:
    """Run a scheduler as a child whose stdout is ours; what it writes to stderr goes to a log."""
    log, path, _, environment = link.prepare(arguments.home, arguments.devices)
    child = _Child(path)
    environment = {"PYTHONIOENCODING": ":replace", "PYTHONUNBUFFERED": "1"} | environment  # a print must not end it
    children: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: FrameType | None) -> None:
        for each in children:
            # A terminal that hangs up asks for what SIGTERM asks: stop where it can be resumed.
            each.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    with log:
        # A session of its own: Ctrl-C reaches it once, from us, and a terminal that hangs up does not end it.
        process = subprocess.Popen(
            [sys.executable, *argv], stdin=subprocess.DEVNULL, stderr=log, env=environment, start_new_session=True
        )
    children.append(process)
    return _explained(process.wait(), argv, child)


def _explained(status: int, argv: list[str], child: _Child) -> int:
    """The exit code of a scheduler that ended with `status`; why, on stderr, where it says nothing itself."""
    experiment = child.experiment()
    runs = listing.view(experiment).runs if experiment else []
    if status in (-signal.SIGINT, -signal.SIGTERM):
        status = INTERRUPTED
    if status == 0:
        if experiment is None:
            raise Fault(f"{argv[0]} trained nothing: it must make an Experiment and call its run_fit")
        return _code(runs)
    if status < 0:
        raise Fault(
            f"{argv[0]} was ended by {signal.Signals(-status).name}; its output is in {child.log}", code=FAILED
        )
    text = child.log.read_text(errors="replace")
    said = [line.removeprefix("rftui: ") for line in text.splitlines() if line.startswith("rftui: ")]
    if said:
        raise Fault(*said, code=status)
    if raised := _raised(text):
        begun = any(run.state != "queued" for run in runs)
        raise Fault(f"{raised}; the traceback is in {child.log}", code=FAILED if begun else USAGE)
    return status


def _code(runs: list[Run]) -> int:
    return FAILED if any(run.state == RUN_FAILED for run in runs) else DONE


def _raised(text: str) -> str | None:
    """The exception that ended a script, in one line, out of what it wrote to stderr; None where there was none."""
    lines = text.rstrip().splitlines()
    frames = [(number, match) for number, line in enumerate(lines) if (match := _FRAME.match(line))]
    if not frames:
        return None
    last, frame = frames[-1]
    exception = next((line for line in lines[last + 1 :] if re.match(r"[A-Za-z_][\w.]*(:|$)", line)), None)
    return f"{exception} ({frame['file']}:{frame['line']})" if exception else None


_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+)')
