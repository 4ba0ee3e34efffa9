"""What every op does in every state of a run: None where it is accepted, else the reason that everybody is told."""

from rftui.runs import DELETED, DONE, FAILED, QUEUED, RUNNING, STOPPED, STOPPING, WAITING, Run

GONE = "gone"
"""Deleted, and its files are removed."""

STATES = (QUEUED, RUNNING, WAITING, STOPPING, STOPPED, DONE, FAILED, DELETED, GONE)

_YES = dict.fromkeys(STATES)
_DEAD = {DELETED: "deleted; undo restores it", GONE: "deleted"}

TABLE = {
    "stop": _YES
    | _DEAD
    | {
        STOPPING: "already stopping",
        STOPPED: "already stopped; resume continues it",
        DONE: "already done",
        FAILED: "it failed",
    },
    "resume": _YES
    | _DEAD
    | {
        QUEUED: "not started yet",
        RUNNING: "already running",
        WAITING: "already running; waiting for its next turn",
        STOPPING: "still stopping; wait until it is stopped",
        DONE: "already done; clone it with more epochs instead",
    },
    "clone": _YES | _DEAD,
    "delete": _YES | _DEAD,
    "undo": dict.fromkeys(STATES, "not deleted")
    | {DELETED: None, GONE: "its files are gone: the scheduler that deleted it has ended"},
}

REFUSED = [(op, state) for op, states in TABLE.items() for state, reason in states.items() if reason]
ACCEPTED = [(op, state) for op, states in TABLE.items() for state, reason in states.items() if not reason]


def run_in(state: str, number: int = 0) -> Run:
    """A run in that state."""
    config = {"training_args": {"learning_rate": 1e-4}}
    run = Run(number, f"a {state} one", config=config, state=DELETED if state == GONE else state)
    run.before = STOPPED if state == DELETED else ""
    return run


def refusal(run: Run, op: str, reason: str) -> str:
    return f"Can't {op} run {run.id} {run.name}: {reason}"
