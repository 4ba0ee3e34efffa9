"""What one `run_fit` asks for, kept in a file so that a worker, or a later day, can take it up."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import cloudpickle

from rftui.automl.pickles import by_value, trouble
from rftui.faults import Fault
from rftui.paths import owned_by_us, write_whole
from rftui.runs import HIDDEN, Run, changed, flatten, redact, short


@dataclass
class Leaf:
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
    """One fit: its configs, how it cuts its data, and where the script ran. `num_chunks` and `chunk_size` as given."""

    leaves: list[Leaf]
    create_model_fn: Callable[..., Any] | None = None
    num_chunks: int | None = None
    chunk_size: int | None = None
    seed: int = 42
    has_eval: bool = False
    cwd: str = field(default_factory=os.getcwd)
    sys_path: list[str] = field(default_factory=lambda: [str(Path(entry).absolute()) for entry in sys.path])
    argv: list[str] = field(default_factory=lambda: list(sys.argv))

    def save(self, path: Path) -> None:
        """Write it to `path` (mode 0600) in one step. Raises one Fault that names everything that cannot travel."""
        if lines := self.troubles():
            raise Fault(*lines)
        with by_value():
            try:
                # The paths come first: they must be in force before the rest is unpickled.
                content = json.dumps(self.sys_path).encode() + b"\n" + cloudpickle.dumps(self)
            except Exception as error:
                raise Fault(f"the configs cannot be written: {' '.join(str(error).split())}") from error
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)

    @classmethod
    def load(cls, path: Path) -> Spec:
        """Read it back, after appending the script's module paths to `sys.path`.

        Raises Fault where the file is missing, is not this user's own, or cannot be read here.
        """
        try:
            if not owned_by_us(path):
                raise Fault(f"{path} can be written by others, and loading it would run its code; not opened")
            head, _, body = path.read_bytes().partition(b"\n")
            sys.path += [entry for entry in json.loads(head) if entry not in sys.path]
            spec: Spec = pickle.loads(body)
        except OSError as error:
            raise Fault(f"cannot read {path}: {error.strerror}") from error
        except Fault:
            raise
        except Exception as error:
            raise Fault(f"{path} cannot be loaded with this Python: {' '.join(str(error).split())}") from error
        return spec

    def troubles(self) -> list[str]:
        """A line for each distinct callable or value that cannot travel to another process."""
        named: dict[int, tuple[str, Any]] = {}
        if self.create_model_fn is not None:
            named[id(self.create_model_fn)] = ("create_model_fn", self.create_model_fn)
        for leaf in self.leaves:
            for name, value in leaf.config.items():
                named.setdefault(id(value), (name, value))
        with by_value():
            return [line for name, value in named.values() if (line := trouble(name, value))]


def plain(leaf: Leaf) -> dict[str, Any]:
    """The leaf's config as JSON-able data: callables by name, secrets hidden. For showing, not for training."""
    config: dict[str, Any] = redact(plain_value(leaf.config))
    return config


def configured(leaf: Leaf, changes: dict[str, Any]) -> dict[str, Any]:
    """The leaf's real config with the dotted names of `changes` set. The leaf stays as it is."""
    if "torch_dtype" in leaf.config.get("model_kwargs", {}):
        # The user's own create_model_fn may read the older name, so that the change goes there.
        changes = {name.replace("model_kwargs.dtype", "model_kwargs.torch_dtype"): v for name, v in changes.items()}
    return changed(leaf.config, changes)


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


NAME_WIDTH = 28
"""Columns of a generated run name."""


def run_name(knobs: dict[str, Any], number: int, taken: Collection[str] = ()) -> str:
    """A short name from a run's knobs that is not in `taken`: "lr5e-4-r16-qv"; "run 3" where there are no knobs."""
    parts = [part for name, value in knobs.items() if (part := _part(name, value))]
    name = "-".join(parts)
    while len(name) > NAME_WIDTH and len(parts) > 1:
        parts.pop()
        name = "-".join(parts)
    name = name[:NAME_WIDTH] or f"run {number}"
    stem, count = name, 1
    while name in taken:
        count += 1
        name = f"{stem[: NAME_WIDTH - len(str(count)) - 1]}-{count}"
    return name


def _part(name: str, value: Any) -> str:
    label = short(name)
    if redact(value, name) == HIDDEN or value is None:
        return ""
    if isinstance(value, bool):
        return label if value else f"no-{label}"
    if isinstance(value, (int, float)):
        return f"{label}{_number(value)}"
    if isinstance(value, list):
        return "".join(str(item).removesuffix("_proj")[:2] for item in value)
    return "".join(letter for letter in str(value).rsplit("/", 1)[-1] if letter.isalnum() or letter in "._-<>")[:16]


def _number(value: float) -> str:
    if isinstance(value, int) or value == 0 or abs(value) >= 0.01:
        return f"{value:.6g}"
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
