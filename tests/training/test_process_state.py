"""What training arguments switch for the whole process is a run's own."""

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
