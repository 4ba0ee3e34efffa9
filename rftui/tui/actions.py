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
    Action("clone('form')", "c", "c", "Clone-Modify: new runs with changed settings", "Runs", "Clone", "clone", True),
    Action("op('delete')", "d", "d", "Delete the run (asks first)", "Runs", "Delete", "delete", True),
    Action("undo", "u", "u", "Restore the runs deleted last", "Runs", acts=True),
    Action("clone('promote')", "p", "p", "Clone the best or the marked runs on another base model", "Runs", acts=True),
    Action("clone('suggest')", "exclamation_mark", "!", "Clone the run with the suggested changes", "Runs", acts=True),
    Action("mark", "space", "space", "Mark the run: actions and the plot use marked runs", "Runs", "Mark"),
    Action("clear", "escape", "esc", "Clear the marks and the filter", "Runs"),
    Action("detail", "enter", "enter", "Show the run's details", "Runs", "Open"),
    Action("log", "l", "l", "Follow the run's log", "Runs"),
    Action("move(1)", "j,down", "j", "Next run", "Move"),
    Action("move(-1)", "k,up", "k", "Previous run", "Move"),
    Action("page(1)", "ctrl+d,pagedown", "ctrl+d", "Page down", "Move"),
    Action("page(-1)", "ctrl+u,pageup", "ctrl+u", "Page up", "Move"),
    Action("move(-100000)", "g,home", "g", "First run", "Move"),
    Action("move(100000)", "G,end", "G", "Last run", "Move"),
    Action("metric(1)", "m", "m", "Next metric", "View", "Metric"),
    Action("metric(-1)", "M", "M", "Previous metric", "View"),
    Action("sort", "o", "o", "Sort by lineage, loss or eval loss", "View"),
    Action("reverse", "O", "O", "Reverse the order", "View"),
    Action("filter", "slash", "/", "Filter the runs by name, id or state", "View", "Filter"),
    Action("panel('')", "1", "1", "Show or hide all panels", "View"),
    Action("panel('plot')", "2", "2", "Show or hide the plot", "View"),
    Action("panel('events')", "3", "3", "Show or hide the events", "View"),
    Action("rules", "R", "R", "Switch the rules that stop runs automatically", "View", "Rules"),
    Action("help", "question_mark", "?", "Show this help", "View", "Help"),
    Action("quit", "q,ctrl+q,ctrl+c", "q", "Quit (asks while runs train)", "View", "Quit"),
)

READONLY = "opened with --readonly"


def refusal(action: Action, run: Run | None, *, readonly: bool = False) -> str | None:
    """Why the action cannot be done now, as the end of a sentence; None where it can."""
    if action.acts and readonly:
        return READONLY
    if action.op and run is None:
        return "no run selected"
    return why_not(run, action.op) if action.op and run else None
