"""Getting the workers going, and keeping them so: start, check of the configs, first turns, deaths."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rftui import messages
from rftui.link import Server
from rftui.scheduler.board import Board
from rftui.scheduler.predecessors import Predecessors
from rftui.scheduler.takeup import take_up
from rftui.scheduler.turns import Turns
from rftui.scheduler.workers import Workers


class Crew:
    """`begun`: the workers were started. `faults`: what is wrong with the configs of `fit`, a line each; `broken`: why
    no worker can be started. Either means the end."""

    def __init__(self, board: Board, server: Server, workers: Workers, turns: Turns, fit: int | None) -> None:
        self.begun = False
        self.faults: list[str] = []
        self.broken = ""
        self._predecessors = Predecessors(board.experiment, board.store)
        self._server = server
        self._board = board
        self._workers = workers
        self._turns = turns
        self._fit = fit
        self._early_deaths: Counter[str] = Counter()

    def begin(self) -> None:
        """Take the experiment up and start the workers, once nothing of an earlier scheduler lives. Raises Fault."""
        if not self._predecessors.gone():
            self._board.set_info("loading", "the workers of an earlier scheduler end their step")
            return
        self.begun = True
        self._board.set_info("loading", "the workers import torch and TRL")
        for name in self._workers.slots:
            self._board.devices[name].pid = self._workers.start(name)
            self._board.touch_device(name)
        take_up(self._board, self._turns)

    def hear(self, worker: str, report: Any) -> None:
        """What a worker, or its watcher, says."""
        match report:
            case messages.Ready(pid):
                self._ready(worker, pid)
            case messages.Schema(fields):
                self._board.set_schema(fields)
            case messages.Checked():
                self._checked(report)
            case messages.Gauge(used, total, load):
                device = self._board.devices[worker]
                device.memory_used, device.memory_total, device.load = used, total, load
                self._board.touch_device(worker, urgent=False)
            case messages.Note(text, run, level):
                self._board.log(text, self._board.runs.get(run or 0), level)
            case messages.Gone(status):
                self._gone(worker, status)
            case _:
                self._turns.report(worker, report)

    def _ready(self, worker: str, pid: int) -> None:
        """A worker stands; the first one describes the knobs and checks the configs."""
        device = self._board.devices[worker]
        device.state, device.pid = "ready", pid
        self._board.touch_device(worker)
        if worker == next(iter(self._workers.slots)):
            if not self._board.schema:
                self._server.task(worker, messages.Describe(sorted({run.algo for run in self._board.runs.values()})))
            if self._fit is not None and not self._turns.open:
                runs = [run for run in self._board.runs.values() if run.fit == self._fit]
                self._board.set_info("loading", "the configs are checked")
                self._server.task(worker, messages.Check(self._fit, runs))
        if self._fit is None:
            self._open_turns()

    def _checked(self, answer: messages.Checked) -> None:
        """Turns are given unless a config has faults."""
        for run, text in answer.notices:
            self._board.log(text, self._board.runs.get(run or 0), "notice")
        for run, text in answer.faults:
            named = self._board.runs.get(run or 0)
            self.faults.append(f"run {named.id} {named.name}: {text}" if named else text)
            self._board.log(text, named, "error")
        if not self.faults:
            self._open_turns()

    def _gone(self, worker: str, status: int) -> None:
        """A worker died: its runs go back, and it is started again unless it cannot be."""
        device = self._board.devices[worker]
        early = device.state != "ready" or not self._turns.open
        self._early_deaths[worker] = self._early_deaths[worker] + 1 if early else 0
        words = self._workers.last_words(worker)
        device.state = "lost"
        self._board.touch_device(worker)
        self._turns.lost(worker)
        if self._early_deaths[worker] > 1:
            self.broken = f"worker {worker} could not start: {words}; see {self._workers.log(worker)}"
            self._board.log(self.broken, None, "error")
            return
        self._board.log(f"worker {worker} died (status {status}: {words}) and is started again", None, "error")
        device.pid, device.state = self._workers.start(worker), "starting"

    def _open_turns(self) -> None:
        self._turns.open = True
        self._board.set_info("running")
