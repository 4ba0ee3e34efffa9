"""Every combination of the alternatives in a user's configs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from os import PathLike
from typing import Any, NamedTuple

from rftui.automl.alternatives import List
from rftui.automl.configs import Recorded, RFModelConfig, recorded
from rftui.config.renames import modern
from rftui.config.spec import RunConfig, plain_value
from rftui.config.values import native, numbers
from rftui.errors import UserError
from rftui.redaction import redact
from rftui.runs import Run, flatten

ALGOS = ("SFT", "DPO", "GRPO")
"""What can be trained."""


class RFGridSearch:
    """All combinations of the `List`s in `configs`: an RFModelConfig, or a List or list of them.

    `trainer_type` is "SFT", "DPO" or "GRPO"; where it is left out, the class of the training arguments tells it.
    """

    def __init__(self, configs: Any, trainer_type: str | None = None) -> None:
        self.configs = configs
        self.trainer_type = trainer_type

    def __repr__(self) -> str:
        return f"RFGridSearch({self.configs!r}, trainer_type={self.trainer_type!r})"

    def propose(self, runs: Sequence[Run]) -> list[RunConfig]:
        """One config a combination as the fit begins, and nothing later; the last `List` varies fastest. Raises one
        UserError for all that is wrong."""
        return [] if runs else expand(self.configs, self.trainer_type)


def expand(group: Any, trainer_type: str | None = None) -> list[RunConfig]:
    """The configs of a config group: an RFGridSearch, an RFModelConfig, or a List or list of these.

    Raises one UserError for all that is wrong.
    """
    faults: list[str] = []
    made: list[tuple[RunConfig, frozenset[str]]] = []
    for config, algo in _configs(group, trainer_type, faults):
        try:
            made += [_run_config(alternative, algo) for alternative in _alternatives(vars(config), "")]
        except UserError as fault:
            faults += fault.lines
    if not made and not faults:
        faults.append("the config group holds no config: give RFGridSearch at least one RFModelConfig")
    if faults:
        raise UserError(*dict.fromkeys(faults))
    return _with_knobs(made)


def _configs(group: Any, algo: str | None, faults: list[str]) -> Iterator[tuple[RFModelConfig, str | None]]:
    if isinstance(group, RFGridSearch):
        yield from _configs(group.configs, group.trainer_type or algo, faults)
    elif isinstance(group, RFModelConfig):
        yield group, algo
    elif isinstance(group, (List, list, tuple)):
        for item in group.values if isinstance(group, List) else group:
            yield from _configs(item, algo, faults)
    else:
        faults.append(f"a config group is made of RFModelConfigs, not of {type(group).__name__} ({group!r:.60})")


class _Alternative(NamedTuple):
    """One choice from every List below some place: the value, the dotted names of those Lists, the algo told there."""

    value: Any
    swept: frozenset[str] = frozenset()
    algo: str | None = None


def _alternatives(node: Any, name: str) -> Iterator[_Alternative]:
    algo = None
    if name in ("peft_config", "training_args"):
        if isinstance(node, (list, tuple)):
            node = List(node)
        node, algo = _data(node, name)
    if isinstance(node, List):
        for item in node.values:
            # The knobs of whole configs are the fields in which they differ, not the config.
            own = frozenset() if isinstance(item, (Recorded, dict)) or _is_object(item) else frozenset({name})
            for value, swept, told in _alternatives(item, name):
                yield _Alternative(value, swept | own, told)
    elif isinstance(node, (dict, Recorded)):
        fields = node if isinstance(node, dict) else vars(node)
        prefix = f"{name}." if name else ""
        for choice in product(*(list(_alternatives(item, f"{prefix}{key}")) for key, item in fields.items())):
            told = next((part.algo for part in choice if part.algo), algo)
            value = dict(zip(fields, (part.value for part in choice), strict=True))
            yield _Alternative(value, _union(part.swept for part in choice), told)
    elif type(node) in (list, tuple):
        for choice in product(*(list(_alternatives(item, name)) for item in node)):
            yield _Alternative(type(node)(part.value for part in choice), _union(part.swept for part in choice))
    elif name.partition(".")[0] in _READ_HERE or not isinstance(node, PathLike):
        yield _Alternative(native(node, name))
    else:
        yield _Alternative(node)  # the user's own create_model_fn may want a path


_READ_HERE = {
    *("model_name", "tokenizer", "tokenizer_kwargs", "model_kwargs", "peft_config", "training_args"),
    *("generation_config", "reward_funcs"),
}
"""What rftui reads itself, so that a path there may become text."""


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)


def _is_object(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _data(node: Any, name: str) -> tuple[Any, str | None]:
    """A config in the place of `name` as data, and the algo that its class stands for."""
    wanted = ("LoraConfig",) if name == "peft_config" else tuple(f"{algo}Config" for algo in ALGOS)
    classes = [kind.__name__.removeprefix("RF") for kind in type(node).__mro__]
    if node is None or isinstance(node, (List, dict)):
        return node, None
    told = next((kind for kind in classes if kind in wanted), None)
    if not told and (name == "peft_config" or "TrainingArguments" not in classes):
        shown = " or ".join(f"RF{kind}" for kind in wanted)
        raise UserError(f"{name} is {type(node).__name__}; give it {shown}, the class it stands for, or a dict")
    algo = told.removesuffix("Config") if told and name == "training_args" else None
    return (vars(node) if isinstance(node, Recorded) else recorded(node)), algo


def _run_config(alternative: _Alternative, trainer_type: str | None) -> tuple[RunConfig, frozenset[str]]:
    config, swept, told = alternative
    if trainer_type and told and trainer_type != told:
        raise UserError(f"trainer_type is {trainer_type!r}, but the training_args are of {told}: make them agree")
    algo = trainer_type or told or "SFT"
    if algo not in ALGOS:
        raise UserError(f"trainer_type {algo!r} is not known; it can be {', '.join(ALGOS)}")
    for name in ("tokenizer_kwargs", "model_kwargs", "training_args"):
        config[name] = {} if config[name] is None else config[name]
        if not isinstance(config[name], dict):
            raise UserError(f"{name} is {type(config[name]).__name__}; it must be a dict")
    config, notices = modern(config, algo)
    for name in ("training_args", "peft_config", "generation_config"):
        if isinstance(config[name], dict):
            config[name], said = numbers(name, config[name])
            notices += said
    rewards = config["reward_funcs"]
    if algo == "GRPO" and not rewards:
        raise UserError("GRPO needs reward_funcs: give RFModelConfig one or more functions that score completions")
    if algo != "GRPO" and rewards:
        notices.append(f"reward_funcs are left out: {algo} does not use them")
    return RunConfig(algo, config, notices=notices), swept


def _with_knobs(made: list[tuple[RunConfig, frozenset[str]]]) -> list[RunConfig]:
    """The configs with their knobs: what was swept, and what differs between the configs of the group."""
    flats = [{name: item for name, item in flatten(run_config.config).items() if item != {}} for run_config, _ in made]
    swept = _union(names for _, names in made)
    names = dict.fromkeys(name for flat in flats for name in flat)
    knobs = sorted((name for name in names if name in swept or _differs(flats, name)), key=_rank)
    for (run_config, _), flat in zip(made, flats, strict=True):
        run_config.knobs = {name: redact(plain_value(flat[name]), name) for name in knobs if name in flat}
    return [run_config for run_config, _ in made]


_FIRST = ("model_name", "training_args", "peft_config")


def _rank(name: str) -> int:
    """Where a knob stands among the others: the most telling ones first."""
    section = name.split(".", 1)[0]
    return _FIRST.index(section) if section in _FIRST else len(_FIRST)


_MISSING = object()


def _differs(flats: list[dict[str, Any]], name: str) -> bool:
    first, *others = (flat.get(name, _MISSING) for flat in flats)
    return any(not _same(first, other) for other in others)


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    # Arrays and tensors compare elementwise; two of them are the same knob only where they are one object.
    return type(one) is type(other) and (one == other) is True
