"""What a user writes in place of a value to have several values tried."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rftui.errors import UserError


class List:
    """Alternatives: a grid search makes a run with each of `values`. A plain Python list is one value, not several.

    Raises UserError where there is nothing to choose from.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        if isinstance(values, (str, bytes, dict)) or not isinstance(values, Iterable):
            raise UserError(f"List wants a list of alternatives, as in List([1e-4, 1e-3]), not {values!r}")
        self.values = list(values)
        if not self.values:
            raise UserError("List([]) has no alternative; give it at least one value")

    def __repr__(self) -> str:
        return f"List({self.values!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, List) and self.values == other.values

    __hash__ = None  # type: ignore[assignment]
