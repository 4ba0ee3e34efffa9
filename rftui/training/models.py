"""What can be told about a model without its weights: its configuration, its modules, its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig
from transformers.pytorch_utils import Conv1D

from rftui.errors import UserError
from rftui.training.failures import unregistered
from rftui.training.module_names import DEFAULT_TARGETS, ModelParts, hits, missing_lines, missing_names, named

LOADING = ("revision", "trust_remote_code", "token", "cache_dir", "local_files_only", "gguf_file", "subfolder")
"""Those of a model's keyword arguments that its configuration and its tokenizer take too."""

_ADAPTABLE = (torch.nn.Linear, torch.nn.Embedding, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, Conv1D)


class Models:
    """Checks models by name, looking at each only once."""

    def __init__(self) -> None:
        self._config = _once(load_config)
        self._parts = _once(lambda name, kwargs: model_parts(without_weights(name, self._config(name, kwargs))))
        self._template = _once(_has_template)

    def faults(
        self, config: dict[str, Any], notices: list[str], *, chats: bool, shared: Collection[str] = ()
    ) -> list[str]:
        """What is wrong with a run's model, the modules that it names (in the fields `shared` also those of other
        models) and, if its rows are conversations (`chats`), tokenizer."""
        name = config["model_name"]
        if not name or not isinstance(name, str):
            return ["model_name is missing: give a directory or a name on the Hugging Face hub, or a create_model_fn"]
        kwargs = tuple((key, config["model_kwargs"][key]) for key in LOADING if key in config["model_kwargs"])
        try:
            loaded = self._config(name, kwargs)
            faults = []
            if config["peft_config"] is not None:
                faults += self._peft_faults(config["peft_config"], name, kwargs, loaded.model_type, shared, notices)
            tokenizer = config["tokenizer"] or name
            if chats and not _template_given(config) and not self._template(tokenizer, kwargs):
                faults.append(
                    f"the tokenizer of {tokenizer} has no chat template, and the rows are conversations: set "
                    "training_args.chat_template_path to a model or a .jinja file, or give rows of text"
                )
        except UserError as fault:
            return list(fault.lines)
        return faults

    def _peft_faults(
        self,
        peft: dict[str, Any],
        name: str,
        kwargs: tuple[tuple[str, Any], ...],
        model_type: str,
        shared: Collection[str],
        notices: list[str],
    ) -> list[str]:
        if not named(peft) and (peft.get("target_modules") == "all-linear" or model_type in DEFAULT_TARGETS):
            return []
        parts = self._parts(name, kwargs)
        faults, excused = adapter_faults(peft, name, model_type, parts, shared)
        notices += excused
        return faults or ([] if peft.get("target_modules") == "all-linear" else _kind_faults(peft, model_type, parts))


def _once(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make`, called once for each set of arguments; a UserError that it raised is raised again."""
    made: dict[tuple[Any, ...], Any] = {}

    def get(*key: Any) -> Any:
        if key not in made:
            try:
                made[key] = make(*key)
            except UserError as fault:
                made[key] = fault
        if isinstance(made[key], UserError):
            raise made[key]
        return made[key]

    return get


def adapter_faults(
    peft: dict[str, Any], name: str, model_type: str, parts: ModelParts, shared: Collection[str]
) -> tuple[list[str], list[str]]:
    """What is wrong with the names in a LoRA config for the model `name`, and notices. In the fields `shared` with
    runs on other models a name may be one of theirs, but not all may be."""
    missing = missing_names(peft, model_type, parts)
    targets = peft.get("target_modules")
    none = isinstance(targets, str) or len(missing.get("target_modules", ())) == len(targets or ())
    excused = {field: names for field, names in missing.items() if field in shared}
    if none:
        excused.pop("target_modules", None)
    faulty = {field: names for field, names in missing.items() if field not in excused}
    return missing_lines(faulty, name, parts), missing_lines(excused, name, parts)


def _kind_faults(peft: dict[str, Any], model_type: str, parts: ModelParts) -> list[str]:
    """What is wrong with the kinds of a LoRA config's target modules."""
    targets = peft.get("target_modules")
    if targets is None and not peft.get("target_parameters") and model_type not in DEFAULT_TARGETS:
        return [
            f"peft_config.target_modules is missing and has no default for {model_type}; its linear modules are "
            f'{parts.linear()}; "all-linear" is all of them'
        ]
    wanted = [targets] if isinstance(targets, str) else sorted(targets or ())
    found = {target: hits(target, parts.kinds, isinstance(targets, str)) for target in wanted}
    bad = [target for target, hit in found.items() if any(parts.kinds[path] == "other" for path in hit)]
    told = f"linear modules are {parts.linear()}"
    return [f"peft_config.target_modules: LoRA cannot adapt {target}; {told}" for target in bad]


def _template_given(config: dict[str, Any]) -> bool:
    """Whether the config itself holds a chat template, so that the tokenizer need not."""
    tokenizer, args = config["tokenizer"], config["training_args"]
    given = not isinstance(tokenizer, str) and getattr(tokenizer, "chat_template", None)
    return bool(given or config["tokenizer_kwargs"].get("chat_template") or args.get("chat_template_path"))


def load_config(name: str, kwargs: tuple[tuple[str, Any], ...]) -> PretrainedConfig:
    """A model's configuration; `kwargs` are those of `LOADING`. Raises UserError."""
    try:
        return AutoConfig.from_pretrained(name, **dict(kwargs))
    except Exception as error:
        raise UserError(f"model_name {name!r}: {_why(name, error)}") from error


def _why(name: str, error: Exception) -> str:
    """Why nothing could be loaded from `name`, in one line."""
    path = Path(name)
    if path.is_dir():
        return f"cannot load {path.absolute()}: {_first_line(error)}{unregistered(error)}"
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith("."):
        return f"no directory {path.absolute()}, and it is not a name on the Hugging Face hub (OWNER/MODEL)"
    return (
        f"no directory {path.absolute()}, and it could not be loaded from the Hugging Face hub: the name may be "
        "wrong, the model gated (set HF_TOKEN), or this machine offline"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def without_weights(name: str, config: PretrainedConfig) -> Any:
    """The model with its modules and shapes; allocates nothing."""
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)
    except Exception as error:
        why = f"{_first_line(error)}{unregistered(error)}"
        raise UserError(f"model_name {name!r} is not a causal language model: {why}") from error


def module_kinds(model: Any) -> dict[str, str]:
    """The paths of a model's modules -> "linear", "layer" (what else LoRA adapts) or "other"."""
    output = model.get_output_embeddings()

    def kind(module: torch.nn.Module) -> str:
        if isinstance(module, (torch.nn.Linear, Conv1D)) and module is not output:
            return "linear"
        return "layer" if isinstance(module, _ADAPTABLE) else "other"

    return {path: kind(module) for path, module in model.named_modules() if path}


def model_parts(model: Any) -> ModelParts:
    """What an adapter's config can name in the model."""
    return ModelParts(module_kinds(model), [name for name, _ in model.named_parameters()])


def _has_template(name: str, kwargs: tuple[tuple[str, Any], ...]) -> bool:
    try:
        return bool(AutoTokenizer.from_pretrained(name, **dict(kwargs)).chat_template)
    except Exception as error:
        raise UserError(f"tokenizer {name!r}: {_why(name, error)}") from error
