"""Which runs are the best so far. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from rftui.runs import DELETED, FAILED, Run

_MORE_IS_BETTER = re.compile(
    r"reward|accurac|margin|bleu|rouge|chrf|meteor|f1\b|exact_match|precision|recall|score|\bauc"
)
_NOT_THOSE = re.compile(r"loss|perplexity|_std$|/std$|error")


def more_is_better(metric: str) -> bool:
    """Whether a metric of this name is to be made large; a loss, and what is not known, is to be made small."""
    name = metric.lower()
    return bool(_MORE_IS_BETTER.search(name)) and not _NOT_THOSE.search(name)


def usual_metric(runs: Collection[Run]) -> str:
    """The metric by which runs are ranked where none is named: the eval loss, else the loss; of GRPO, whose losses
    say nothing, the reward."""
    wanted = ("eval_loss", "loss")
    if runs and all(run.algo == "GRPO" for run in runs):
        wanted = ("eval_reward", "reward")
    return next((name for name in wanted if any(_finite(run, name) for run in runs)), wanted[-1])


def best(runs: Collection[Run], metric: str | None, k: int) -> list[Run]:
    """The best `k` runs by the last value of `metric` (None: `usual_metric`), the best first.

    Neither deleted nor failed runs, nor those without such a value, are among them: there may be fewer than `k`.
    """
    able = [run for run in runs if run.state not in (DELETED, FAILED)]
    metric = metric or usual_metric(able)
    ranked = [run for run in able if _finite(run, metric)]
    sign = -1.0 if more_is_better(metric) else 1.0
    return sorted(ranked, key=lambda run: (sign * run.metrics[metric], run.id))[: max(0, k)]


def _finite(run: Run, metric: str) -> bool:
    return math.isfinite(run.metrics.get(metric, math.nan))
