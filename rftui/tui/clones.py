"""Clones as one asks for them: by the form, by a suggestion, or of the best runs on another base model."""

from __future__ import annotations

from rftui.messages import Clone
from rftui.runs import Run, Suggestion
from rftui.tui.host import Host
from rftui.tui.run_ops import Ops
from rftui.tui.screens.clone import CloneScreen
from rftui.tui.screens.clone_draft import CloneRequest
from rftui.tui.screens.promote import PromoteRequest, PromoteScreen


class Clones:
    """Opens the screens, and makes commands of what they answer."""

    def __init__(self, app: Host, ops: Ops) -> None:
        self._app = app
        self._ops = ops
        self._board = app.board

    def clone(self) -> None:
        """The marked runs with the same changes, else the one under the cursor."""
        cursor = self._app.run_at_cursor
        self._open(self._board.targets(cursor.id if cursor else None), None)

    def suggest(self) -> None:
        """The run under the cursor as its suggestion says."""
        run = self._app.run_at_cursor
        suggested = run.suggestion if run else None
        if run and not suggested:
            self._app.say(f"No suggestion for run {run.id}", True)
        else:
            self._open([run] if run else [], suggested)

    def promote(self) -> None:
        """The marked runs, else the best ones, on another base model."""
        board = self._board
        marked = [board.runs[number] for number in board.shown if number in board.marked]
        runs = self._able(marked or [board.runs[number] for number in board.shown])
        if not runs:
            return

        def answered(request: PromoteRequest | None) -> None:
            if request:
                self._send(CloneRequest(request.changes, sweep=request.sweep), request.runs)

        screen = PromoteScreen(runs, board.schema, chosen=bool(marked), ascii=self._app.ascii)
        self._app.push_screen(screen, answered)

    def _able(self, runs: list[Run]) -> list[Run]:
        """Those of `runs` that can be cloned and whose knobs are known; why others cannot is said."""
        able, _ = self._ops.allowed("clone", runs)
        known = [run for run in able if self._board.schema.get(run.algo)]
        if able and not known:
            self._app.say("Can't clone yet: the worker is still loading", True)
        return known

    def _open(self, runs: list[Run], suggested: Suggestion | None) -> None:
        runs = self._able(runs)
        if not runs:
            return
        first, *others = runs

        def answered(request: CloneRequest | None) -> None:
            if request:
                self._send(request, [run for run in runs if run.id in request.parents])

        schema = self._board.schema
        screen = CloneScreen(
            first,
            self._board.alive,
            schema[first.algo],
            others=[(run, schema[run.algo]) for run in others],
            suggested=suggested,
            ascii=self._app.ascii,
        )
        self._app.push_screen(screen, answered)

    def _send(self, request: CloneRequest, parents: list[Run]) -> None:
        self._ops.send(
            [
                Clone(
                    run.id,
                    request.changes,
                    request.warm,
                    request.name,
                    request.sweep,
                    request.from_step,
                    request.continue_schedule,
                    request.stop_parents,
                )
                for run in parents
            ]
        )
