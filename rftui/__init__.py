"""rftui trains many fine-tuning configurations at once, chunk by chunk, and lets its user control them as they train.

Importing this module loads neither torch nor textual.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rftui.client import connect
    from rftui.experiment import Experiment

__all__ = ["Experiment", "__version__", "connect"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Experiment":
        from rftui.experiment import Experiment

        return Experiment
    if name == "connect":
        from rftui.client import connect

        return connect
    raise AttributeError(f"module 'rftui' has no attribute {name!r}")
