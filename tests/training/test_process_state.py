"""What training arguments switch for the whole process is a run's own."""

import os

import pytest
import torch
from transformers.trainer_utils import enable_full_determinism

from rftui.training import process_state


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    for name in ("CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "ASCEND_LAUNCH_BLOCKING", "HCCL_DETERMINISTIC"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("FLASH_ATTENTION_DETERMINISTIC", "")
    before = process_state.capture()
    yield
    process_state.restore(before)


def switched():
    return torch.are_deterministic_algorithms_enabled(), torch.backends.fp32_precision


def test_a_deterministic_run_does_not_make_its_neighbour_deterministic():
    before = switched()
    neighbour = process_state.capture()
    enable_full_determinism(1)
    torch.backends.fp32_precision = "ieee"
    strict = process_state.capture()
    process_state.restore(neighbour)
    assert switched() == before
    process_state.restore(strict)
    assert switched() == (True, "ieee") and torch.backends.cudnn.deterministic
    process_state.restore(None)
    assert switched() == before and not torch.backends.cudnn.deterministic


def test_each_run_works_in_its_own_directory_also_where_another_was_in_its_turn(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    one = process_state.capture()
    process_state.work_in(str(tmp_path / "two"))
    two = process_state.capture()
    process_state.restore(one)
    assert os.getcwd() == str(tmp_path / "one")
    (tmp_path / "two").rmdir()
    with pytest.raises(process_state.NoDirectory, match="two cannot be entered .* put it back, then resume"):
        process_state.restore(two)
    assert os.getcwd() == str(tmp_path / "one")


def test_a_removed_directory_is_no_reason_to_end_the_only_run_that_works_there(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    there = process_state.capture()
    process_state.restore(there)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(process_state.NoDirectory, match="its working directory cannot be entered"):
        process_state.restore(there)
