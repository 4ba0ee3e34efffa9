"""What becomes of runs when their user quits: of those that train, and of those that are deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from rftui.formatting import clean
from rftui.runs import Run

_LISTED = 8


class Question(ModalScreen[str | None]):
    """A question with a key for each answer; `answers`: key -> what it does, and a second line to that."""

    DEFAULT_CSS = """
    Question { align: center middle; }
    Question > VerticalScroll { width: 76; max-width: 100%; height: auto; max-height: 100%;
        border: round ansi_yellow; padding: 0 1; }
    """

    def __init__(self, title: str, text: str, answers: dict[str, str], *, ascii: bool) -> None:
        super().__init__()
        self._ascii = ascii
        self._text = Text.assemble((f"{title}\n\n", "bold"), text)
        for key, what in answers.items():
            self._text.append(f"{key:<5}", "bold").append(what.replace("\n", f"\n{'':5}") + "\n")
        self._text.rstrip()

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            if self._ascii:
                box.styles.border = ("ascii", "ansi_yellow")
            yield Static(self._text, markup=False)

    def action_answer(self, answer: str) -> None:
        self.dismiss(answer or None)


class QuitScreen(Question):
    """ "leave" them training, "interrupt" them at their next step, or None: stay.

    `opens`: the command that comes back. `unsaved`: active runs that could not be saved. `deleted`: runs that
    can be restored as long as the scheduler lives.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "answer('leave')"),
        Binding("s", "answer('interrupt')"),
        Binding("escape,q", "answer('')"),
    ]

    def __init__(
        self,
        active: int,
        opens: str,
        *,
        unsaved: Sequence[Run] = (),
        deleted: Sequence[Run] = (),
        ascii: bool = False,
    ) -> None:
        pause = "Pause all and quit (resumes when reopened)"
        if unsaved:
            pause += f"\nLoses the steps since the last checkpoint of {_named(unsaved)}: the disk is full"
        if deleted:
            pause += f"\nDeletes {_named(deleted)} for good; u restores until then"
        runs = "1 run is" if active == 1 else f"{active} runs are"
        answers = {"l": f"Keep training (reopen with\n{opens})", "s": pause, "esc": "Stay"}
        super().__init__(f"{runs} still training. Quit?", "", answers, ascii=ascii)


class PurgeScreen(Question):
    """ "finish", and the files of the deleted runs go; "restore" them; or None: stay."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer('finish')"),
        Binding("u", "answer('restore')"),
        Binding("n,escape,q", "answer('')"),
    ]

    def __init__(self, deleted: Sequence[Run], *, ascii: bool = False) -> None:
        it = "it" if len(deleted) == 1 else "them"
        title = f"Quit and delete {_named(deleted)} for good?"
        listed = [f"{run.id:>4}  {clean(run.name)}, step {run.step}" for run in deleted[:_LISTED]]
        listed += [f"      and {len(deleted) - _LISTED} more"] if len(deleted) > _LISTED else []
        text = "Quitting removes the checkpoints, adapters and MLflow runs of:\n" + "\n".join(listed) + "\n\n"
        answers = {"y": f"Quit and delete {it} for good", "u": f"Restore {it} and stay", "esc": "Stay"}
        super().__init__(title, text, answers, ascii=ascii)


def _named(runs: Sequence[Run]) -> str:
    return f"run {runs[0].id}" if len(runs) == 1 else f"{len(runs)} runs"
