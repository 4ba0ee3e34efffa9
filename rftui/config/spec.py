"""What one `run_fit` asks for, kept in a file so that a worker, or a later scheduler, can read it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from rftui.config import pickles
from rftui.config.pickles import by_value, trouble
from rftui.errors import UserError
from rftui.paths import owned_by_us, write_whole
from rftui.redaction import redact
from rftui.runs import Run, changed, flatten


@dataclass
class RunConfig:
    """One configuration of a search.

    `config` holds `model_name`, `model_type`, `model_kwargs`, `tokenizer`, `tokenizer_kwargs`, `peft_config` (a dict;
    None trains all weights), `training_args`, `formatting_func`, `compute_metrics`, `generation_config` and what else
    the user set, with real callables. `knobs` are the swept values as plain data, by dotted name. `notices` are lines
    about arguments that were translated.
    """

    algo: str
    config: dict[str, Any]
    knobs: dict[str, Any] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


@dataclass
class Spec:
    """One fit: its configs, how it cuts its data, and where the script ran. `num_chunks` and `chunk_size` as given.

    `setup_fn` is a function until it is written, and then its pickle: a worker reads it apart from the rest.
    """

    run_configs: list[RunConfig]
    create_model_fn: Callable[..., Any] | None = None
    num_chunks: int | None = None
    chunk_size: int | None = None
    seed: int = 42
    has_eval: bool = False
    setup_fn: Callable[[], Any] | bytes | None = None
    cwd: str = field(default_factory=os.getcwd)
    sys_path: list[str] = field(default_factory=lambda: [str(Path(entry).absolute()) for entry in sys.path])
    argv: list[str] = field(default_factory=lambda: list(sys.argv))

    def save(self, path: Path) -> None:
        """Write it to `path` (mode 0600) in one step. Raises one UserError that names everything that cannot
        travel."""
        if lines := self.troubles():
            raise UserError(*lines)
        with by_value():
            try:
                # The paths come first: they must be in force before the rest is unpickled.
                content = json.dumps(self.sys_path).encode() + b"\n" + pickles.dumps(self)
            except Exception as error:
                raise UserError(f"the configs cannot be written: {' '.join(str(error).split())}") from error
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        if callable(self.setup_fn):
            state["setup_fn"] = pickles.dumps(self.setup_fn)
        return state

    @classmethod
    def load(cls, path: Path, known: dict[str, Any] | None = None) -> Spec:
        """Read it back, after appending the script's module paths to `sys.path`.

        Each time the user's functions and what they hold are made anew, as a process of its own would have them;
        only the classes that `known` has by their ids stay what they are (see `pickles.Unpickler`). Raises UserError
        where the file is missing, is not this user's own, or cannot be read here.
        """
        try:
            if not owned_by_us(path):
                raise UserError(f"{path} can be written by others, and loading it would run its code; not opened")
            head, _, body = path.read_bytes().partition(b"\n")
            sys.path += [entry for entry in json.loads(head) if entry not in sys.path]
            spec: Spec = _Unpickler(body, known).load()
            spec.run_configs = vars(spec).pop("leaves", None) or spec.run_configs
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{path} cannot be loaded by this Python: {' '.join(str(error).split())}") from error
        return spec

    def setup(self) -> tuple[Callable[[], Any], dict[str, Any]]:
        """The function in `setup_fn`, out of its pickle, and the classes that were made with it, for `load`'s
        `known`."""
        assert isinstance(self.setup_fn, bytes)
        reader = _Unpickler(self.setup_fn)
        return reader.load(), reader.made

    def troubles(self) -> list[str]:
        """A line for each distinct callable or value that cannot travel to another process."""
        named: dict[int, tuple[str, Any]] = {}
        if self.create_model_fn is not None:
            named[id(self.create_model_fn)] = ("create_model_fn", self.create_model_fn)
        if self.setup_fn is not None:
            named[id(self.setup_fn)] = ("setup_fn", self.setup_fn)
        for run_config in self.run_configs:
            for name, value in run_config.config.items():
                named.setdefault(id(value), (name, value))
        with by_value():
            return [line for name, value in named.values() if (line := trouble(name, value))]


class _Unpickler(pickles.Unpickler):
    """Also reads what earlier versions wrote, whose classes had other names."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "rftui.automl.spec":
            module, name = __name__, {"Leaf": "RunConfig"}.get(name, name)
        return super().find_class(module, name)


def plain(run_config: RunConfig) -> dict[str, Any]:
    """A run's config as JSON-able data: callables by name, secrets hidden. For showing, not for training."""
    config: dict[str, Any] = redact(plain_value(run_config.config))
    return config


def configured(run_config: RunConfig, changes: dict[str, Any]) -> dict[str, Any]:
    """A run's real config with the dotted names of `changes` set. The run config stays as it is."""
    if "torch_dtype" in run_config.config.get("model_kwargs", {}):
        # The user's own create_model_fn may read the older name, so that the change goes there.
        changes = {name.replace("model_kwargs.dtype", "model_kwargs.torch_dtype"): v for name, v in changes.items()}
    return changed(run_config.config, changes)


def shared_names(spec: Spec, run: Run) -> set[str]:
    """The fields of the run's adapter config that runs on other base models have alike, so that a name in them may be
    one of theirs."""
    own = spec.run_configs[run.config_index].config
    others = [each.config for each in spec.run_configs if each.config["model_name"] != own["model_name"]]
    if "model_name" in run.changes:
        return set()
    return {
        field
        for field, value in (own["peft_config"] or {}).items()
        if f"peft_config.{field}" not in run.changes
        and any((other["peft_config"] or {}).get(field) == value for other in others)
    }


def change(run: Run, changes: dict[str, Any]) -> None:
    """Set the dotted names of `changes` in what a run is made from and in what is shown of it."""
    run.changes = run.changes | changes
    run.config = changed(run.config, plain_value(changes))
    run.knobs = run.knobs | plain_value(flatten(changes))


def plain_value(value: Any) -> Any:
    """`value` as JSON-able data; what JSON has no word for stands there by its name."""
    if isinstance(value, Enum):
        return plain_value(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain_value(item) for item in value), key=str)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return plain_value(value.item())
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__qualname__.rsplit("<locals>.", 1)[-1]
    if callable(value) and hasattr(value, "func"):
        return f"partial({plain_value(value.func)})"
    if type(value).__name__ == "dtype" or isinstance(value, os.PathLike):
        return str(value)
    return f"<{type(value).__qualname__}>"
