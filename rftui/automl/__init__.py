"""The user's search space: knobs, configs, the searches over them, rules that stop runs. Loads neither torch nor
TRL."""

from rftui.automl.alternatives import List
from rftui.automl.configs import RFDPOConfig, RFGRPOConfig, RFLoraConfig, RFModelConfig, RFSFTConfig
from rftui.automl.grid import RFGridSearch
from rftui.automl.rules import RFEarlyStopping, RFMedianStopping, RFSuccessiveHalving

__all__ = [
    "List",
    "RFDPOConfig",
    "RFEarlyStopping",
    "RFGRPOConfig",
    "RFGridSearch",
    "RFLoraConfig",
    "RFMedianStopping",
    "RFModelConfig",
    "RFSFTConfig",
    "RFSuccessiveHalving",
]
