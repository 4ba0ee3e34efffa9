"""An experiment under control from the shell or from Python: the ops of the keys, with the same answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from rftui import launching, paths
from rftui.config import validate
from rftui.errors import FAILED, UserError
from rftui.link import LinkLost
from rftui.messages import RUN_COMMANDS, Clone, Command, Field, Reply, RunCommand, SetRule
from rftui.paths import ExperimentDir
from rftui.runs import Run, Suggestion, refusal, why_not
from rftui.session import NotServed, Session
from rftui.store import Store
from rftui.views import find_run, find_runs, view

_PATIENCE = 120.0
"""Seconds that a scheduler may take to end, to start, to answer, or its first worker to describe the knobs."""


Changes = tuple[dict[str, Any], dict[str, list[Any]]]
"""Dotted knob -> its new value, and dotted knob -> several values."""


class Connection:
    """The ops on one experiment. A scheduler is found, or started by the first op that needs one.

    Runs are named by number, by name, or as "best" and "best:K". What is refused raises a UserError with the same
    words that the screen would show; of several runs all are asked first.
    """

    def __init__(self, experiment: ExperimentDir, by: str) -> None:
        self.experiment = experiment
        self._by = by
        self._session: Session | None = None

    # ------------------------------------------------------------ looking

    @property
    def state(self) -> str:
        """ "loading", "running", "idle", "done" or "interrupted"."""
        return view(self.experiment).state

    @property
    def runs(self) -> list[Run]:
        """All runs as they stand, deleted ones too."""
        return view(self.experiment).runs

    def run(self, wanted: int | str) -> Run:
        """Raises UserError where there is no such run."""
        return find_run(self.runs, str(wanted))

    def curves(self, run: int | str) -> dict[str, list[tuple[int, float]]]:
        """metric -> [(step, value), ...] in step order."""
        number = self.run(run).id
        with closing(Store.read(self.experiment.db)) as store:
            return store.curves(number).get(number, {})

    def suggestion(self, run: int | str) -> Suggestion | None:
        """A clone to try, where the run failed or its curves go wrong; the scheduler's, as the screen shows it."""
        return self.run(run).suggestion

    def wait(self, until: Callable[[list[Run]], bool] | None = None) -> list[Run]:
        """Until `until(runs)` is true (no run is active, unless told), or the scheduler has ended; the runs then."""
        seen: Session | None = None
        try:
            while self.experiment.alive():
                runs = self.runs
                if until(runs) if until else not any(run.active for run in runs):
                    return runs
                if seen is None:
                    seen = Session(brief=True)
                    seen.go_on(self.experiment)
                try:
                    seen.poll(1.0)
                except (LinkLost, UserError):
                    seen = None
                    time.sleep(0.1)  # it is ending
        finally:
            if seen:
                seen.leave()
        return self.runs

    # ------------------------------------------------------------ the ops

    def stop(self, *runs: int | str) -> list[str]:
        """At the next step of each; they can be resumed. What was answered, a line for each."""
        return self._all("stop", runs)

    def resume(self, *runs: int | str) -> list[str]:
        """From the exact step of each."""
        return self._all("resume", runs)

    def delete(self, *runs: int | str) -> list[str]:
        """Their files go as the scheduler ends (where nothing trains, 10 s after its last viewer left); until then
        `undo` brings them back."""
        return self._all("delete", runs)

    def undo(self, *runs: int | str) -> list[str]:
        """Bring back deleted runs."""
        return self._all("undo", runs)

    def clone(
        self,
        run: int | str,
        changes: dict[str, Any] | None = None,
        *,
        warm: bool = False,
        name: str | None = None,
        from_step: int | None = None,
        continue_schedule: bool = False,
        stop_parent: bool = False,
    ) -> list[Run]:
        """New runs with other values; a list of values for a knob that holds one makes a clone of each.

        Knobs go by their dotted names or by the ends of these ("learning_rate"). `warm` starts from the run's weights,
        now or at its committed checkpoint of step `from_step`; `continue_schedule` keeps its optimizer and schedule.
        `stop_parent` stops the run once its clones are accepted.
        """
        made: list[int] = []
        refused = []
        for parent in self._found([run], "clone"):
            how: dict[str, Any] = {
                "warm": warm,
                "name": name,
                "from_step": from_step,
                "continue_schedule": continue_schedule,
            }
            command = self.cloning(parent, stop_parent=stop_parent, **how)
            reply = self.ask(command, lambda fields: _values(changes or {}, fields), parent.algo)
            made += reply.runs
            refused += [] if reply.ok else [reply.text]
        if refused:
            raise UserError(*refused, code=FAILED)
        runs = {each.id: each for each in self.runs}
        return [runs[number] for number in made]

    def rule(self, name: str, on: bool = True, **parameters: Any) -> str:
        """Switch a rule ("halving", "median", "early") on or off, or change its parameters; what was answered."""
        changes = {"on": on, **parameters}
        reply = self.ask(SetRule(name, changes, by=self._by))
        if not reply.ok:
            raise UserError(reply.text, code=FAILED)
        return reply.text

    def _all(self, op: str, wanted: tuple[int | str, ...]) -> list[str]:
        replies = [self.ask(self.command(op, run)) for run in self._found(wanted, op)]
        if refused := [reply.text for reply in replies if not reply.ok]:
            raise UserError(*refused, code=FAILED)
        return [reply.text for reply in replies]

    def _found(self, wanted: Any, op: str) -> list[Run]:
        runs = self.runs
        named = [str(each.id if isinstance(each, Run) else each) for each in wanted]
        found = [run for each in named for run in find_runs(runs, each)]
        self.refuse_the_impossible(op, found)
        return found

    def refuse_the_impossible(self, op: str, runs: list[Run]) -> None:
        """What is known to be refused for all the runs needs no scheduler to be started. Raises UserError."""
        if not self.experiment.alive():
            refusals = [(run, why_not(run, op)) for run in runs]
            if all(why for _, why in refusals):
                raise UserError(*(refusal(run, op, why or "") for run, why in refusals), code=FAILED)

    def command(self, op: str, run: Run) -> RunCommand:
        return RUN_COMMANDS[op](run.id, by=self._by)

    def cloning(self, run: Run, *, warm: bool, from_step: int | None, continue_schedule: bool, **how: Any) -> Clone:
        """A clone's command, but for what changes. An earlier step and a continued schedule mean a warm start."""
        warm = warm or continue_schedule or from_step is not None
        start: dict[str, Any] = {"warm": warm, "from_step": from_step, "continue_schedule": continue_schedule}
        return Clone(run.id, by=self._by, **start, **how)

    # ------------------------------------------------------------ the scheduler

    def ask(self, command: Command, read: Callable[[list[Field]], Changes] | None = None, algo: str = "") -> Reply:
        """The answer to a command; of a clone, `read` makes the changes and the sweep from the knobs of `algo`. Where
        the scheduler is just ending, it is asked of the next one. Raises UserError where none answers."""

        def prepare(fields: list[Field]) -> None:
            if read and isinstance(command, Clone):
                command.changes, command.sweep = read(fields)

        session = self._reached()
        try:
            session.submit(command, *((algo, prepare) if read else ()))
            return self._answer(session, command)
        except (LinkLost, NotServed):
            self.leave()
            raise
        finally:
            session.drop(command.id)  # whoever gave up waiting wants it of no other scheduler

    def _answer(self, session: Session, command: Command) -> Reply:
        reply: Reply | None = None
        doing, end = "", 0.0
        while reply is None or command.id in session.pending:
            if (now := session.waits_for(command.id)) != doing:
                doing, end = now, time.monotonic() + _PATIENCE
            elif time.monotonic() > end:
                self.leave()
                raise UserError(f"the scheduler {doing} after {_PATIENCE:.0f} s; try again later", code=FAILED)
            try:
                for message in session.poll(1.0):
                    if isinstance(message, Reply) and message.command == command.id:
                        reply = message
            except LinkLost:
                if command.id not in session.pending:
                    raise
                if isinstance(command, RunCommand) and (reason := why_not(run := self.run(command.run), command.op)):
                    self.leave()
                    return Reply(command.id, False, refusal(run, command.op, reason))
                session.go_on(self.experiment)
        return reply

    def leave(self) -> None:
        """The scheduler forgets this viewer."""
        if self._session:
            self._session.leave()
        self._session = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def _reached(self) -> Session:
        """The tie to the scheduler, which is started where there is none."""
        if self._session is None or self._session.ended:
            self._session = Session(reopen=lambda experiment: launching.reopen(experiment), brief=True)
            self._session.go_on(self.experiment)
        return self._session


def connect(name: str, home: str | Path | None = None) -> Connection:
    """An experiment, running or not, to look at and control; from a script, another process or a notebook.

    `home` is where experiments lie, RFTUI_HOME or ./rftui_experiments unless told. Raises UserError where there is
    none of that name.
    """
    return Connection(paths.find(paths.home_dir(home), name), "python")


def _values(changes: dict[str, Any], fields: list[Field]) -> Changes:
    """Python's own values, by names as a user calls the knobs; what is wrong with one is for the scheduler to say."""
    kinds = {field.name: field.kind for field in fields}
    single: dict[str, Any] = {}
    sweep: dict[str, list[Any]] = {}
    for knob, value in changes.items():
        name = validate.resolve(knob, fields)
        if name in single or name in sweep:
            raise UserError(f"{name} is set twice")
        value = _plain(name, value)
        lists = kinds[name] == "list"
        if isinstance(value, list) and (not lists or any(isinstance(item, (list, tuple)) for item in value)):
            sweep[name] = value
        else:
            single[name] = value
    return single, sweep


def _plain(name: str, value: Any) -> Any:
    """A value that can be sent; a scalar of NumPy or torch as Python's own. Raises UserError."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(name, item) for item in value]
    if not (value is None or isinstance(value, (bool, int, float, str, dict))):
        raise UserError(f"{name} cannot be {type(value).__name__}: give it a number, a text, a list or None")
    return value
