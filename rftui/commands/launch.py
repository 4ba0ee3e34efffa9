"""`run`, `open` and the bare command: start or find a scheduler, and watch it."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

from rftui import launching, paths
from rftui.commands import listing
from rftui.commands.text import has_terminal
from rftui.errors import DONE, FAILED, INTERRUPTED, USAGE, UserError
from rftui.runs import FAILED as RUN_FAILED
from rftui.runs import QUEUED, Run
from rftui.tracking import outbox
from rftui.views import view

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(arguments: argparse.Namespace) -> int:
    """Run a script: on a terminal under the UI, else with plain progress lines."""
    script = Path(arguments.script)
    if not script.is_file():
        raise UserError(f"no script {arguments.script}" + (": it is a directory" if script.is_dir() else ""))
    argv = [str(script), *arguments.args]
    if arguments.headless or not has_terminal():
        return _plain(argv, script.name, arguments)
    watch = _viewer(arguments)
    return _watched(watch, launching.spawn(argv, arguments.home, title=script.name, devices=arguments.devices))


def open_experiment(arguments: argparse.Namespace) -> int:
    """Attach to an experiment, or start its scheduler again first."""
    experiment = paths.find(arguments.home, arguments.name)
    alive = experiment.alive()
    if not alive and (fault := view(experiment).incomplete):
        raise UserError(fault, code=FAILED)
    if arguments.headless or not has_terminal():
        if alive:
            name, holder = experiment.name, (experiment.path / "lock").read_text()
            raise UserError(
                f"{name} is already running (process {holder}); see its progress with rftui show {name}", code=FAILED
            )
        runs = view(experiment).runs
        if not any(run.active for run in runs):
            print(f"{experiment.name}: nothing left to train; see its runs with rftui show {experiment.name}")
            for notice in [] if arguments.readonly else outbox.send_rest(experiment):
                print(notice)
            return _code(runs)
        return _plain(launching.reopening(experiment), experiment.name, arguments)
    watch = _viewer(arguments)
    if alive:
        launch = launching.attach(experiment)
        code = watch(launch)
        if launch.served or launch.exit_status is None:
            return code
        # It was just ending and no longer answered.
    if arguments.readonly:
        raise UserError(
            f"{experiment.name} is not running, and --readonly starts nothing; use rftui show", code=FAILED
        )
    return _watched(watch, launching.reopen(experiment, arguments.devices))


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
        answer = input(f"Open which? [1-{len(found)}, Enter for none] ").strip()
    except EOFError:
        return DONE
    if not answer:
        return DONE
    names = [each.experiment.name for each in found]
    if answer not in names and not (answer.isdecimal() and 1 <= int(answer) <= len(names)):
        raise UserError(f"no experiment {answer!r}: type a number from 1 to {len(names)}")
    arguments.name = answer if answer in names else names[int(answer) - 1]
    arguments.headless = False
    return open_experiment(arguments)


def _viewer(arguments: argparse.Namespace) -> Callable[[launching.Launch], int]:
    """The terminal UI; loaded before anything is started for it."""
    from rftui.tui import app

    again = partial(launching.reopen, devices=arguments.devices)
    return partial(app.run, readonly=arguments.readonly, ascii=arguments.ascii, reopen=again)


def _watched(watch: Callable[[launching.Launch], int], launch: launching.Launch) -> int:
    """The exit code of a viewer of what was started; why, on stderr, where that ended before it could be shown."""
    code = watch(launch)
    left = launch.served or launch.exit_status is None or code == INTERRUPTED
    return code if left else _explained(launch)


def _plain(argv: list[str], title: str, arguments: argparse.Namespace) -> int:
    """Run a scheduler as a child whose stdout is ours; what it writes to stderr goes to a log."""
    log, path, rendezvous, environment = launching.prepare(arguments.home, arguments.devices)
    environment = {"PYTHONIOENCODING": ":replace", "PYTHONUNBUFFERED": "1"} | environment  # a print must not end it
    environment |= {"RFTUI_FRONT": str(os.getpid())}  # which it ends with, however we end
    children: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: FrameType | None) -> None:
        for each in children:
            each.send_signal(number)

    for number in _FORWARDED:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, forward)
    with log:
        # A session of its own: Ctrl-C reaches it once, from us, and a terminal that hangs up does not end it.
        process = subprocess.Popen(
            [sys.executable, *argv], stdin=subprocess.DEVNULL, stderr=log, env=environment, start_new_session=True
        )
    children.append(process)
    process.wait()
    return _explained(launching.Launch(title, process, path, rendezvous))


def _explained(launch: launching.Launch) -> int:
    """The exit code of a scheduler that has ended; why, on stderr, where it says nothing itself."""
    status, title, experiment = launch.exit_status, launch.title, launch.experiment
    assert status is not None
    kept = experiment is not None and experiment.db.is_file()  # faults leave no experiment
    runs = view(experiment).runs if experiment and kept else []
    if status in [-number for number in _FORWARDED]:
        status = INTERRUPTED
    if status == 0:
        if experiment is None:
            raise UserError(f"{title} trained nothing: create an Experiment in it and call its run_fit")
        return _code(runs)
    if status < 0:
        raise UserError(
            f"{title} was killed by {signal.Signals(-status).name}; its output is in {launch.log}", code=FAILED
        )
    lines = launch.tail()
    said = [line.removeprefix("rftui: ") for line in lines if line.startswith("rftui: ")]
    if said:
        raise UserError(*said, code=status)
    if status == INTERRUPTED:
        return status
    before = USAGE if all(run.state == QUEUED for run in runs) else FAILED
    if raised := _raised(lines):
        raise UserError(f"{raised}; the traceback is in {launch.log}", code=before)
    if status == _code(runs):
        return status
    last = next((f": {line.strip()}" for line in reversed(lines) if line.strip()), "")
    why = f"{title} ended with exit code {status}{last}" + (f" ({launch.log})" if len(lines) > 1 else "")
    raise UserError(why, code=before if status == 1 else status)


def _code(runs: list[Run]) -> int:
    return FAILED if any(run.state == RUN_FAILED for run in runs) else DONE


def _raised(lines: list[str]) -> str | None:
    """The exception that ended a script, in one line, out of what it wrote to stderr; None where there was none."""
    frames = [(number, match) for number, line in enumerate(lines) if (match := _FRAME.match(line))]
    if not frames:
        return None
    last, frame = frames[-1]
    exception = next((line for line in lines[last + 1 :] if re.match(r"[A-Za-z_][\w.]*(:|$)", line)), None)
    return f"{exception} ({frame['file']}:{frame['line']})" if exception else None


_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+)')
