"""The user's search space: knobs, configs and the searches over them. Loads neither torch nor TRL."""

from rftui.automl.configs import RFDPOConfig, RFGRPOConfig, RFLoraConfig, RFModelConfig, RFSFTConfig
from rftui.automl.grid import RFGridSearch
from rftui.automl.knobs import List

__all__ = [
    "List",
    "RFDPOConfig",
    "RFGRPOConfig",
    "RFGridSearch",
    "RFLoraConfig",
    "RFModelConfig",
    "RFSFTConfig",
]
