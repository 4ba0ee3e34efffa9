"""Keys act in the order in which they were pressed, however fast they come."""

from __future__ import annotations

from textual import events
from textual.app import App
from textual.widgets import Input


class Entry(Input):
    """A line to type in. What is in it is selected as a key brings the focus here, so that typing replaces it."""

    def __init__(self, value: str = "", *, id: str, placeholder: str = "") -> None:
        # Textual would select it later, together with what has been typed meanwhile.
        super().__init__(value, placeholder, id=id, compact=True, select_on_focus=False)


class KeysInOrder(App[int]):
    """Carries out each key before it looks at the next one.

    Textual hands a key to the widget that has the focus as the key arrives, inserts a character at once, and carries
    out a binding several messages later. Keys that arrive in one piece, as over a slow line, then overtake one
    another: ctrl+u clears what was typed after it, and the name typed after `/` acts as ops.
    """

    async def on_event(self, event: events.Event) -> None:
        if not (isinstance(event, events.Key) and not event.is_forwarded and await self._acts(event)):
            await super().on_event(event)

    def action_focus_next(self) -> None:
        self.screen.focus_next()  # Textual's own action would do so later

    def action_focus_previous(self) -> None:
        self.screen.focus_previous()

    async def _acts(self, key: events.Key) -> bool:
        """Carry the key out; False where nothing is bound to it."""
        if not self.screen.is_mounted:
            return False  # it is queued there until the screen stands
        field = self.focused
        if isinstance(field, Entry) and key.is_printable and key.character:
            field.replace(key.character, *field.selection)
            return True
        done = await self._check_bindings(key.key, priority=True) or await self._check_bindings(key.key)
        if done and isinstance(self.focused, Entry) and self.focused is not field:
            self.focused.action_select_all()
        return done
