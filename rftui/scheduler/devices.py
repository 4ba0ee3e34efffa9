"""Which devices there are for workers, by what the user says."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass

from rftui.errors import UserError


@dataclass(frozen=True)
class WorkerSlot:
    """A device that one worker gets: its name in every view, and the GPU's number or None for a CPU."""

    name: str
    gpu: str | None


def slots(devices: str) -> list[WorkerSlot]:
    """The devices of "auto", "cpu", "cpu:N" or "0,1,...". auto is every GPU, else one CPU. Raises UserError."""
    if devices == "auto":
        gpus = _gpus()
        return [WorkerSlot(f"gpu{gpu}", gpu) for gpu in gpus] or [WorkerSlot("cpu", None)]
    if devices == "cpu":
        return [WorkerSlot("cpu", None)]
    if match := re.fullmatch(r"cpu:([1-9]\d?)", devices):
        return [WorkerSlot(f"cpu{number}", None) for number in range(int(match[1]))]
    if re.fullmatch(r"\d+(,\d+)*", devices):
        return [WorkerSlot(f"gpu{gpu}", _visible(int(gpu))) for gpu in dict.fromkeys(devices.split(","))]
    raise UserError(f"devices {devices!r}: say auto, cpu, cpu:N (N workers on this CPU) or GPU numbers such as 0,1")


def _visible(index: int) -> str:
    """The GPU of number `index` as CUDA_VISIBLE_DEVICES calls it: where that is set already, the numbers count the
    GPUs that it names. Raises UserError."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") is None:
        return str(index)
    gpus = _gpus()
    if index >= len(gpus):
        given = os.environ["CUDA_VISIBLE_DEVICES"]
        numbers = f"use 0 to {len(gpus) - 1}" if len(gpus) > 1 else "use 0" if gpus else "use --devices cpu"
        raise UserError(f"--devices {index}: CUDA_VISIBLE_DEVICES={given} shows {len(gpus)} GPUs here; {numbers}")
    return gpus[index]


def _gpus() -> list[str]:
    """The GPUs that this process may use, found without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [gpu.strip() for gpu in visible.split(",") if gpu.strip() not in ("", "-1")]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return re.findall(r"^GPU (\d+):", listed, re.MULTILINE)
