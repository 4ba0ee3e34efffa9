"""Runs as a tree, each under the run that it was cloned from. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rftui.runs import Run

Branch = tuple[bool, ...]
"""For each level above a run, whether a sibling follows further down; a root has none."""


def tree(runs: Mapping[int, Run], members: Collection[int]) -> dict[int, Branch]:
    """The members in the order of the tree; siblings keep the order that they are given in. One whose parent is no
    member stands under the nearest ancestor that is."""
    children: dict[int, list[int]] = {}
    for number in members:
        children.setdefault(_parent(runs, number, members), []).append(number)
    branches: dict[int, Branch] = {}
    pending: list[tuple[int, Branch]] = [(root, ()) for root in reversed(children.get(0, []))]
    while pending:
        number, branch = pending.pop()
        branches[number] = branch
        below = children.get(number, [])
        pending += [(child, (*branch, child != below[-1])) for child in reversed(below)]
    return branches


def family(runs: Mapping[int, Run], number: int) -> dict[int, Branch]:
    """The tree of all ancestors and their descendants."""
    first = number
    while parent := _parent(runs, first, runs):
        first = parent
    members = [first]
    for other in sorted(runs):
        if runs[other].parent in members:
            members.append(other)
    return tree(runs, members)


def drawn(branch: Branch, *, ascii: bool) -> str:
    """What stands before a run's name."""
    if not branch:
        return ""
    down, fork, end = ("| ", "|-", "`-") if ascii else ("│ ", "├ ", "└ ")
    return "".join(down if follows else "  " for follows in branch[:-1]) + (fork if branch[-1] else end)


def _parent(runs: Mapping[int, Run], number: int, members: Collection[int]) -> int:
    """The nearest ancestor among the members; 0 where there is none."""
    parent = runs[number].parent
    while parent and parent not in members:
        parent = runs[parent].parent if parent in runs else None
    return parent or 0
