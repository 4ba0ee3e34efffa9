"""Everything about one run, and the end of its log."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from rftui.runs import Run, flatten, redact
from rftui.tui.board import number
from rftui.tui.screens.pages import Page


class DetailScreen(Page):
    """`parent` is the run it was cloned from; `update` shows it anew."""

    def __init__(self, run: Run, parent: Run | None, log_tail: list[str], *, ascii: bool = False) -> None:
        super().__init__(f"run {run.id} {run.name}", _text(run, parent, log_tail), ascii=ascii)
        self.run = run
        self._origin = parent

    def update(self, run: Run, log_tail: list[str]) -> None:
        self.run = run
        self.show(_text(run, self._origin, log_tail))


def _text(run: Run, parent: Run | None, log_tail: list[str]) -> Text:
    text = Text()
    if run.error:
        text.append(f"{run.error}\n\n", "bold red")
    where = f"step {run.step}/{run.total_steps}, chunk {run.chunk}/{run.chunks}, epoch {run.epoch:.2f}"
    facts = [("state", f"{run.state}{' on ' + run.device if run.device else ''}, {where}"), ("algo", run.algo)]
    if run.parent:
        start = f"warm from step {run.start_step} (epoch {run.start_epoch:.2f})" if run.warm else "cold"
        facts.append(("parent", f"run {run.parent}{' ' + parent.name if parent else ''}, {start}"))
    facts += [("checkpoint", run.checkpoint or "-"), ("final", run.final or "-")]
    _section(text, "", facts)
    _section(text, "last values", [(name, number(value)) for name, value in run.metrics.items()])
    config, before = flatten(redact(run.config)), flatten(redact(parent.config)) if parent else {}
    rows = []
    for name, value in config.items():
        if value is None and name not in run.knobs:
            continue
        was = f"   was {_plain(before[name])}" if name in before and before[name] != value else ""
        rows.append((("* " if name in run.knobs else "  ") + name, _plain(value) + was))
    _section(text, "config (* swept or changed)", rows)
    text.append("log\n", "bold")
    return text.append("\n".join(log_tail[-60:]) or "it has written nothing yet", "dim")


def _section(text: Text, title: str, rows: Iterable[tuple[str, str]]) -> None:
    rows = list(rows)
    if title:
        text.append(f"{title}\n", "bold")
    width = max([len(name) for name, _ in rows] + [0])
    for name, value in rows:
        text.append(f"{name:<{width}}  ", "cyan")
        text.append(f"{value}\n")
    text.append("\n")


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
