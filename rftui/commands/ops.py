"""`stop`, `resume`, `delete`, `undo` and `clone`: an op of the UI from the shell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from rftui import paths
from rftui.client import Changes, Connection
from rftui.commands.text import dump_line, pair
from rftui.config import sweeps, validate
from rftui.errors import DONE, FAILED, UserError
from rftui.formatting import clean
from rftui.messages import Field, Reply
from rftui.runs import Run
from rftui.views import find_runs


def run_op(arguments: argparse.Namespace) -> int:
    """Stop, resume, delete or bring back runs, in the order given."""
    with _connected(arguments) as connection:
        runs = _meant(connection, arguments, arguments.runs)
        if not arguments.yes:
            _ask(runs)
        code = DONE
        for run in runs:
            code = max(code, _tell(connection.ask(connection.command(arguments.op, run)), run, arguments.json))
    return code


def clone(arguments: argparse.Namespace) -> int:
    """Make new runs of one or more, with other values."""
    arguments.op = "clone"
    pairs = [pair(text, "KNOB=VALUE, such as training_args.learning_rate=1e-4") for text in arguments.changes]
    with _connected(arguments) as connection:
        code = DONE
        for run in _meant(connection, arguments, arguments.runs):
            tried = run.suggestion if arguments.suggested else None
            if arguments.suggested and not tried:
                raise UserError(f"run {run.id} {clean(run.name)}: nothing to suggest", code=FAILED)
            how = {
                "warm": arguments.warm,
                "from_step": arguments.from_step,
                "continue_schedule": arguments.continue_schedule,
            }
            if tried:
                how |= {"warm": tried.warm, "from_step": tried.from_step}
                if not arguments.json:
                    print(f"run {run.id} {clean(run.name)}: {tried.reason}")
            command = connection.cloning(run, name=arguments.clone_name, stop_parent=arguments.stop_parent, **how)
            read = partial(_changes, pairs, tried.changes if tried else {})
            try:
                reply = connection.ask(command, read, run.algo)
            except UserError as fault:  # the others may well have such a knob
                reply = Reply(command.id, False, f"run {run.id} {clean(run.name)}: {fault}")
                code = max(code, fault.code)
            code = max(code, _tell(reply, run, arguments.json))
    return code


def _connected(arguments: argparse.Namespace) -> Connection:
    if arguments.readonly:
        raise UserError(f"can't {arguments.op} runs with --readonly")
    return Connection(paths.find(arguments.home, arguments.name), "cli")


def _meant(connection: Connection, arguments: argparse.Namespace, wanted: list[str]) -> list[Run]:
    """The runs that are meant. What is known to be impossible is refused before a scheduler is started for it."""
    known = connection.runs
    runs = [run for each in wanted for run in find_runs(known, each)]
    connection.refuse_the_impossible(arguments.op, runs)
    return runs


def _ask(runs: list[Run]) -> None:
    if not sys.stdin.isatty():
        raise UserError("delete needs --yes where no terminal can confirm it")
    names = ", ".join(f"{run.id} ({clean(run.name)})" for run in runs)
    if input(f"Delete run {names}? [y/N] ").strip().lower() not in ("y", "yes"):
        raise UserError("nothing deleted", code=FAILED)


def _tell(reply: Reply, run: Run, json: bool) -> int:
    """Print the answer to an op on `run`; the exit code."""
    if json:
        made = {"runs": reply.runs} if reply.runs else {}
        print(dump_line({"ok": reply.ok, "text": reply.text, "run": reply.run or run.id} | made))
    elif reply.ok:
        print(reply.text)
    else:
        print(f"rftui: {reply.text}", file=sys.stderr)
    return DONE if reply.ok else FAILED


def _changes(pairs: Sequence[tuple[str, str]], suggested: dict[str, Any], fields: list[Field]) -> Changes:
    """What was typed, over what was suggested."""
    by_name = {field.name: field for field in fields}
    changes: dict[str, Any] = {}
    sweep: dict[str, list[Any]] = {}
    for knob, text in pairs:
        name = validate.resolve(knob, fields)
        if name in changes or name in sweep:
            raise UserError(f"{name} is set twice")
        values = sweeps.values(by_name[name], text)
        if len(values) == 1:
            changes[name] = values[0]
        else:
            sweep[name] = values
    return {name: value for name, value in suggested.items() if name not in sweep} | changes, sweep
