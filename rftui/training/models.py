"""What can be told about a model without its weights: its configuration, its modules, its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as DEFAULT_TARGETS
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig
from transformers.pytorch_utils import Conv1D

from rftui.errors import UserError

LOADING = ("revision", "trust_remote_code", "token", "cache_dir", "local_files_only", "gguf_file", "subfolder")
"""Those of a model's keyword arguments that its configuration and its tokenizer take too."""

_ADAPTABLE = (torch.nn.Linear, torch.nn.Embedding, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, Conv1D)


class Models:
    """Checks models by name, looking at each only once."""

    def __init__(self) -> None:
        self._config = _once(load_config)
        self._modules = _once(lambda name, kwargs: module_kinds(without_weights(name, self._config(name, kwargs))))
        self._template = _once(_has_template)

    def faults(self, config: dict[str, Any], notices: list[str], *, chats: bool) -> list[str]:
        """What is wrong with a run's model, target modules and, if its rows are conversations (`chats`), tokenizer."""
        name = config["model_name"]
        if not name or not isinstance(name, str):
            return ["model_name is missing: give a directory or a name on the Hugging Face hub, or a create_model_fn"]
        kwargs = tuple((key, config["model_kwargs"][key]) for key in LOADING if key in config["model_kwargs"])
        try:
            loaded = self._config(name, kwargs)
            faults = []
            if config["peft_config"] is not None:
                modules = partial(self._modules, name, kwargs)
                faults += _target_faults(config["peft_config"], name, loaded.model_type, modules, notices)
            tokenizer = config["tokenizer"] or name
            if chats and not _template_given(config) and not self._template(tokenizer, kwargs):
                faults.append(
                    f"the tokenizer of {tokenizer} has no chat template, and the rows are conversations: set "
                    "training_args.chat_template_path to a model or a .jinja file, or give rows of text"
                )
        except UserError as fault:
            return list(fault.lines)
        return faults


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


def _target_faults(
    peft: dict[str, Any], name: str, model_type: str, load: Callable[[], dict[str, str]], notices: list[str]
) -> list[str]:
    """What is wrong with a LoRA config's target modules, for the model whose modules `load` tells."""
    targets = peft.get("target_modules")
    if targets == "all-linear" or peft.get("target_parameters"):
        return []
    if targets is None and model_type in DEFAULT_TARGETS:
        return []
    modules = load()
    linear = ", ".join(dict.fromkeys(path.rsplit(".", 1)[-1] for path, kind in modules.items() if kind == "linear"))
    if targets is None:
        return [
            f"peft_config.target_modules is missing and has no default for {model_type}; its linear modules are "
            f'{linear}; "all-linear" is all of them'
        ]
    wanted = [targets] if isinstance(targets, str) else sorted(targets)
    found = {target: hits(target, modules, isinstance(targets, str)) for target in wanted}
    missing = [target for target, hit in found.items() if not hit]
    if wanted and len(missing) == len(wanted):
        return [f"peft_config.target_modules: {name} has no {', '.join(missing)}; its linear modules are {linear}"]
    if missing:
        notices.append(f"peft_config.target_modules: {name} has no {', '.join(missing)}; the others are adapted")
    bad = [target for target, hit in found.items() if any(modules[path] == "other" for path in hit)]
    return [f"peft_config.target_modules: LoRA cannot adapt {target}; linear modules are {linear}" for target in bad]


def hits(target: str, modules: dict[str, str], pattern: bool) -> list[str]:
    """The modules that PEFT takes for `target`, which is a regular expression (`pattern`) or the end of a path."""
    if pattern:
        try:
            return [path for path in modules if re.fullmatch(target, path)]
        except re.error as error:
            raise UserError(f"peft_config.target_modules: {target!r} is no regular expression: {error}") from error
    return [path for path in modules if path == target or path.endswith(f".{target}")]


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
        return f"nothing that can be loaded is in {path.absolute()}: {_first_line(error)}"
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith("."):
        return f"there is no directory {path.absolute()}, and it is no name on the Hugging Face hub (OWNER/MODEL)"
    return (
        f"there is no directory {path.absolute()}, and it could not be had from the Hugging Face hub: the name may be "
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
        raise UserError(f"model_name {name!r} is no causal language model: {_first_line(error)}") from error


def module_kinds(model: Any) -> dict[str, str]:
    """The paths of a model's modules -> "linear", "layer" (what else LoRA adapts) or "other"."""
    output = model.get_output_embeddings()

    def kind(module: torch.nn.Module) -> str:
        if isinstance(module, (torch.nn.Linear, Conv1D)) and module is not output:
            return "linear"
        return "layer" if isinstance(module, _ADAPTABLE) else "other"

    return {path: kind(module) for path, module in model.named_modules() if path}


def _has_template(name: str, kwargs: tuple[tuple[str, Any], ...]) -> bool:
    try:
        return bool(AutoTokenizer.from_pretrained(name, **dict(kwargs)).chat_template)
    except Exception as error:
        raise UserError(f"tokenizer {name!r}: {_why(name, error)}") from error
