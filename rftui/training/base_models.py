"""Models that runs train on: LoRA runs with the same base share one copy of its frozen tensors.

Nothing else is shared: a base that was touched is made anew, and a model that was handed out before is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, set_seed
from trl.trainer.utils import create_model_from_path

from rftui.errors import UserError

CreateModel = Callable[[dict[str, Any]], Any]

_KEEPS_BASE = (True, False, "gaussian", "orthogonal")
"""`init_lora_weights` that leave the base's weights as they are; PiSSA, OLoRA, LoftQ and others rewrite them."""


class _Watched(dict[str, Any]):
    """A config that notes which of its values were read. Any bulk read counts as reading everything."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(copy.deepcopy(values))  # the function may change what lies within
        self._given = dict(values)
        self._read: set[str] = set()

    def reads(self) -> dict[str, Any]:
        """The values that were read, as they were given; a name that was asked for and missing reads as absent."""
        return {name: self._given.get(name, _ABSENT) for name in sorted(self._read)}

    def _note(self, name: str) -> None:
        self._read.add(name)

    def _note_all(self) -> None:
        self._read |= set(self._given)
        self._read.add("")  # a name added to the config would have been read too

    def __getitem__(self, name: str) -> Any:
        self._note(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._note(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self._note(name)
        return super().pop(name, *default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        self._note(name)
        return super().setdefault(name, default)

    def __contains__(self, name: object) -> bool:
        self._note(str(name))
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self._note_all()
        return super().__iter__()

    def __len__(self) -> int:
        self._note_all()
        return super().__len__()

    def keys(self) -> Any:
        self._note_all()
        return super().keys()

    def items(self) -> Any:
        self._note_all()
        return super().items()

    def values(self) -> Any:
        self._note_all()
        return super().values()

    def popitem(self) -> Any:
        self._note_all()
        return super().popitem()

    def copy(self) -> dict[str, Any]:
        self._note_all()
        return dict(super().items())

    def __or__(self, other: Any) -> Any:
        self._note_all()
        return dict(super().items()) | other

    def __ror__(self, other: Any) -> Any:
        self._note_all()
        return other | dict(super().items())

    def __eq__(self, other: object) -> bool:
        self._note_all()
        return super().__eq__(other)

    def __reduce__(self) -> Any:
        self._note_all()
        return (dict, (dict(super().items()),))

    __hash__ = None


_ABSENT = "<not in the config>"


@dataclass
class _Base:
    maker: int | None
    seed: int
    reads: dict[str, Any]
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    untouched: list[Any]


class BaseModels:
    """The bases of one worker. `get` is called by the thread that holds the lock."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._bases: list[_Base] = []
        self._handed_out: list[StorageWeakRef] = []

    def get(
        self, config: dict[str, Any], create: CreateModel | None, seed: int, fit: int = 0
    ) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """A model of the run's own and a tokenizer of its own, made from `model_name` or by the user's `create`, which
        must be as a new process would have it and is the same for all the runs of a `fit`.

        A LoRA run's model shares its frozen tensors with the runs for which `create` would have read the same values.
        Raises UserError where the model cannot be made, or is one that was handed out before.
        """
        if not shareable(config):
            model, tokenizer, _ = self._make(config, create, seed)
            return model, tokenizer
        maker = None if create is None else fit
        self._bases = [base for base in self._bases if _state(base.model) == base.untouched]
        served = (base for base in self._bases if base.seed == seed and base.maker == maker and _serves(base, config))
        base = next(served, None)
        if base is None:
            model, tokenizer, reads = self._make(config, create, seed)
            if getattr(model, "is_quantized", False) or getattr(model, "peft_config", None) or _hooked(model):
                return model, tokenizer
            base = _Base(maker, seed, reads, model, tokenizer, _state(model))
            self._bases.append(base)
        return share(base.model), copy.deepcopy(base.tokenizer)

    def _refuse_handed_out(self, model: PreTrainedModel) -> None:
        self._handed_out = [storage for storage in self._handed_out if not storage.expired()]
        known = {storage.cdata for storage in self._handed_out}
        given = [StorageWeakRef(parameter.untyped_storage()) for parameter in model.parameters()]
        if any(storage.cdata in known for storage in given):
            raise UserError(
                "create_model_fn returned a model that another run trains or has trained, out of a cache in an "
                "installed module: have it load the model anew each time"
            )
        self._handed_out += given

    def _make(
        self, config: dict[str, Any], create: CreateModel | None, seed: int
    ) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
        watched = _Watched(config)
        set_seed(seed)
        made = (create or _from_name)(watched)
        model, tokenizer = made if isinstance(made, tuple) else (made, None)
        if not isinstance(model, PreTrainedModel):
            raise UserError(f"create_model_fn returned {type(model).__name__}: it has to return (model, tokenizer)")
        if tokenizer is None:
            tokenizer = _tokenizer(config)
        spilled = sorted({p.device.type for p in model.parameters()} - {self._device.type})
        if "meta" in spilled or (self._device.type == "cuda" and getattr(model, "hf_device_map", None) and spilled):
            raise UserError(
                f"the model does not fit on {self._device}: part of it was put on {', '.join(spilled)}; "
                "take a smaller model or a smaller dtype"
            )
        if self._device.type == "cpu" and model.dtype == torch.float16:
            model = model.float()
        model.to(self._device)
        self._refuse_handed_out(model)
        # The user's function may keep its own, and trainers add tokens to theirs.
        return model, copy.deepcopy(tokenizer), watched.reads()


def shareable(config: dict[str, Any]) -> bool:
    """Whether a run with this config leaves the base's own tensors alone."""
    peft: dict[str, Any] = config.get("peft_config") or {}
    return (
        bool(peft)
        and peft.get("bias", "none") == "none"
        and peft.get("init_lora_weights", True) in _KEEPS_BASE
        and not (config.get("model_kwargs") or {}).get("quantization_config")
    )


def share(base: PreTrainedModel) -> PreTrainedModel:
    """A copy of `base` with modules, hooks, config and buffers of its own over the same parameter storage."""
    memo: dict[int, Any] = {
        id(parameter): torch.nn.Parameter(parameter.data, requires_grad=False) for parameter in base.parameters()
    }
    return copy.deepcopy(base, memo)


def _hooked(model: PreTrainedModel) -> bool:
    """Whether the user has hooked functions to it, which copies of the model would share with what they keep."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    parts = [*model.modules(), *model.parameters()]
    return any(getattr(part, name, None) for part in parts for name in hooks)


def _state(model: PreTrainedModel) -> list[Any]:
    """What would differ if somebody had trained, merged, adapted or hooked the model."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    with torch.no_grad():
        sums = torch.stack([_sums(tensor) for _, tensor in tensors]).tolist()  # moved at once, for the GPU's sake
    kinds = [(name, type(module), module.training) for name, module in model.named_modules()]
    return [[(name, tensor.dtype, tensor.requires_grad) for name, tensor in tensors], sums, kinds, _hooked(model)]


def _sums(tensor: torch.Tensor) -> torch.Tensor:
    """Two checksums: that of the bits misses what changes an even number of equal values alike, a sum does not."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    elif tensor.is_floating_point() and tensor.element_size() == 1:
        tensor = tensor.view(torch.uint8)
    bits = torch.hash_tensor(tensor, dim=tuple(range(tensor.dim())))
    return torch.stack([bits.view(torch.int64), tensor.sum().double().view(torch.int64)])


def _serves(base: _Base, config: dict[str, Any]) -> bool:
    read = {name: config.get(name, _ABSENT) for name in base.reads if name}
    if "" in base.reads and set(config) != set(read):
        return False
    then = {name: value for name, value in base.reads.items() if name}
    return _canonical(read) == _canonical(then)


def _canonical(value: Any) -> Any:
    """Equal for two values exactly if a function that reads them cannot tell them apart (1, 1.0 and True can be)."""
    if isinstance(value, dict):
        return sorted((str(key), _canonical(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [_canonical(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return type(value).__name__, repr(value)
    return type(value).__name__, cloudpickle.dumps(value).hex()


def loading(config: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `create_model_from_path` for a config's `model_name`."""
    kwargs = dict(config.get("model_kwargs") or {})
    kwargs.pop("use_gradient_checkpointing", None)
    if "torch_dtype" in kwargs:
        kwargs["dtype"] = kwargs.pop("torch_dtype")
    return kwargs


def tokenizer_of(config: dict[str, Any]) -> Any:
    """What a config's tokenizer is loaded from, or the tokenizer itself."""
    return config.get("tokenizer") or config["model_name"]


def _from_name(config: dict[str, Any]) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """What TRL does with a model's name: `from_pretrained` in float32 unless `dtype` says otherwise."""
    model = create_model_from_path(config["model_name"], **loading(config))
    return model, _tokenizer(config)


def _tokenizer(config: dict[str, Any]) -> PreTrainedTokenizerBase:
    given = tokenizer_of(config)
    if isinstance(given, str):
        return AutoTokenizer.from_pretrained(given, **(config.get("tokenizer_kwargs") or {}))
    return given
