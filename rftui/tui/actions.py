"""The one registry of what keys do: it feeds the bindings, the footer and the help."""

from __future__ import annotations

from dataclasses import dataclass

from rftui.runs import Run, why_not


@dataclass(frozen=True)
class Action:
    """`name` is the app's `action_<name>`; `keys` as Textual calls them, the first is shown as `shown`.

    `label` is its word in the footer, "" keeps it out of there. `op` is the IC Op it presses. `acts`: it changes the
    experiment, so a read-only viewer refuses it.
    """

    name: str
    keys: str
    shown: str
    help: str
    group: str
    label: str = ""
    op: str = ""
    acts: bool = False


ACTIONS = (
    Action("op('stop')", "s", "s", "Stop the run at its next step", "Runs", "Stop", "stop", True),
    Action("op('resume')", "r", "r", "Resume a stopped run from its exact step", "Runs", "Resume", "resume", True),
    Action("clone('form')", "c", "c", "Clone-Modify: new runs with changed knobs", "Runs", "Clone", "clone", True),
    Action("op('delete')", "d", "d", "Delete the run, after a question", "Runs", "Delete", "delete", True),
    Action("undo", "u", "u", "Bring back what was deleted last", "Runs", acts=True),
    Action("clone('promote')", "p", "p", "Promote the best or the marked runs to another base", "Runs", acts=True),
    Action("clone('suggest')", "exclamation_mark", "!", "Clone the run as its suggestion says", "Runs", acts=True),
    Action("mark", "space", "space", "Mark the run; ops and the plot take the marked runs", "Runs", "Mark"),
    Action("clear", "escape", "esc", "Clear the marks and the filter", "Runs"),
    Action("detail", "enter", "enter", "Everything about the run", "Runs", "Open"),
    Action("log", "l", "l", "The run's log, followed", "Runs"),
    Action("move(1)", "j,down", "j", "Next run", "Move"),
    Action("move(-1)", "k,up", "k", "Previous run", "Move"),
    Action("page(1)", "ctrl+d,pagedown", "ctrl+d", "A page down", "Move"),
    Action("page(-1)", "ctrl+u,pageup", "ctrl+u", "A page up", "Move"),
    Action("move(-100000)", "g,home", "g", "First run", "Move"),
    Action("move(100000)", "G,end", "G", "Last run", "Move"),
    Action("metric(1)", "m", "m", "Next metric", "View", "Metric"),
    Action("metric(-1)", "M", "M", "Previous metric", "View"),
    Action("sort", "o", "o", "Order by lineage, by loss, by eval loss", "View"),
    Action("reverse", "O", "O", "The other way round", "View"),
    Action("filter", "slash", "/", "Filter the runs by name, id or state", "View", "Filter"),
    Action("panel('')", "1", "1", "The runs alone, or with the panels", "View"),
    Action("panel('plot')", "2", "2", "Show or hide the plot", "View"),
    Action("panel('events')", "3", "3", "Show or hide the events", "View"),
    Action("rules", "R", "R", "Rules that stop runs by themselves: switch them on or off", "View", "Rules"),
    Action("help", "question_mark", "?", "This help", "View", "Help"),
    Action("quit", "q,ctrl+q,ctrl+c", "q", "Quit; asks what becomes of runs that train", "View", "Quit"),
)

READONLY = "this viewer was opened with --readonly"


def refusal(action: Action, run: Run | None, *, readonly: bool = False) -> str | None:
    """Why the action cannot be done now, as the end of a sentence; None where it can."""
    if action.acts and readonly:
        return READONLY
    if action.op and run is None:
        return "there is no run here yet"
    return why_not(run, action.op) if action.op and run else None
