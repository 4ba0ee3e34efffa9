"""A worker's environment, and its share of the cores."""

import os

import pytest

from rftui.scheduler import environment
from rftui.scheduler.environment import cores, inherited, threads


def test_what_starts_a_distributed_training_is_left_out_and_named_once():
    given = {"PATH": "/bin", "RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": "1", "MY_RANK": "3", "RANKED": "x"}
    kept, (notice,) = inherited(given, None)
    assert kept == {"PATH": "/bin", "MY_RANK": "3", "RANKED": "x"}
    assert notice.startswith("Ignored in the environment: LOCAL_RANK, MASTER_PORT, RANK (")
    assert inherited(kept, None) == (kept, [])


@pytest.mark.parametrize(
    ("given", "count", "why"),
    [
        ({}, 4, "8 cores for 2 workers"),
        ({"OMP_NUM_THREADS": "2"}, 2, "OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "2,4"}, 2, "OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "16"}, 4, "8 cores for 2 workers"),
        ({"OMP_NUM_THREADS": "all"}, 4, "8 cores for 2 workers"),
    ],
)
def test_a_smaller_number_of_the_user_wins(given, count, why):
    assert threads(2, 8, given) == (count, why)
    assert threads(99, 8, {})[0] == 1


def test_cores_are_those_that_affinity_and_the_container_leave(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    assert cores(tmp_path) == (16, "CPU affinity")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores(tmp_path) == (16, "CPU affinity")
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert cores(tmp_path) == (2, "cgroup CPU quota")
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert cores(tmp_path) == (1, "cgroup CPU quota")
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("400000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cores(tmp_path) == (4, "cgroup CPU quota")


def test_macos_has_no_affinity(tmp_path, monkeypatch):
    monkeypatch.delattr(environment.os, "sched_getaffinity", raising=False)
    assert cores(tmp_path) == (os.cpu_count() or 1, "")
