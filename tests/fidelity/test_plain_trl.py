"""The promise: interleaved, stopped, resumed, moved and killed runs give the bytes that plain TRL alone gives."""

import os
import signal

import pytest

from rftui.runs import RUNNING, STOPPED
from tests.fidelity.cases import ALL, CHUNKS, DPO, EPOCHS, GRPO, SFT
from tests.fidelity.compare import Ejected, Rftui, Watch, differences, plain


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    return plain(tmp_path_factory.mktemp("plain") / "all", ALL)


def same(store, references):
    different = {run.name: differences(store, run, out) for run, out in zip(store.runs(), references, strict=True)}
    assert not any(different.values()), different


def test_one_run_of_each_kind(tmp_path):
    cases = [SFT[1], DPO[1], GRPO[3]]
    rftui = Rftui(tmp_path / "home", cases)
    references = plain(tmp_path / "plain", cases)
    store = rftui.wait()
    same(store, references)
    assert all(run.chunks == CHUNKS * EPOCHS == run.chunk for run in store.runs())
    turns = [turn["run"] for turn in store.turns()]
    assert sorted(turns[:3]) == [1, 2, 3], "a run lapped another"
    assert len({turn["device"] for turn in store.turns()}) == 2


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def of(case):
    """The id of a case's run."""
    return ALL.index(case) + 1


def holder(watch, run):
    """The pid of the worker that trains the run now; 0 if none does."""
    return next((device.pid for device in watch.devices.values() if device.run == run), 0)


def inside_a_logging_window(watch, case, epoch):
    """The pid of the worker that trains the case's run, past that epoch and between two logs."""
    run = of(case)
    watch.until(lambda watch: watch.runs[run].epoch > epoch and watch.runs[run].step % 2 and holder(watch, run))
    return holder(watch, run)


@pytest.mark.slow
def test_stopped_resumed_moved_and_with_every_process_killed_in_each_epoch(tmp_path, references):
    rftui = Rftui(tmp_path / "home", ALL)
    watch = Watch(rftui)
    for case in (SFT[0], DPO[2], GRPO[2]):  # in the middle of a chunk, and of a generation's steps
        run = of(case)
        watch.until(lambda watch: watch.runs[run].state == RUNNING and watch.runs[run].step % 2 == 1)  # noqa: B023
        watch.ask("stop", run)
    for case in (SFT[0], DPO[2], GRPO[2]):
        watch.until(lambda watch: watch.runs[of(case)].state == STOPPED)  # noqa: B023
        watch.ask("resume", of(case))
    kill(inside_a_logging_window(watch, SFT[1], 0.4))
    watch.until(lambda watch: watch.runs[of(GRPO[0])].epoch > 0.4)
    kill(watch.pid)
    rftui.reopen()
    watch = Watch(rftui)
    watch.until(lambda watch: any(run.epoch == 1 and holder(watch, run.id) for run in watch.runs.values()))
    workers = [device.pid for device in watch.devices.values() if device.pid]
    for pid in [watch.pid, *workers]:  # everything, at the end of an epoch
        kill(pid)
    rftui.reopen()
    watch = Watch(rftui)
    kill(inside_a_logging_window(watch, GRPO[1], 1.2))
    watch.until(lambda watch: any(run.epoch > 1.3 and run.algo == "GRPO" for run in watch.runs.values()))
    kill(watch.pid)
    rftui.reopen()
    store = rftui.wait()
    same(store, references)
    devices = {run.id: {turn["device"] for turn in store.turns() if turn["run"] == run.id} for run in store.runs()}
    assert any(len(held) > 1 for held in devices.values()), "no run was moved"
    ejected = Ejected(rftui.experiment, tmp_path / "ejected")
    assert ejected.differing([store.run(of(case)) for case in (SFT[2], SFT[3], DPO[3], GRPO[2])]) == []
