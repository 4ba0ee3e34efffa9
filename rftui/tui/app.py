"""The viewer: a Textual app over a link to the scheduler. It holds plain data only and never touches a model."""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any, ClassVar

os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")  # read when textual is imported
os.environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import Input, Static

from rftui.faults import DONE, FAILED, INTERRUPTED
from rftui.link import Launch, LinkLost, Viewer
from rftui.messages import Command, Reply, Snapshot, Update
from rftui.paths import ExperimentDir
from rftui.runs import FAILED as RUN_FAILED
from rftui.runs import Run
from rftui.tui.actions import ACTIONS, Action, refusal
from rftui.tui.board import Board, Change, number
from rftui.tui.screens.clone import CloneRequest, CloneScreen
from rftui.tui.screens.confirm import ConfirmScreen
from rftui.tui.screens.detail import DetailScreen
from rftui.tui.screens.help import HelpScreen
from rftui.tui.screens.quit import QuitScreen
from rftui.tui.widgets.lines import Line, devices, footer, status
from rftui.tui.widgets.panels import EventLog, PlotPanel
from rftui.tui.widgets.run_table import RunTable

_PAINT = 0.25  # seconds between two paintings of rows whose numbers changed
_DRAW = 0.5  # seconds between two drawings of the plot
_DOING = {"stop": "stopping", "resume": "resuming", "delete": "deleting"}


class RftuiApp(App[int]):
    """`launch` gives the link once the scheduler serves; until then the app shows what is being waited for."""

    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (140, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-small"), (10, "-tiny"), (20, "-short"), (34, "-tall")]
    BINDINGS: ClassVar[list[Any]] = [
        Binding(action.keys, action.name, action.label or action.help, show=False) for action in ACTIONS
    ]

    def __init__(self, launch: Launch, *, readonly: bool = False, ascii: bool = False) -> None:
        super().__init__(ansi_color=True)
        self.board = Board()
        self._launch = launch
        self._readonly = readonly
        self._ascii = ascii
        self._viewer: Viewer | None = None
        self._commands: dict[str, Run] = {}
        self._change = Change()
        self._metric = "loss"
        self._began = time.monotonic()
        self._leaving: int | None = None
        self._lost = False
        self._gone = threading.Event()
        self.words: list[str] = []

    def compose(self) -> ComposeResult:
        yield Line("status")
        yield Static("", id="launch", markup=False)
        yield RunTable(self.board, ascii=self._ascii)
        with Horizontal(id="bottom"):
            yield PlotPanel(self.board, ascii=self._ascii)
            yield EventLog()
        yield Input(placeholder="filter runs; enter keeps it, esc clears it", id="filter", compact=True)
        yield Line("devices")
        yield Line("message")
        yield Line("footer")

    def on_mount(self) -> None:
        self.screen.add_class("-launching")
        self.table.border_title = "1 runs"
        self._show_launch([])
        self._paint_lines()
        self.set_interval(_PAINT, self._paint)
        self.set_interval(_DRAW, self._draw)
        self._follow()

    def on_unmount(self) -> None:
        self._gone.set()
        if self._viewer:
            self._viewer.close()

    @property
    def table(self) -> RunTable:
        return self.query_one(RunTable)

    @property
    def run_at_cursor(self) -> Run | None:
        return self.board.runs.get(self.table.cursor or 0)

    # ------------------------------------------------------------ the link

    @work(thread=True, exit_on_error=True)
    def _follow(self) -> None:
        """Take messages from the link, in a thread that touches no widget."""
        while not self._gone.is_set():
            ended = self._launch.exit_status is not None
            viewer = self._launch.poll()
            if viewer is None:
                if ended:
                    self.call_from_thread(self._never_served)
                    return
                self.call_from_thread(self._show_launch, self._launch.tail(8))
                self._gone.wait(0.1)
                continue
            self._viewer = viewer
            try:
                while not self._gone.is_set():
                    messages = viewer.poll(0.5)
                    if messages:
                        self.call_from_thread(self._receive, messages)
            except LinkLost:
                if not self._gone.is_set():
                    self.call_from_thread(self._link_lost)
            return

    def _receive(self, messages: list[Any]) -> None:
        urgent = False
        for message in messages:
            match message:
                case Snapshot():
                    self._merge(self.board.reset(message))
                    self.screen_stack[0].remove_class("-launching")
                    self.table.focus()
                    urgent = True
                case Update():
                    change = self.board.apply(message)
                    urgent |= bool(change.layout or change.events or message.runs and not message.points)
                    for run in message.runs:
                        if self.table.pending.get(run.id) and run.state != self._state_before.get(run.id):
                            del self.table.pending[run.id]
                    self._merge(change)
                case Reply():
                    self._replied(message)
        if urgent:
            self._paint()

    def _merge(self, change: Change) -> None:
        mine = self._change
        mine.runs |= change.runs
        mine.curves |= change.curves
        for part in ("events", "devices", "experiment", "layout"):
            setattr(mine, part, getattr(mine, part) or getattr(change, part))

    def _replied(self, reply: Reply) -> None:
        run = self._commands.pop(reply.command, None)
        if run is None:
            return
        if not reply.ok and self.table.pending.pop(run.id, ""):
            self.table.refresh_runs({run.id})
        self.say(reply.text, refused=not reply.ok)

    def _link_lost(self) -> None:
        self._lost = True
        if self._leaving is not None:
            self.exit(self._leaving)
            return
        state = self.board.experiment.state if self.board.experiment else ""
        if state == "done":
            self.say("the experiment has ended; q leaves")
        else:
            self.say("the scheduler has ended: this is its last word. q leaves, `rftui open` goes on", refused=True)

    def _never_served(self) -> None:
        """The script ended before it served a viewer: what it wrote says why."""
        self.words = self._launch.tail(200)
        self.exit(self._launch.exit_status or 0)

    # ------------------------------------------------------------ painting

    def _show_launch(self, tail: list[str]) -> None:
        if self.board.experiment is None:
            text = Text(f"{self._launch.title}: waiting for the script ({time.monotonic() - self._began:.0f} s)\n\n")
            text.append("\n".join(tail) or "it has written nothing yet", style="dim")
            self.query_one("#launch", Static).update(text)

    def _paint(self) -> None:
        """Bring the screen up to what changed since the last time."""
        if len(self.screen_stack) > 1 and isinstance(self.screen, DetailScreen):
            self._refresh_detail(self.screen)
        change, self._change = self._change, Change()
        if change.layout:
            self.table.rearrange()
            self.table.border_subtitle = self._table_subtitle()
        elif change.runs:
            self.table.refresh_runs(change.runs)
        if change.events:
            self.query_one(EventLog).show(self.board.events)
        self._paint_lines()

    def _paint_lines(self) -> None:
        width = self.size.width
        self.query_one("#status", Line).show(status(self.board, self._launch.title, width, ascii=self._ascii))
        self.query_one("#devices", Line).show(devices(self.board, ascii=self._ascii))
        line = footer(self.run_at_cursor, width, readonly=self._readonly)
        if self.size.height < 10 or width < 40:
            line = Text(f" {width}x{self.size.height} is too small: 40x10 or more. q quits")
        self.query_one("#footer", Line).show(line)

    def _draw(self) -> None:
        self.query_one(PlotPanel).draw(self._metric, self.table.cursor)

    def _table_subtitle(self) -> str:
        parts = [f"filter {self.board.filter!r}"] if self.board.filter else []
        parts += [f"by {self.board.sort}"] if self.board.sort else []
        parts += [f"{len(self.board.marked)} marked"] if self.board.marked else []
        return "  ".join(parts).replace("[", r"\[")

    def say(self, text: str, *, refused: bool = False) -> None:
        """On the message line: an op's answer, or why a key is refused."""
        mark = ("!" if refused else "+") if self._ascii else ("✗" if refused else "✔")
        self.query_one("#message", Line).show(Text(f" {mark} {text}", style="bold red" if refused else "green"))

    def on_run_table_cursor_moved(self) -> None:
        run = self.run_at_cursor
        self._paint_lines()
        if run and run.error and run.state == RUN_FAILED:
            self.say(f"run {run.id} {run.name} failed: {run.error}", refused=True)

    def on_resize(self) -> None:
        self._paint_lines()

    # ------------------------------------------------------------ ops

    @property
    def _state_before(self) -> dict[int, str]:
        return {run.id: run.state for run in self._commands.values()}

    def action_op(self, op: str) -> None:
        for run in self._allowed(op):
            self._send(Command(uuid.uuid4().hex, op, run.id), run)

    def action_delete(self) -> None:
        self._delete()

    @work
    async def _delete(self) -> None:
        runs = self._allowed("delete")
        if not runs:
            return
        named = ", ".join(f"{run.id} {run.name}" for run in runs)
        active = any(run.active for run in runs)
        consequence = (
            "It is stopped at its next step. " if active else ""
        ) + "Its checkpoints, adapter and MLflow run go when the experiment ends. Clones of it keep their weights."
        if await self.push_screen_wait(ConfirmScreen(f"Delete run {named}?", consequence, ascii=self._ascii)):
            for run in runs:
                self._send(Command(uuid.uuid4().hex, "delete", run.id), run)

    def action_clone(self) -> None:
        self._clone()

    @work
    async def _clone(self) -> None:
        runs = self._allowed("clone", only=self.run_at_cursor)
        if not runs:
            return
        run = runs[0]
        fields = self.board.schema.get(run.algo, [])
        if not fields:
            self.say("clone is refused: the knobs are not known yet, the first worker is still starting", refused=True)
            return
        alive = [self.board.runs[number] for number in self.board.shown]
        request: CloneRequest | None = await self.push_screen_wait(CloneScreen(run, alive, fields, ascii=self._ascii))
        if request is None:
            return
        command = Command(uuid.uuid4().hex, "clone", run.id, request.changes, request.warm, request.name)
        self._send(command, run)
        if request.stop_parent:
            self._send(Command(uuid.uuid4().hex, "stop", run.id), run)

    def _allowed(self, op: str, only: Run | None = None) -> list[Run]:
        """The runs that the op acts on; says why the others are left out."""
        action: Action = next(action for action in ACTIONS if action.op == op)
        runs = [only] if only else self.board.targets(self.table.cursor)
        if self._lost:
            self.say(f"{op} is refused: the scheduler has ended", refused=True)
            return []
        reasons = {run.id: refusal(action, run, readonly=self._readonly) for run in runs}
        if not runs and (reason := refusal(action, None, readonly=self._readonly)):
            self.say(f"{op} is refused: {reason}", refused=True)
        for run in runs:
            if reason := reasons[run.id]:
                self.say(f"run {run.id} {run.name}: {op} is refused, {reason}", refused=True)
        return [run for run in runs if not reasons[run.id]]

    def _send(self, command: Command, run: Run) -> None:
        if self._viewer is None:
            return
        try:
            self._commands[command.id] = run
            self._viewer.send(command)
        except LinkLost:
            self._link_lost()
            return
        if command.op in _DOING:
            self.table.pending[run.id] = _DOING[command.op]
            self.table.refresh_runs({run.id})
        self.say(f"run {run.id} {run.name}: {command.op} asked for")

    # ------------------------------------------------------------ keys of the view

    def action_move(self, rows: int) -> None:
        self.table.move(rows)

    def action_mark(self) -> None:
        if (cursor := self.table.cursor) is not None:
            self.board.marked ^= {cursor}
            self.table.refresh_runs({cursor})
            self.table.border_subtitle = self._table_subtitle()
            self.table.move(1)

    def action_clear(self) -> None:
        marked, self.board.marked = self.board.marked, set()
        self.board.set_filter("")
        self.query_one("#filter", Input).display = False
        self.table.focus()
        self._merge(Change(runs=marked, layout=True))
        self._paint()

    def action_metric(self, step: int) -> None:
        metrics = self.board.metrics()
        if metrics:
            at = metrics.index(self._metric) if self._metric in metrics else 0
            self._metric = self.table.metric = metrics[(at + step) % len(metrics)]
            self._merge(Change(layout=True))
            self._paint()
            self._draw()

    def action_sort(self) -> None:
        orders = [None, "loss", "eval_loss"]
        self.board.sort_by(orders[(orders.index(self.board.sort) + 1) % len(orders)])
        self._merge(Change(layout=True))
        self._paint()

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.display = True
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter":
            self.board.set_filter(event.value)
            self._merge(Change(layout=True))
            self._paint()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "filter":
            event.input.display = False
            self.table.focus()

    def action_panel(self, panel: str) -> None:
        widget = self.query_one(f"#{panel}")
        widget.display = not widget.display
        self.query_one("#bottom").display = any(child.display for child in self.query_one("#bottom").children)

    def action_detail(self) -> None:
        if run := self.run_at_cursor:
            self.push_screen(
                DetailScreen(run, self.board.runs.get(run.parent or 0), self._log_tail(run), ascii=self._ascii)
            )

    def _refresh_detail(self, screen: Screen[Any]) -> None:
        assert isinstance(screen, DetailScreen)
        if (run := self.board.runs.get(screen.run.id)) and run.id in self._change.runs:
            screen.update(run, self._log_tail(run))

    def _log_tail(self, run: Run) -> list[str]:
        if self.board.experiment is None:
            return []
        try:
            with open(ExperimentDir(Path(self.board.experiment.path)).run(run.id).log, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 20_000))
                return file.read().decode(errors="replace").splitlines()[-200:]
        except OSError:
            return []

    def action_help(self) -> None:
        run = self.run_at_cursor
        groups: dict[str, list[tuple[str, str, str | None]]] = {}
        for action in ACTIONS:
            reason = refusal(action, run, readonly=self._readonly)
            groups.setdefault(action.group, []).append((action.shown, action.help, reason))
        self.push_screen(HelpScreen(list(groups.items()), ascii=self._ascii))

    def action_quit(self) -> None:  # type: ignore[override]
        self._quit()

    @work
    async def _quit(self) -> None:
        if self._lost or self._viewer is None or self._leaving is not None:
            code = INTERRUPTED if self._viewer is None else self._code()
            self.exit(code if self._leaving is None else self._leaving)
        elif self._readonly:
            self.exit(DONE)
        elif self.board.active:
            name = self.board.experiment.name if self.board.experiment else ""
            answer = await self.push_screen_wait(QuitScreen(self.board.active, name, ascii=self._ascii))
            if answer == "leave":
                self.exit(DONE)
            elif answer == "halt":
                self._part("halt", INTERRUPTED, "every run stops at its next step; q leaves without waiting")
        else:
            self._part("finish", self._code(), "the scheduler ends; q leaves without waiting")

    def _part(self, op: str, code: int, text: str) -> None:
        """Have the scheduler end, and leave when it has."""
        assert self._viewer
        self._leaving = code
        self.say(text)
        try:
            self._viewer.send(Command(uuid.uuid4().hex, op))
        except LinkLost:
            self.exit(code)

    def _code(self) -> int:
        return FAILED if self.board.count(RUN_FAILED) else DONE


def run(launch: Launch, *, readonly: bool = False, ascii: bool = False) -> int:
    """Show the experiment until its user leaves; returns the exit code, and prints how the runs stand."""
    app = RftuiApp(launch, readonly=readonly, ascii=ascii)
    code = app.run()
    for line in _summary(app):
        encoding = sys.stdout.encoding or "ascii"
        print(line.encode(encoding, "replace").decode(encoding))
    if app.return_code:
        return app.return_code
    return code if code is not None else INTERRUPTED


def _summary(app: RftuiApp) -> list[str]:
    if app.words:
        return app.words if len(app.words) < 5 else app.words[-3:]
    runs = [app.board.runs[run] for run in app.board.shown]
    width = max([len(run.name) for run in runs] + [4])
    lines = [
        f"{run.id:>4}  {run.name:<{width}}  {run.state:<8}  {run.chunk}/{run.chunks}  "
        f"loss {number(run.metrics.get('loss'))}  eval {number(run.metrics.get('eval_loss'))}"
        for run in runs
    ]
    return lines + ([f"rftui open {app.board.experiment.name} opens it again"] if app.board.experiment else [])
