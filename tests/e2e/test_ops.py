"""Ops from the shell on a training that goes on meanwhile."""

import json
from pathlib import Path

import pytest

from tests.e2e.program import LONG, Program

pytestmark = pytest.mark.slow


class Ops(Program):
    """A training whose run 1 was stopped on its way: `stopped` is how it then stood."""

    def clone(self, *arguments: object) -> int:
        return json.loads(self.call("clone", "tiny", *arguments, "--json"))["run"]

    def ended(self, run: int) -> dict:
        """The run once it is done, with its curves."""
        return self.until(lambda: (shown := self.show(run))["state"] == "done" and shown)


@pytest.fixture(scope="module")
def ops(tmp_path_factory, undisturbed):
    ops = Ops(tmp_path_factory.mktemp("ops"))
    child = ops.start("run", ops.script, "--headless", "--", *LONG)
    try:
        ops.until(lambda: ops.show(1)["step"] > 3)
        assert "stops at its next step" in ops.call("stop", "tiny", 1)
        ops.stopped = ops.until(lambda: (run := ops.show(1))["state"] == "stopped" and run)
        yield ops
    finally:
        ops.end()
        child.communicate()


def test_a_stopped_run_is_on_disk_at_its_step(ops):
    step = ops.stopped["step"]
    assert 3 < step < 96
    assert ops.stopped["device"] is None and ops.stopped["chunk"] == step // 32
    checkpoint = Path(ops.stopped["checkpoint"])
    assert checkpoint.name == f"step-{step}" and (checkpoint / "adapter_model.safetensors").is_file()
    assert ops.stopped["curves"]["loss"][-1][0] == step
    assert "already stopped" in ops.call("stop", "tiny", 1, code=1)


@pytest.mark.parametrize(
    ("knob", "warm", "code", "reason"),
    [
        ("learning_rate=fast", [], 2, "must be a number"),
        ("learning_rate=-1", [], 2, "learning_rate"),
        ("learnin_rate=1e-3", [], 2, "did you mean"),
        ("r=4", [], 1, "no changes"),
        ("r=2", ["--warm"], 1, "may grow but not shrink"),
        ("max_length=32", ["--warm"], 1, "clone it cold"),
    ],
)
def test_a_clone_that_cannot_be_is_refused_with_its_reason(ops, knob, warm, code, reason):
    said = ops.call("clone", "tiny", 1, "--set", knob, *warm, code=code)
    assert reason in said and said.startswith("rftui: ") and said.count("\n") == 1


def test_a_warm_clone_starts_where_its_parent_stood(ops, undisturbed):
    step = ops.stopped["step"]
    clone = ops.ended(ops.clone(1, "--set", "lr=1e-4", "--warm", "--name", "slower"))
    assert (clone["name"], clone["parent"]) == ("slower", 1)
    assert clone["knobs"] == {"peft_config.r": 4, "training_args.learning_rate": 1e-4}
    assert {rate for _, rate in clone["curves"]["learning_rate"]} == {1e-4}, "the rate that was typed trains"
    assert [at for at, _ in clone["curves"]["loss"]] == list(range(1, 97 - step)), "the parent's remaining rows"
    parent = dict(undisturbed.show(1)["curves"]["loss"])
    first = clone["curves"]["loss"][0][1]
    assert first == pytest.approx(parent[step + 1], rel=1e-4), "the same weights see the same row"
    assert first < parent[1] - 0.3, "the untrained base's loss is far above"
    assert Path(clone["final"]).is_dir()


def test_a_cold_clone_starts_from_the_base(ops, undisturbed):
    clone = ops.ended(ops.clone(1, "--set", "max_steps=3", "--set", "learning_rate=1e-4"))
    assert (clone["parent"], clone["step"], clone["knobs"]["training_args.max_steps"]) == (1, 3, 3)
    assert clone["curves"]["loss"][0] == undisturbed.show(1)["curves"]["loss"][0]
    assert {rate for _, rate in clone["curves"]["learning_rate"]} == {1e-4}


def test_a_deleted_run_goes_with_its_files(ops):
    clone = ops.clone(1, "--set", "max_steps=90")
    folder = ops.home / "tiny" / "runs" / str(clone)
    ops.until(lambda: folder.is_dir())
    assert "--yes" in ops.call("delete", "tiny", clone, code=2)
    assert f"run {clone} is deleted" in ops.call("delete", "tiny", clone, "--yes")
    assert ops.show(clone)["state"] == "deleted"
    assert "deleted" in ops.call("resume", "tiny", clone, code=1)
    ops.until(lambda: not folder.exists())


def test_a_resumed_run_ends_as_if_it_had_not_been_stopped(ops, undisturbed):
    assert f"goes on from step {ops.stopped['step']}" in ops.call("resume", "tiny", 1)
    assert ops.ended(1)["curves"] == undisturbed.show(1)["curves"]
    ops.ended(2)
    for run in (1, 2):
        assert ops.adapter(run) == undisturbed.adapter(run)
    assert ops.nothing_left()
