"""Runs as a tree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rftui.runs import Run
from rftui.tui.lineage import drawn, family, tree

RUNS = st.lists(st.integers(0, 30), max_size=12).map(
    lambda parents: {n: Run(n, str(n), parent=parent % n or None) for n, parent in enumerate(parents, 1)}
)


def lines(branches, ascii=False):
    return [drawn(branch, ascii=ascii) + str(number) for number, branch in branches.items()]


def made(**parents):
    return {int(n[1:]): Run(int(n[1:]), n, parent=parent) for n, parent in parents.items()}


def test_a_middle_child_forks_and_the_last_one_ends():
    runs = made(r1=None, r2=1, r3=1, r4=2, r5=2, r6=None, r7=3)
    assert lines(tree(runs, runs)) == ["1", "├ 2", "│ ├ 4", "│ └ 5", "└ 3", "  └ 7", "6"]
    assert lines(tree(runs, runs), ascii=True) == ["1", "|-2", "| |-4", "| `-5", "`-3", "  `-7", "6"]


def test_the_nearest_ancestor_that_is_seen():
    runs = made(r1=None, r2=1, r3=2, r4=1)
    assert lines(tree(runs, [1, 3, 4])) == ["1", "├ 3", "└ 4"]
    assert lines(tree(runs, [3, 4])) == ["3", "4"]


def test_a_family_is_all_of_the_tree_and_nobody_else():
    runs = made(r1=None, r2=1, r3=2, r4=1, r5=None, r6=5)
    assert list(family(runs, 4)) == [1, 2, 3, 4] and list(family(runs, 6)) == [5, 6]


def test_a_parent_that_is_not_there():
    runs = made(r6=99)
    assert tree(runs, runs) == {6: ()} == family(runs, 6)


@given(RUNS, st.sets(st.integers(1, 12)))
def test_each_member_stands_once_below_its_ancestors(runs, wanted):
    members = sorted(wanted & set(runs))
    branches = tree(runs, members)
    assert sorted(branches) == members
    order = list(branches)
    for number in order:
        parent = runs[number].parent
        if parent in branches:
            assert order.index(parent) < order.index(number)
            assert len(branches[number]) == len(branches[parent]) + 1
    ends = [branch for branch in branches.values() if branch and not branch[-1]]
    parents = {len(branch): branch for branch in branches.values()}
    assert bool(ends) == any(level > 0 for level in parents)
