"""Values of a config as Python source that reads as if a person had written it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from rftui.config.portable import Secrets
from rftui.config.spec import plain_value

_WIDTH = 110


class Code(str):
    """An expression, as it stands in the source."""


@dataclass
class Call:
    """A call, with arguments that `source` takes; `first` stand before the ones with names."""

    function: str
    arguments: dict[str, Any]
    first: tuple[Any, ...] = ()


def source(value: Any, indent: int = 4, before: int = 0) -> str:
    """The expression that makes `value`: plain data, `Code` and `Call`s in any nesting.

    It is broken into indented lines where it is too long for the rest of a line that is indented by `indent` and has
    `before` characters already.
    """
    flat = _flat(value)
    if indent + before + len(flat) <= _WIDTH:
        return flat
    match value:
        case Call(function):
            opening, items, closing = f"{function}(", _labelled(value), ")"
        case dict():
            opening, items, closing = "{", [(f"{_flat(name)}: ", item) for name, item in value.items()], "}"
        case list():
            opening, items, closing = "[", [("", item) for item in value], "]"
        case _:
            return flat
    inner = indent + 4
    lines = [f"{' ' * inner}{label}{source(item, inner, len(label))},\n" for label, item in items]
    return f"{opening}\n{''.join(lines)}{' ' * indent}{closing}"


def _labelled(call: Call) -> list[tuple[str, Any]]:
    return [("", item) for item in call.first] + [(f"{name}=", item) for name, item in call.arguments.items()]


def _flat(value: Any) -> str:
    match value:
        case Code():
            return str(value)
        case Call(function):
            return f"{function}({', '.join(label + _flat(item) for label, item in _labelled(value))})"
        case dict():
            return f"{{{', '.join(f'{_flat(name)}: {_flat(item)}' for name, item in value.items())}}}"
        case list():
            return f"[{', '.join(map(_flat, value))}]"
        case tuple():
            return f"({', '.join(map(_flat, value))}{',' * (len(value) == 1)})"
        case float():
            return repr(value) if value - value == 0 else f'float("{value}")'
        case str():
            quoted = repr(value)
            return quoted if '"' in value or "\\" in quoted else f'"{value}"'
        case _:
            return repr(value)


class Values:
    """Values of configs as `source` takes them, and what they need beside the code.

    `objects`: what cannot be written as code, by the name under which it is referred to; `secrets`: what must not be
    written; `here`: whether there are relative paths, or functions that may hold some, so that the working directory
    matters. It is the script's as the values are written.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.secrets = Secrets()
        self.here = False

    def written(self, value: Any, name: str) -> Any:
        """`value`, called `name` in its config, as `source` takes it."""
        if variable := self.secrets.variable(name, value):
            return Code(f'os.environ["{variable}"]')
        if value is None or type(value) in (bool, int, float):
            return value
        if type(value) is str:
            self.here |= os.path.exists(value) and not os.path.isabs(value)
            return value
        if type(value) in (list, tuple):
            return type(value)(self.written(item, name) for item in value)
        if type(value) is dict and all(type(key) in (str, int) for key in value):
            return {key: self.written(item, str(key)) for key, item in value.items()}
        if isinstance(value, torch.dtype):
            return Code(str(value))
        return self._object(value, name)

    def _object(self, value: Any, name: str) -> Code:
        self.here |= callable(value)
        said = plain_value(value)
        stem = said if isinstance(said, str) and said.isidentifier() else name
        known, number = stem, 1
        while known in self.objects and self.objects[known] is not value:
            number += 1
            known = f"{stem}_{number}"
        self.objects[known] = value
        return Code(f'OBJECTS["{known}"]')
