"""`stop`, `resume`, `delete` and `clone`: an op of the UI from the shell."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rftui import launching, paths
from rftui.automl import validate
from rftui.commands import launch, listing
from rftui.commands.text import clean, dump_line
from rftui.faults import DONE, FAILED, Fault
from rftui.link import LinkLost, Viewer
from rftui.messages import Command, Field, Reply, Snapshot, Update
from rftui.paths import ExperimentDir
from rftui.runs import Run, why_not

_PATIENCE = 120.0
"""Seconds that a scheduler may take to answer, or its first worker to describe the knobs."""


def run_op(arguments: argparse.Namespace) -> int:
    """Stop, resume or delete runs, in the order given."""
    experiment, runs = _check(arguments, arguments.runs)
    if not arguments.yes:
        _ask(runs)
    return _send(experiment, [Command(_new_id(), arguments.op, run.id, by="cli") for run in runs], arguments.json)


def clone(arguments: argparse.Namespace) -> int:
    """Make a new run of one, with other values."""
    arguments.op = "clone"
    pairs = [_pair(text) for text in arguments.changes]
    experiment, [run] = _check(arguments, [arguments.run])
    command = Command(_new_id(), "clone", run.id, warm=arguments.warm, name=arguments.clone_name, by="cli")
    return _send(experiment, [command], arguments.json, pairs, run.algo)


def _check(arguments: argparse.Namespace, wanted: list[str]) -> tuple[ExperimentDir, list[Run]]:
    """The runs that are meant. What is known to be impossible is refused before a scheduler is started for it."""
    if arguments.readonly:
        raise Fault(f"--readonly does not {arguments.op} runs")
    experiment = paths.find(arguments.home, arguments.name)
    known = listing.view(experiment).runs
    runs = [listing.find_run(known, each) for each in wanted]
    if not experiment.alive():
        refusals = [(run, why_not(run, arguments.op)) for run in runs]
        if all(why for _, why in refusals):
            raise Fault(*(f"cannot {arguments.op} run {run.id}: {why}" for run, why in refusals), code=FAILED)
    return experiment, runs


def _ask(runs: list[Run]) -> None:
    if not sys.stdin.isatty():
        raise Fault("delete wants --yes where there is no terminal to ask on")
    names = ", ".join(f"{run.id} ({clean(run.name)})" for run in runs)
    if input(f"delete run {names}? [y/N] ").strip().lower() not in ("y", "yes"):
        raise Fault("nothing was deleted", code=FAILED)


def _pair(text: str) -> tuple[str, str]:
    knob, equals, value = text.partition("=")
    if not equals or not knob.strip():
        raise Fault(f"--set {text}: write it as KNOB=VALUE, such as training_args.learning_rate=1e-4")
    return knob.strip(), value


def _send(
    experiment: ExperimentDir,
    commands: list[Command],
    json: bool,
    pairs: Sequence[tuple[str, str]] = (),
    algo: str = "",
) -> int:
    """Give the commands to the scheduler, which is started where there is none, and print its answers."""
    scheduler = _Scheduler(experiment)
    code = DONE
    try:
        for command in commands:
            reply = scheduler.ask(command, pairs, algo)
            run = command.run if reply.run is None else reply.run
            if json:
                print(dump_line({"ok": reply.ok, "text": reply.text, "run": run}))
            elif reply.ok:
                print(reply.text)
            else:
                print(f"rftui: {reply.text}", file=sys.stderr)
            code = code if reply.ok else FAILED
    finally:
        scheduler.leave()
    return code


def _changes(pairs: Sequence[tuple[str, str]], fields: list[Field]) -> dict[str, Any]:
    by_name = {field.name: field for field in fields}
    changes: dict[str, Any] = {}
    for knob, text in pairs:
        name = validate.resolve(knob, fields)
        if name in changes:
            raise Fault(f"{name} is set twice")
        changes[name] = validate.parse(by_name[name], text)
    return changes


class _Scheduler:
    """The scheduler of an experiment, started where there is none; what it sends is kept until it is asked for."""

    def __init__(self, experiment: ExperimentDir) -> None:
        self._experiment = experiment
        self._schema: dict[str, list[Field]] = {}
        self._replies: dict[str, Reply] = {}
        self._viewer = self._reach()

    def ask(self, command: Command, pairs: Sequence[tuple[str, str]], algo: str) -> Reply:
        """The answer to a command; a clone's `pairs` are read by the knobs of `algo`. Where the scheduler is just
        ending, it is asked of the next one."""
        for again in (True, False):
            try:
                if command.op == "clone":
                    command.changes = _changes(pairs, self._fields(algo))
                self._viewer.send(command)
                self._wait(lambda: command.id in self._replies, "does not answer")
                reply = self._replies.pop(command.id)
                if not (reply.ending and again):
                    return reply
            except LinkLost:
                if not again:
                    raise
            self._await_end()
            if command.run:
                run = listing.find_run(listing.view(self._experiment).runs, str(command.run))
                if reason := why_not(run, command.op):
                    return Reply(command.id, False, f"run {run.id} {run.name}: {command.op} is refused, {reason}")
            self._viewer = self._reach()
        raise AssertionError("unreachable")

    def leave(self) -> None:
        self._viewer.close()

    def _reach(self) -> Viewer:
        self._schema = {}  # each scheduler asks its first worker, and clones nothing before
        if self._experiment.alive():
            try:
                return launching.attach(self._experiment).wait()
            except Fault:
                if self._experiment.alive():
                    raise
        return launch.reopen(self._experiment).wait()

    def _await_end(self) -> None:
        self.leave()
        end = time.monotonic() + _PATIENCE
        while self._experiment.alive():
            if time.monotonic() > end:
                raise Fault(f"the scheduler is still ending after {_PATIENCE:.0f} s; try again later", code=FAILED)
            time.sleep(0.05)

    def _fields(self, algo: str) -> list[Field]:
        """The knobs of an algo, once the scheduler's first worker has described them."""
        self._wait(lambda: algo in self._schema, "has not described its knobs")
        return self._schema[algo]

    def _wait(self, there: Callable[[], bool], trouble: str) -> None:
        end = time.monotonic() + _PATIENCE
        while not there():
            if time.monotonic() > end:
                raise Fault(f"the scheduler {trouble} after {_PATIENCE:.0f} s", code=FAILED)
            for message in self._viewer.poll(1.0):
                if isinstance(message, Reply):
                    self._replies[message.command] = message
                elif isinstance(message, (Snapshot, Update)):
                    self._schema |= message.schema


def _new_id() -> str:
    return secrets.token_hex(8)
