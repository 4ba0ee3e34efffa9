"""Everything about one run, and the end of its log."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rich.text import Text

from rftui.messages import ExperimentInfo
from rftui.paths import ExperimentDir
from rftui.runs import Run, flatten, redact
from rftui.tui.board import clean, number
from rftui.tui.screens.clone import shown
from rftui.tui.screens.pages import Page

_LINES = 60
_UNSET = object()


class DetailScreen(Page):
    """`parent` is the run it was cloned from; `update` shows it anew."""

    def __init__(self, run: Run, parent: Run | None, log_tail: list[str], *, ascii: bool = False) -> None:
        super().__init__(f"run {run.id} {clean(run.name)}", _text(run, parent, log_tail, ascii), ascii=ascii)
        self.run = run
        self._origin = parent

    def update(self, run: Run, log_tail: list[str]) -> None:
        self.run = run
        self.show(_text(run, self._origin, log_tail, self._ascii))


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


def _text(run: Run, parent: Run | None, log_tail: list[str], ascii: bool) -> Text:
    text = Text()
    if run.error:
        text.append(f"error: {clean(run.error)}\n\n", "bold red")
    facts = [
        ("state", f"{run.state}{' on ' + run.device if run.device else ''}, {run.algo}"),
        ("position", f"chunk {run.chunk}/{run.chunks}, step {run.step}/{run.total_steps}, epoch {run.epoch:.2f}"),
        ("lineage", _lineage(run, parent)),
        ("checkpoint", run.checkpoint or "-"),
        ("final", run.final or "-"),
    ]
    if run.stopped_by:
        facts.insert(1, ("stopped by", f"{run.stopped_by}; resume brings it back, and no rule stops it again"))
    elif run.exempt:
        facts.insert(1, ("rules", "leave it alone: it was resumed after one had stopped it"))
    _section(text, "", facts)
    config = flatten(redact(run.config))
    if parent:
        _section(text, f"differs from run {parent.id}", _differences(config, flatten(redact(parent.config)), ascii))
    _section(text, "knobs", [(name, _plain(value)) for name, value in redact(run.knobs).items()])
    _section(text, "last values", [(name, number(value)) for name, value in run.metrics.items()])
    _section(text, "config", [(name, _plain(value)) for name, value in config.items()])
    text.append("log\n", "bold")
    lines = "\n".join(log_tail[-_LINES:])
    # What a run writes may hold the codes of colours and cursor moves, which would reach the terminal.
    return text.append_text(Text.from_ansi(lines)) if lines else text.append("it has written nothing yet", "dim")


def _lineage(run: Run, parent: Run | None) -> str:
    if not run.parent:
        return f"config {run.leaf} of fit {run.fit}"
    start = f"warm from step {run.start_step} (epoch {run.start_epoch:.2f})" if run.warm else "cold"
    text = f"clone of run {run.parent}{' ' + parent.name if parent else ''}, {start}"
    if parent and parent.parent:
        text += f"; which is a {'warm' if parent.warm else 'cold'} clone of run {parent.parent}"
    return text


def _differences(config: dict[str, object], before: dict[str, object], ascii: bool) -> list[tuple[str, str]]:
    arrow = "->" if ascii else "→"
    names = [name for name in before | config if before.get(name, _UNSET) != config.get(name, _UNSET)]
    return [
        (name, f"{_plain(before.get(name, _UNSET))} {arrow} {_plain(config.get(name, _UNSET))}") for name in names
    ] or [("nothing", "")]


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
