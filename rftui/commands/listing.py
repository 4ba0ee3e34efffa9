"""`ls` and `show`: what the experiments' databases say, read without disturbing anyone."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import Any

from rftui import paths
from rftui.commands.text import dump, table
from rftui.errors import DONE, UserError
from rftui.formatting import clean, format_cell, format_number, format_value
from rftui.naming import short
from rftui.runs import ACTIVE, Run
from rftui.runs import FAILED as RUN_FAILED
from rftui.store import Store
from rftui.views import View, find_run, view

FIELDS = (
    "id name state chunk chunks step total_steps epoch device parent knobs metrics error suggestion checkpoint final"
).split()

_METRICS = ("loss", "eval_loss", "reward", "eval_reward")
_OPTIONAL = ("error", "checkpoint", "final")


def views(home: Any) -> list[View]:
    """All experiments of the home, newest first; one that cannot be read is told on stderr and left out."""
    found = []
    for experiment in paths.all_in(home):
        try:
            found.append(view(experiment))
        except UserError as fault:
            print(f"rftui: {experiment.name}: {fault}", file=sys.stderr)
    return found


def ls(arguments: argparse.Namespace) -> int:
    found = views(arguments.home)
    if arguments.json:
        print(dump([_summary(each) for each in found]))
    else:
        print(
            "\n".join([experiments_table(found, arguments.home), *filter(None, (each.incomplete for each in found))])
        )
    return DONE


def experiments_table(found: list[View], home: Any) -> str:
    if not found:
        return f"no experiments in {home} yet: rftui init writes samples, rftui run SCRIPT starts one"
    rows = []
    for each in found:
        summary = _summary(each)
        shown = [clean(summary["name"], 60), summary["state"]]
        rows.append(shown + [str(summary[key]) for key in ("runs", "active", "done", "failed")])
    return table(["NAME", "STATE", "RUNS", "ACTIVE", "DONE", "FAILED"], rows)


def _summary(each: View) -> dict[str, Any]:
    states = [run.state for run in each.runs]
    return {
        "name": each.experiment.name,
        "state": each.state,
        "runs": len(states),
        "active": sum(state in ACTIVE for state in states),
        "done": states.count("done"),
        "failed": states.count(RUN_FAILED),
        "path": str(each.experiment.path),
    }


def show(arguments: argparse.Namespace) -> int:
    experiment = paths.find(arguments.home, arguments.name)
    found = view(experiment)
    if arguments.run is not None:
        run = find_run(found.runs, arguments.run)
        with closing(Store.read(experiment.db)) as store:
            if arguments.json:
                print(dump(_plain(run) | {"curves": store.curves(run.id).get(run.id, {})}))
            else:
                print(_run_lines(run, store.counts(run.id)))
    elif arguments.json:
        runs = [_plain(run) for run in found.runs]
        print(dump({"name": experiment.name, "state": found.state, "path": str(experiment.path), "runs": runs}))
    else:
        print(f"{experiment.name}: {found.state}, {len(found.runs)} runs, {experiment.path}")
        if found.incomplete:
            print(found.incomplete)
        if found.runs:
            print(_runs_table(found.runs))
        for run in found.runs:
            if run.error:
                print(f"run {run.id}: {clean(run.error, 300)}")
            elif run.stopped_by:
                print(f"run {run.id}: stopped by {clean(run.stopped_by, 300)}")
            if run.suggestion:
                print(f"run {run.id}: suggested: {clean(run.suggestion.reason, 300)}")
    return DONE


def _plain(run: Run) -> dict[str, Any]:
    plain = run.to_dict()
    return {key: plain[key] for key in FIELDS}


def _runs_table(runs: list[Run]) -> str:
    plain = [_plain(run) for run in runs]
    metrics = [name for name in _METRICS if any(name in run["metrics"] for run in plain)]
    knobs = list(dict.fromkeys(knob for run in plain for knob in run["knobs"]))
    header = ["ID", "NAME", "STATE", "CHUNK", "STEP", "EPOCH", *(name.upper() for name in metrics), "DEVICE", "PARENT"]
    rows = []
    for run in plain:
        row = [str(run["id"]), clean(run["name"], 40), run["state"]]
        row += [
            f"{run['chunk']}/{run['chunks']}",
            f"{run['step']}/{run['total_steps']}",
            format_number(run["epoch"], 3),
        ]
        row += [format_cell(run["metrics"].get(name)) for name in metrics]
        row += [format_cell(run["device"]), format_cell(run["parent"])]
        rows.append(row + [clean(format_cell(run["knobs"].get(knob)), 60) for knob in knobs])
    return table(header + [short(knob) for knob in knobs], rows)


def _run_lines(run: Run, counts: dict[str, int]) -> str:
    plain = _plain(run)
    pairs = [
        (key, format_value(plain[key])) for key in FIELDS if key not in ("knobs", "metrics", "suggestion", *_OPTIONAL)
    ]
    pairs += [(key, clean(plain[key], 300)) for key in _OPTIONAL if plain[key]]
    pairs += [("stopped by", clean(run.stopped_by, 300))] if run.stopped_by else []
    pairs += [("suggested", clean(run.suggestion.reason, 300))] if run.suggestion else []
    pairs += [(knob, clean(format_value(value), 300)) for knob, value in plain["knobs"].items()]
    pairs += [
        (name, f"{format_number(value)}  ({counts.get(name, 0)} points)") for name, value in plain["metrics"].items()
    ]
    width = max(len(key) for key, _ in pairs)
    return "\n".join(f"{key.ljust(width)}  {value}" for key, value in pairs)
