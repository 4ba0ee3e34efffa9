"""Knobs found by what one types of their names or help. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rftui.messages import Field
from rftui.naming import short


def matches(text: str, fields: Sequence[Field], most: int = 5) -> list[Field]:
    """The fields that each word of `text` tells something of, the best first: by name, then by help.

    Where there is none, those that have a word's letters in their names, in this order.
    """
    words = text.lower().split()
    for rank in (_rank, _rank_of_letters):
        ranks = [[rank(word, field) for word in words] for field in fields]
        sums = [(sum(found), number) for number, each in enumerate(ranks) if (found := _all(each))]
        if sums:
            return [fields[number] for _, number in sorted(sums)[:most]]
    return []


def _all(ranks: list[int | None]) -> list[int]:
    """The ranks, if there are some and none is missing."""
    found = [rank for rank in ranks if rank is not None]
    return found if len(found) == len(ranks) else []


def _rank(word: str, field: Field) -> int | None:
    """How well a word fits, 0 the best."""
    name, last = field.name.lower(), field.name.lower().rsplit(".", 1)[-1]
    help_words = re.findall(r"[a-z0-9]+", field.help.lower())
    found = (
        word in (last, name, short(field.name)),
        last.startswith(word),
        any(part.startswith(word) for part in last.split("_")),
        word in name,
        any(each.startswith(word) for each in help_words),
    )
    return found.index(True) if True in found else None


def _rank_of_letters(word: str, field: Field) -> int | None:
    last = field.name.lower().rsplit(".", 1)[-1]
    return len(last) if re.search(".*".join(map(re.escape, word)), last) else None
