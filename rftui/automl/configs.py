"""The configurations that a user writes. They record what was set as plain data and load neither torch nor TRL."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from enum import Enum
from typing import Any

from rftui.automl.alternatives import List
from rftui.config.nearest import nearest
from rftui.errors import UserError


class Recorded:
    """Keyword arguments as attributes, any of which can be read, set and deleted. `List`s stand for alternatives."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def copy(self) -> Recorded:
        """A copy that shares no dict, list or config with the original; functions and other objects are shared."""
        return _copied(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in vars(self).items())})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class RFLoraConfig(Recorded):
    """The arguments of PEFT's `LoraConfig`."""


class RFSFTConfig(Recorded):
    """The arguments of TRL's `SFTConfig`."""


class RFDPOConfig(Recorded):
    """The arguments of TRL's `DPOConfig`."""


class RFGRPOConfig(Recorded):
    """The arguments of TRL's `GRPOConfig`."""


class RFModelConfig(Recorded):
    """One model with the adapter and the arguments to train it with; without `peft_config` all its weights train.

    `peft_config` and `training_args` may be RF configs, plain dicts or PEFT's and TRL's own objects. `reward_funcs`
    (a function, a reward model's name, or a list of them) score GRPO's completions as TRL tells. Attributes set later
    under other names reach `create_model_fn` in its config. Raises UserError for an unknown keyword argument.
    """

    def __init__(
        self,
        model_name: str | List | None = None,
        tokenizer: Any = None,
        tokenizer_kwargs: Any = None,
        formatting_func: Callable[..., Any] | List | None = None,
        compute_metrics: Callable[..., Any] | List | None = None,
        reward_funcs: Any = None,
        peft_config: Any = None,
        training_args: Any = None,
        model_type: str | List | None = "causal_lm",
        model_kwargs: Any = None,
        generation_config: Any = None,
        **unknown: Any,
    ) -> None:
        fields = {key: value for key, value in locals().items() if key not in ("self", "unknown", "__class__")}
        if unknown:
            raise UserError(*(f"RFModelConfig has no {name!r}{nearest(name, fields)}" for name in unknown))
        super().__init__(**fields)


def _copied(value: Any) -> Any:
    if isinstance(value, Recorded):
        twin = object.__new__(type(value))
        vars(twin).update({key: _copied(item) for key, item in vars(value).items()})
        return twin
    if isinstance(value, List):
        return List([_copied(item) for item in value.values])
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if type(value) is list:
        return [_copied(item) for item in value]
    return value


_DERIVED = {"peft_type", "peft_version", "auto_mapping", "do_eval", "disable_tqdm", "n_gpu"}
"""Fields that PEFT's and TRL's objects fill in by themselves."""


def recorded(config: Any) -> dict[str, Any]:
    """What was set in one of TRL's or PEFT's own config objects: its fields that differ from a fresh object's.

    The user has imported the object's class already, so that another one costs nothing.
    """
    training = hasattr(config, "per_device_train_batch_size")
    switches = {"use_cpu": config.use_cpu, "bf16": False} if training else {}
    with warnings.catch_warnings(action="ignore"):
        fresh = type(config)(**switches)
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.init}
    changed = {
        name: value
        for name, value in values.items()
        if name not in _DERIVED and name not in switches and value != getattr(fresh, name)
    }
    if training:
        if config.use_cpu:
            changed["use_cpu"] = True
        # TRL's bf16, where it is unset, becomes what fp16 is not; anything else was the user's own word.
        by_default = {field.name: field.default for field in dataclasses.fields(config)}["bf16"]
        if config.bf16 != (not config.fp16 if by_default is None else by_default):
            changed["bf16"] = config.bf16
        for name in ("activation_checkpointing", "activation_checkpointing_kwargs"):
            # These mirror gradient_checkpointing, the name that both the user and the form know.
            changed.pop(name, None)
        if "generation_batch_size" in values:
            # GRPOConfig fills in each of these two from the other, and takes only one of them.
            changed.pop("generation_batch_size", None)
            if config.steps_per_generation == config.gradient_accumulation_steps:
                changed.pop("steps_per_generation", None)
    return {name: _plain(value) for name, value in changed.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return sorted(value) if isinstance(value, (set, frozenset)) else value
