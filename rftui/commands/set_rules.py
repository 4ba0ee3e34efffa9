"""`rules`: the rules of an experiment from the shell."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from dataclasses import asdict

from rftui import paths
from rftui.automl import rules as kinds
from rftui.automl.rules import Switch
from rftui.client import Connection
from rftui.commands.text import dump, dump_line, pair, table
from rftui.errors import DONE, FAILED, UserError
from rftui.messages import Command, SetRule
from rftui.paths import ExperimentDir
from rftui.store import Store


def rules(arguments: argparse.Namespace) -> int:
    """List the rules, or switch one on or off."""
    experiment = paths.find(arguments.home, arguments.name)
    with closing(Store.read(experiment.db)) as store:
        switches = kinds.read(store.meta("rules"))
    if arguments.word is None:
        print(dump(_plain(switches)) if arguments.json else _listed(switches))
        return DONE
    if arguments.readonly:
        raise UserError("can't switch rules with --readonly")
    if arguments.rule is None:
        raise UserError(f"which rule? rftui rules {experiment.name} {arguments.word} RULE: {', '.join(switches)}")
    kinds.kind(arguments.rule)
    changes = {
        name: kinds.parse(name, text)
        for name, text in [pair(text, "PARAMETER=VALUE, such as patience=4") for text in arguments.changes]
    }
    changes["on"] = arguments.word == "on"
    kinds.switched(switches[arguments.rule], changes, {})  # what cannot be needs no scheduler to say so
    command = SetRule(arguments.rule, changes, by="cli")
    return _switch(experiment, command, arguments.json)


def _switch(experiment: ExperimentDir, command: Command, json: bool) -> int:
    with Connection(experiment, "cli") as connection:
        reply = connection.ask(command)
    if json:
        print(dump_line({"ok": reply.ok, "text": reply.text}))
    else:
        print(reply.text if reply.ok else f"rftui: {reply.text}", file=sys.stdout if reply.ok else sys.stderr)
    return DONE if reply.ok else FAILED


def _plain(switches: dict[str, Switch]) -> list[dict[str, object]]:
    return [
        {"name": name, "on": switch.on, "about": switch.rule.about, "parameters": asdict(switch.rule)}
        for name, switch in switches.items()
    ]


def _listed(switches: dict[str, Switch]) -> str:
    rows = [
        [name, "on" if switch.on else "off", kinds.format_rule(switch.rule), switch.rule.about]
        for name, switch in switches.items()
    ]
    return table(["RULE", "IS", "WITH", "WHAT IT DOES"], rows)
