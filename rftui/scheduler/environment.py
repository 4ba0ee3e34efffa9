"""What a worker inherits of this process's environment, and its share of the cores. Pure but for `cores`."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

_LAUNCH = re.compile(
    r"RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_(RANK|WORLD_SIZE|NAME)"
    r"|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_\w+"
    r"|ACCELERATE_(USE_(FSDP|DEEPSPEED|MEGATRON_LM)|DEEPSPEED_\w+)|FSDP_\w+"
)
"""What torchrun, accelerate and PyTorchJob set for the processes of one distributed training."""


def inherited(environ: Mapping[str, str], short_tmp: str | None) -> tuple[dict[str, str], list[str]]:
    """The environment of a worker of one device, and a line for each thing in which it is not `environ`.

    A worker is a training of its own: what makes it one process of several would have it wait for the others, on a
    port that anyone reaches. `short_tmp` takes the place of TMPDIR where that is too long for sockets.
    """
    kept = {name: value for name, value in environ.items() if not _LAUNCH.fullmatch(name)}
    notices = []
    if dropped := sorted(set(environ) - set(kept)):
        notices.append(f"Ignored in the environment: {', '.join(dropped)} (each worker trains alone, on one device)")
    if short_tmp:
        notices.append(f"TMPDIR is too long for sockets: workers use {short_tmp}")
        kept["TMPDIR"] = short_tmp
    return kept, notices


def cores(root: Path = Path("/sys/fs/cgroup")) -> tuple[int, str]:
    """The processor cores that this process may use, and what limits them: its affinity, its container's quota, or
    nothing ("")."""
    found, why = os.cpu_count() or 1, ""
    if hasattr(os, "sched_getaffinity") and (allowed := len(os.sched_getaffinity(0))) < found:  # macOS has none
        found, why = allowed, "CPU affinity"
    quota = _quota(root)
    if quota is not None and quota < found:
        found, why = max(1, math.floor(quota)), "cgroup CPU quota"
    return found, why


def _quota(root: Path) -> float | None:
    """Cores of a cgroup's quota, of version 2 or 1; None where there is none."""
    try:
        if (root / "cpu.max").exists():
            quota, period = (root / "cpu.max").read_text().split()
        else:
            quota, period = ((root / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number
        return None


def threads(workers: int, available: int, environ: Mapping[str, str]) -> tuple[int, str]:
    """How many threads each of `workers` gets, and why so many. A smaller OMP_NUM_THREADS of the user wins."""
    share = max(1, available // workers)
    try:
        asked = int(environ.get("OMP_NUM_THREADS", "").split(",")[0])
    except ValueError:
        asked = 0
    return (asked, "OMP_NUM_THREADS") if 0 < asked < share else (share, f"{available} cores for {workers} workers")
