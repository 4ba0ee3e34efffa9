"""Everything about one run, and the end of its log."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.text import Text

from rftui.formatting import clean, format_cell
from rftui.messages import ExperimentInfo
from rftui.naming import short
from rftui.paths import ExperimentDir
from rftui.redaction import redact
from rftui.runs import Run, flatten
from rftui.tui.lineage import drawn, family
from rftui.tui.screens.clone_fields import shown
from rftui.tui.screens.pages import Page

_LINES = 60
_UNSET = object()


class DetailScreen(Page):
    """`runs` are all runs, its family among them; `update` shows it anew."""

    def __init__(self, run: Run, runs: Mapping[int, Run], log_tail: list[str], *, ascii: bool = False) -> None:
        super().__init__(f"Run {run.id} {clean(run.name)}", _text(run, runs, log_tail, ascii), ascii=ascii)
        self.run = run
        self._runs = runs

    def update(self, run: Run, log_tail: list[str]) -> None:
        self.run = run
        self.show(_text(run, self._runs, log_tail, self._ascii))


def log_tail(experiment: ExperimentInfo | None, run: Run, lines: int = _LINES) -> list[str]:
    """The last lines of what the run wrote; none where its directory is not on this machine."""
    if experiment is None:
        return []
    try:
        with open(ExperimentDir(Path(experiment.path)).run(run.id).log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 300 * lines))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []


def _text(run: Run, runs: Mapping[int, Run], log_tail: list[str], ascii: bool) -> Text:
    text = Text()
    if run.error:
        text.append(f"error: {clean(run.error)}\n\n", "bold red")
    facts = [
        ("state", f"{run.state}{' on ' + run.device if run.device else ''}, {run.algo}"),
        ("position", f"chunk {run.chunk}/{run.chunks}, step {run.step}/{run.total_steps}, epoch {run.epoch:.2f}"),
        ("origin", _origin(run)),
        ("checkpoint", run.checkpoint or "-"),
        ("final", run.final or "-"),
    ]
    if run.stopped_by:
        facts.insert(1, ("stopped by", f"{run.stopped_by}; resume it and no rule stops it again"))
    elif run.exempt:
        facts.insert(1, ("rules", "off for this run: it was resumed after a rule stopped it"))
    _section(text, "", facts)
    config = flatten(redact(run.config))
    _family(text, run, runs, ascii)
    if parent := runs.get(run.parent or 0):
        _section(text, f"changes from run {parent.id}", _differences(config, flatten(redact(parent.config)), ascii))
    _section(text, "settings", [(name, _plain(value)) for name, value in redact(run.knobs).items()])
    _section(text, "last values", [(name, format_cell(value)) for name, value in run.metrics.items()])
    _section(text, "config", [(name, _plain(value)) for name, value in config.items()])
    text.append("log\n", "bold")
    lines = "\n".join(log_tail[-_LINES:])
    # What a run writes may hold the codes of colours and cursor moves, which would reach the terminal.
    return text.append_text(Text.from_ansi(lines)) if lines else text.append("No output yet", "dim")


def _origin(run: Run) -> str:
    if not run.parent:
        return f"from config {run.config_index} of fit {run.fit}"
    start = f"warm from step {run.start_step} (epoch {run.start_epoch:.2f})" if run.warm else "cold"
    schedule = ", schedule continued" if run.continue_schedule else ""
    return f"clone of run {run.parent}, {start}{schedule}"


def _family(text: Text, run: Run, runs: Mapping[int, Run], ascii: bool) -> None:
    """All ancestors and their descendants, and what each changed."""
    those = {**runs, run.id: run}
    branches = family(those, run.id)
    if len(branches) < 2:
        return
    text.append("lineage\n", "bold")
    lines = [(those[n], f"{drawn(branch, ascii=ascii)}{n} {clean(those[n].name)}") for n, branch in branches.items()]
    width = max(len(name) for _, name in lines)
    for each, name in lines:
        text.append(f"{'>' if each.id == run.id else ' '} {name:<{width}}", "bold" if each.id == run.id else "")
        text.append(f"  {each.state:<8}", "dim")
        if origin := those.get(each.parent or 0):
            start = f"warm @step {each.start_step}" if each.warm else "cold"
            changes = _differences(flatten(redact(each.config)), flatten(redact(origin.config)), ascii)
            line = ", ".join(f"{short(knob)} {change}".strip() for knob, change in changes)
            text.append(f"  {start}: {clean(line)}")
        text.append("\n")
    text.append("\n")


def _differences(config: dict[str, object], before: dict[str, object], ascii: bool) -> list[tuple[str, str]]:
    arrow = "->" if ascii else "→"
    names = [name for name in before | config if before.get(name, _UNSET) != config.get(name, _UNSET)]
    return [
        (name, f"{_plain(before.get(name, _UNSET))} {arrow} {_plain(config.get(name, _UNSET))}") for name in names
    ] or [("none", "")]


def _section(text: Text, title: str, rows: Iterable[tuple[str, str]]) -> None:
    rows = list(rows)
    if not rows:
        return
    if title:
        text.append(f"{title}\n", "bold")
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        text.append(f"{name:<{width}}  ", "cyan")
        text.append(f"{clean(value)}\n")
    text.append("\n")


def _plain(value: object) -> str:
    return "unset" if value is _UNSET else shown(value)
