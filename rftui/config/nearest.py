"""Did you mean?"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that names the known name nearest to `name`: "; did you mean 'r'?", or ""."""
    names = {candidate.lower(): candidate for candidate in known}
    keys = {candidate.rsplit(".", 1)[-1]: candidate for candidate in reversed(names)}
    wanted = name.lower()
    close = get_close_matches(wanted, names, n=1, cutoff=0.6)
    if not close:
        close = [keys[key] for key in get_close_matches(wanted.rsplit(".", 1)[-1], keys, n=1, cutoff=0.6)]
    return f"; did you mean {names[close[0]]!r}?" if close else ""
