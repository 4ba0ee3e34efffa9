"""The modules and parameters of a model that an adapter's config names: each name has to match something.

PEFT passes over a name that matches nothing as long as another one does, so that less would train than was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as DEFAULT_TARGETS

from rftui.config.nearest import nearest
from rftui.errors import UserError

_NAMING = (
    *("target_modules", "exclude_modules", "modules_to_save", "target_parameters", "trainable_token_indices"),
    *("rank_pattern", "alpha_pattern", "layers_to_transform", "layers_pattern"),
)
"""Fields of a LoRA config that name parts of the model."""

_LAYER = r".*?\.[^.]*\.(?P<index>\d+)\."
"""Where PEFT sees the number of a module's layer."""


@dataclass(frozen=True)
class ModelParts:
    """`kinds`: path of a module -> "linear", "layer" (what else LoRA adapts) or "other"; the paths of parameters."""

    kinds: dict[str, str]
    parameters: Collection[str] = ()
    names: list[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ends = dict.fromkeys(path.rsplit(".", 1)[-1] for path in self.kinds)
        object.__setattr__(self, "names", [end for end in ends if not end.isdigit()])

    def linear(self) -> str:
        """The names of its linear modules, as a message lists them."""
        return ", ".join(
            dict.fromkeys(path.rsplit(".", 1)[-1] for path, kind in self.kinds.items() if kind == "linear")
        )


def named(peft: dict[str, Any]) -> set[str]:
    """The fields of the config that name parts of the model."""
    return {knob for knob in _NAMING if peft.get(knob) not in (None, "", [], {}, "all-linear")}


def hits(target: str, paths: Iterable[str], pattern: bool) -> list[str]:
    """The modules that PEFT takes for `target`, which is a regular expression (`pattern`) or the end of a path."""
    if pattern:
        return _matching(target, paths)
    return [path for path in paths if path == target or path.endswith(f".{target}")]


def missing_names(peft: dict[str, Any], model_type: str, parts: ModelParts) -> dict[str, list[str]]:
    """Knob of the config -> those of its names that match nothing in the model. Raises UserError for what is no
    regular expression."""
    fields, adapted = named(peft), _adapted(peft, model_type, parts)
    layers = _layers(peft, adapted)
    checks: dict[str, Callable[[str], bool]] = {
        "target_modules": lambda name: bool(_hits_of("target_modules", peft, name, parts.kinds)),
        "exclude_modules": lambda name: bool(_hits_of("exclude_modules", peft, name, parts.kinds)),
        "modules_to_save": lambda name: any(path.endswith(name) for path in parts.kinds),
        "trainable_token_indices": lambda name: any(path.endswith(name) for path in parts.kinds),
        "target_parameters": lambda name: bool(hits(name, parts.parameters, False)),
        "rank_pattern": lambda name: bool(_matching(rf"(.*\.)?({name})", adapted, "rank_pattern", name)),
        "alpha_pattern": lambda name: bool(_matching(rf"(.*\.)?({name})", adapted, "alpha_pattern", name)),
        "layers_to_transform": lambda name: int(name) in layers,
        "layers_pattern": lambda name: bool(_matching(rf"(.*?\.)?{name}\.\d+\..*", adapted, "layers_pattern", name)),
    }
    found = {
        knob: [name for name in _listed(knob, peft[knob]) if not checks[knob](name)]
        for knob in _NAMING
        if knob in fields
    }
    return {knob: names for knob, names in found.items() if names}


def missing_lines(missing: dict[str, list[str]], model: str, parts: ModelParts) -> list[str]:
    """A line for each knob whose names match nothing in the model, with the names that would."""
    lines = []
    for knob, names in missing.items():
        shown = ", ".join(names)
        if knob == "target_modules":
            line = f"{model} has no {shown}; its linear modules are {parts.linear()}"
        elif knob in ("rank_pattern", "alpha_pattern"):
            line = f"{shown} matches no module of {model} that is adapted"
        elif knob == "layers_to_transform":
            line = f"no module of {model} that is adapted is in layer {shown}"
        elif knob == "target_parameters":
            line = f"{model} has no parameter {shown}"
        else:
            line = f"{model} has no module {shown}"
        lines.append(f"peft_config.{knob}: {line}{nearest(names[0], parts.names)}")
    return lines


def _listed(knob: str, value: Any) -> list[str]:
    if isinstance(value, (str, int)):
        return [str(value)]
    if knob == "trainable_token_indices" and not isinstance(value, dict):
        return []  # of the embedding, whatever it is called
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else [str(name) for name in value]


def _hits_of(knob: str, peft: dict[str, Any], name: str, paths: Iterable[str]) -> list[str]:
    if isinstance(peft[knob], str):
        return _matching(name, paths, knob, name)
    return hits(name, paths, False)


def _adapted(peft: dict[str, Any], model_type: str, parts: ModelParts) -> list[str]:
    """The modules and parameters that get an adapter, in whatever layer."""
    targets = peft.get("target_modules")
    if targets is None:
        targets = DEFAULT_TARGETS.get(model_type, ())
    if targets == "all-linear":
        adapted = list(parts.kinds)
    elif isinstance(targets, str):
        adapted = _hits_of("target_modules", peft, targets, parts.kinds)
    else:
        adapted = [path for target in targets for path in hits(target, parts.kinds, False)]
    named = [path for name in peft.get("target_parameters") or () for path in hits(name, parts.parameters, False)]
    return [*adapted, *named, *(path.rpartition(".")[0] for path in named)]


def _layers(peft: dict[str, Any], adapted: list[str]) -> set[int]:
    """The numbers of the layers that have adapted modules."""
    given = peft.get("layers_pattern") or ()
    patterns = [rf"(?:.*?\.)?{name}\.(?P<index>\d+)\." for name in _listed("layers_pattern", given)] or [_LAYER]
    found = (re.match(pattern, path) for pattern in patterns for path in adapted)
    return {int(match["index"]) for match in found if match}


def _matching(pattern: str, paths: Iterable[str], knob: str = "target_modules", shown: str = "") -> list[str]:
    try:
        return [path for path in paths if re.fullmatch(pattern, path)]
    except re.error as error:
        told = f"peft_config.{knob}: {shown or pattern!r} is not a regular expression: {error}"
        raise UserError(told) from error
