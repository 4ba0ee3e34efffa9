"""What the scheduler asks a worker about configs: what their knobs are, and whether they can train."""

from rftui.training.checks import check
from rftui.training.fields import describe

__all__ = ["check", "describe"]
