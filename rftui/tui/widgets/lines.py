"""The one-line parts of the screen: status, device, message and footer."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import OverflowMethod
from rich.text import Text
from textual.geometry import Size
from textual.widgets import Static

from rftui.formatting import clean, format_duration
from rftui.messages import Device
from rftui.runs import DONE, FAILED, QUEUED, RUNNING, STOPPED, STOPPING, WAITING, Run, Suggestion
from rftui.tui.actions import ACTIONS, refusal
from rftui.tui.board import Board


class Line(Static):
    """A line of text; it draws anew only when the text changed."""

    DEFAULT_CSS = "Line { height: 1; width: 1fr; }"

    def __init__(self, id: str, *, ascii: bool) -> None:
        super().__init__("", id=id, markup=False)
        self._cut: OverflowMethod = "crop" if ascii else "ellipsis"
        self._shown: Text | None = None

    def show(self, text: Text) -> None:
        text.no_wrap, text.overflow = True, self._cut
        if text != self._shown:
            self._shown = text
            self.update(text)


def status(board: Board, title: str, width: int, *, ascii: bool) -> Text:
    """What the experiment does, its counts, progress, ETA and speed; the rarer parts go where there is room."""
    info = board.experiment
    name = clean(info.name if info else title)
    text = Text(f" rftui  {name}  ", style="bold reverse")
    if info is None:
        return text
    counts = (
        ("run", "▶", ">", board.count(RUNNING, WAITING, STOPPING)),
        ("queued", "…", ".", board.count(QUEUED)),
        ("stopped", "‖", "=", board.count(STOPPED)),
        ("done", "✔", "+", board.count(DONE)),
        ("failed", "✗", "x", board.count(FAILED)),
    )
    shown = [(f"{count} {plain if ascii else glyph}", word) for word, glyph, plain, count in counts if count]
    parts: list[str] = []
    alive = [run for run in board.runs.values() if run.active and run.chunks]
    if alive:
        parts.append(f"chunk {min(run.chunk for run in alive)}/{max(run.chunks for run in alive)}")
    if info.state == "running" and board.active:
        eta = format_duration(info.eta)
        parts.append(f"ETA {'-' if ascii and eta == '–' else eta}")
        if width >= 100 and info.steps_per_second:
            parts.append(f"{info.steps_per_second:.1f} steps/s")
    if info.state != "running" or info.waiting_for:
        parts.append(f"{info.state}{': ' + info.waiting_for if info.waiting_for else ''}")
    if width >= 140:
        parts += [f"scheduler pid {info.pid}", info.path]
    line = "   ".join([*(f"{count} {word}" for count, word in shown), *parts])
    if cell_len(text.plain) + 2 + cell_len(line) > width:  # the words of the states go before the ETA does
        line = "  ".join([*(count for count, _ in shown), *parts])
    return text.append("  " + line, style="not bold not reverse")


def devices(board: Board, *, ascii: bool) -> Text:
    """Each worker's device: what it trains, its load and memory."""
    return Text(("  |  " if ascii else "  │  ").join(_device(device, ascii) for device in board.devices.values()))


def _device(device: Device, ascii: bool) -> str:
    doing = f"run {device.run}" if device.run else "idle" if device.state == "ready" else device.state
    parts = [f" {device.name} {doing}{' not responding' if device.silent else ''}"]
    if device.load is not None and not device.silent:
        full = round(device.load * 10)
        bar = "#" * full + "." * (10 - full) if ascii else "█" * full + "░" * (10 - full)
        parts.append(f"{bar} {device.load:4.0%}")
    if device.memory_used and device.memory_total:
        parts.append(f"{device.memory_used / 1e9:.1f}/{device.memory_total / 1e9:.0f}G")
    return " ".join(parts)


def answer(text: str, refused: bool, *, ascii: bool) -> Text:
    """The message line: an op's answer, or why a key is refused."""
    mark = ("!" if refused else "+") if ascii else ("✗" if refused else "✔")
    return Text(f" {mark} {clean(text)}", style="bold red" if refused else "green")


def hint(run: Run, suggested: Suggestion | None, width: int, *, ascii: bool) -> Text | None:
    """The message line for the run that the cursor comes to: what went wrong, and what could be done."""
    reason = f"! {suggested.reason}" if suggested else ""
    if not run.error and run.stopped_by:
        return answer(f"Run {run.id} stopped by {run.stopped_by}; r resumes it", False, ascii=ascii)
    if not run.error:
        return Text(f" ! Run {run.id} {clean(run.name)}: {reason[2:]}", style="bold yellow") if suggested else None
    failed = f"Run {run.id} {run.name} failed: {run.error}"
    if reason and len(failed) + len(reason) > width - 6:
        failed = f"Run {run.id} failed"  # the reason tells of what, too
    return answer(f"{failed}; {reason}" if reason else failed, True, ascii=ascii)


_SPARE = ("Rules", "Metric", "Mark", "Open", "Filter", "Help", "Quit")


def footer(run: Run | None, size: Size, *, readonly: bool) -> Text:
    """The keys; one that is refused for the run under the cursor is struck out and dim.

    Where there is no room for all, those go that are found in the help just as well.
    """
    if size.height < 10 or size.width < 40:
        return Text(" Needs 40x10; q quits")
    shown = {action.label: action for action in ACTIONS if action.label}
    for label in _SPARE:
        if sum(len(action.shown) + len(action.label) + 3 for action in shown.values()) <= size.width:
            break
        del shown[label]
    text = Text(" ")
    for action in shown.values():
        refused = refusal(action, run, readonly=readonly)
        text.append(action.shown, style="dim strike" if refused else "bold cyan")
        text.append(f" {action.label}  ", style="dim strike" if refused else "")
    return text
