"""What is said of a failure, and whether the run is tried again."""

import pytest
import torch

from rftui.errors import UserError
from rftui.training import failures


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"),
        OSError(12, "Cannot allocate memory"),
        MemoryError(),
    ],
)
def test_memory_that_is_out_is_one_thing_in_all_spellings(error):
    assert failures.cause(error) == "memory"
    try:
        raise UserError("it could not be made") from error
    except UserError as wrapped:
        assert failures.cause(wrapped) == "memory"


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA error: device-side assert triggered"), KeyError("memory"), ValueError()]
)
def test_other_errors_are_not(error):
    assert failures.cause(error) == ""


class Wordless(Exception):
    def __str__(self):
        raise ValueError


def helper(row):
    raise_it(row)


def raise_it(row):
    return row["answer"]


def test_an_error_in_the_users_code_is_told_with_its_place(tmp_path):
    with pytest.raises(KeyError) as raised:
        list(map(helper, [{}]))
    said = failures.line(raised.value, tmp_path)
    number = raise_it.__code__.co_firstlineno + 1
    assert said.startswith("KeyError: 'answer' in ") and said.endswith(f"({__file__}, line {number}); see {tmp_path}")


def test_errors_without_words_have_a_line_too():
    assert failures.line(ValueError()) == "ValueError"
    assert failures.line(Wordless()).endswith("Wordless: <exception str() failed>")
    assert "\n" not in failures.line(RuntimeError("a\nb"))


def test_a_model_that_only_the_script_knows_says_how_to_hand_it_over():
    error = ValueError(
        "The checkpoint has model type `my-llama` but Transformers does not recognize this architecture"
    )
    assert "run_fit(setup_fn=...)" in failures.line(error) and "setup_fn" not in failures.line(ValueError("no"))


def test_a_device_that_answers_is_sound():
    assert failures.device_fault(torch.device("cpu")) == ""
    assert "Error" in failures.device_fault(torch.device("cuda:7"))
