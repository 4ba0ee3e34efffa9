"""A run's config as YAML to edit, and what was changed in it. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from rftui.config.validate import parse, unknown, value_fault
from rftui.errors import UserError
from rftui.messages import Field
from rftui.redaction import HIDDEN, redact
from rftui.runs import Run, changed, flatten
from rftui.tui.screens.clone_fields import shown

_HEAD = """\
# Run {id}. Edit the values; a line you delete keeps the run's value.
# A list such as [1e-4, 2e-4] in place of one value makes a clone of each. Empty the file to change nothing.
"""


class _Dumper(yaml.SafeDumper):
    """Numbers as one types them, and lists on one line."""


def _number(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    text = shown(value)
    return dumper.represent_scalar(f"tag:yaml.org,2002:{'int' if text.lstrip('-').isdigit() else 'float'}", text)


def _list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.SequenceNode:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)


_Dumper.add_representer(float, _number)
_Dumper.add_representer(list, _list)


class _Loader(yaml.SafeLoader):
    """1e-4 is a number and `no` a word: both are values of knobs."""

    yaml_implicit_resolvers: dict[str, Any] = {}


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)
_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def to_yaml(run: Run, values: dict[str, Any]) -> str:
    """The run's config, without its secrets, with these dotted names set; a list where several were typed."""
    config = changed(redact(run.config), values)
    body = yaml.dump(config, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return _HEAD.format(id=run.id) + body


def from_yaml(text: str, run: Run, fields: list[Field]) -> dict[str, list[Any]] | None:
    """The values, by dotted name, that differ from the run's; None where nothing is written.

    Raises UserError with a line for each thing that is wrong.
    """
    try:
        written = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise UserError(f"not valid YAML{where}: {getattr(error, 'problem', None) or 'it cannot be read'}") from error
    if written is None:
        return None
    if not isinstance(written, dict):
        raise UserError("not a config: write lines of `name: value`")
    by_name = {field.name: field for field in fields}
    before = flatten(redact(run.config), whole=by_name)
    found: dict[str, list[Any]] = {}
    faults = []
    for name, value in flatten(written, whole=by_name).items():
        if value == HIDDEN or (name in before and _same(value, before[name])):
            continue
        try:
            if name not in by_name:
                raise UserError(f"{name} {unknown(name, list(by_name))}")
            found[name] = _values(by_name[name], value)
        except UserError as fault:
            faults.append(str(fault))
    if faults:
        raise UserError(*faults)
    return found


def _same(value: Any, before: Any) -> bool:
    return bool(value == before) and isinstance(value, bool) == isinstance(before, bool)


def _values(field: Field, value: Any) -> list[Any]:
    """The values of a knob; several where there is a list and the knob is none, or a list of lists."""
    several = isinstance(value, list) and (field.kind != "list" or any(isinstance(each, list) for each in value))
    found: list[Any] = []
    for each in value if several else [value]:
        one = _value(field, each)
        if not any(_same(one, other) for other in found):
            found.append(one)
    if not found:
        raise UserError(f"{field.name} needs a value")
    return found


def _value(field: Field, value: Any) -> Any:
    if isinstance(value, str):
        return parse(field, value)
    if field.kind == "text" and value is not None:
        value = json.dumps(value) if isinstance(value, (dict, list)) else shown(value)
    elif field.kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if reason := value_fault(field, value):
        raise UserError(f"{field.name} {reason}")
    return value
