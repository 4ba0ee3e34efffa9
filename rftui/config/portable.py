"""Pickles of a user's functions and objects for a script of their own: no secret is in them, and nothing of rftui."""

from __future__ import annotations

import dis
import functools
import importlib.util
import io
import pickletools
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from rftui.config.pickles import Pickler
from rftui.config.spec import plain_value
from rftui.errors import UserError
from rftui.redaction import HIDDEN, redact


class Secrets:
    """Values that must not be written down, and the environment variables that stand for them."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}

    def variable(self, name: str, value: Any) -> str | None:
        """The variable for `value`, called `name` where it was found; None where it is no secret."""
        if not isinstance(value, str) or redact(value, name) != HIDDEN:
            return None
        if value not in self.variables:
            own = re.sub(r"\W", "_", name.rpartition(".")[2]).upper() or "SECRET"
            own = "HF_TOKEN" if value.startswith("hf_") or own in ("TOKEN", "USE_AUTH_TOKEN") else own
            stem, taken, count = own, set(self.variables.values()), 1
            while own in taken:
                count += 1
                own = f"{stem}_{count}"
            self.variables[value] = own
        return self.variables[value]


def portable(objects: dict[str, Any], secrets: Secrets) -> tuple[bytes, set[str]]:
    """The pickle of `objects`, and the top-level modules that must be found as it is loaded or used.

    What looks like a secret in it is read from the environment as it is loaded, and goes to `secrets`. Raises
    UserError for an object that uses rftui.
    """
    for name, value in objects.items():
        if "rftui" in _Look(value, Secrets()).modules:
            what = plain_value(value)
            raise UserError(
                f"{name}{f' ({what})' if what != name else ''} uses rftui, so that no script without it can: have it "
                "use TRL's, PEFT's and transformers' own classes, and train again"
            )
    look = _Look(objects, secrets)
    return _without(look.pickled, secrets.variables), look.modules


_SURE = re.compile(r"(api_?key|password|passwd|secret|credentials?)$", re.IGNORECASE)
_OPAQUE = re.compile(r"(?=.*\d)\S{16,}")


class _Look(Pickler):
    """Pickles a value and sees everything that goes into the pickle."""

    def __init__(self, value: Any, secrets: Secrets) -> None:
        file = io.BytesIO()
        super().__init__(file)
        self.modules: set[str] = set()
        self._secrets = secrets
        self.dump(value)
        self.pickled = file.getvalue()

    def persistent_id(self, value: Any) -> None:  # asked for each object, before it is written
        if isinstance(value, str):
            self._secrets.variable("", value)
        elif isinstance(value, ModuleType):
            self._module(value.__name__)
        elif isinstance(value, CodeType):
            for instruction in dis.get_instructions(value):
                if instruction.opname == "IMPORT_NAME" and instruction.argval:  # "" in `from . import name`
                    self._module(instruction.argval)
        elif isinstance(value, functools.partial):
            self._named(value.keywords.items())
        elif isinstance(value, (FunctionType, type)):
            if _found_again(value):
                self._module(value.__module__)
            elif isinstance(value, FunctionType):
                self._named(_variables(value))

    def _module(self, name: str) -> None:
        self.modules.add(name.partition(".")[0])

    def _named(self, values: Iterable[tuple[str, Any]]) -> None:
        for name, value in values:
            # A variable called `key` may as well hold the name of a column.
            if isinstance(value, str) and (_SURE.search(name) or _OPAQUE.fullmatch(value)):
                self._secrets.variable(name, value)


def _found_again(value: FunctionType | type) -> bool:
    """Whether a function or class is pickled as its module and name, not as what it is made of."""
    found: Any = None if value.__module__ == "__main__" else sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The names and values that a function finds outside its calls: globals, closure, defaults."""
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        yield from ((name, function.__globals__[name]) for name in code.co_names if name in function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            pass
    yield from (function.__kwdefaults__ or {}).items()
    defaults = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)


def _without(pickled: bytes, secrets: dict[str, str]) -> bytes:
    """`pickled` with look-ups in the environment instead of the strings `secrets` (value -> variable)."""
    if not secrets:
        return pickled
    ops = list(pickletools.genops(pickled))
    ends = [at for _, _, at in ops[1:]] + [len(pickled)]
    out = bytearray()
    for (op, argument, at), end in zip(ops, ends, strict=True):
        if op.name == "FRAME":  # frames tell lengths, and may be missing
            continue
        assert at is not None
        if op.name.endswith("BINUNICODE") and argument in secrets:
            variable = secrets[argument].encode()
            # operator.getitem(os.environ, variable)
            out += b"coperator\ngetitem\ncos\nenviron\n\x8c" + bytes([len(variable)]) + variable + b"\x86R"
        else:
            out += pickled[at:end]
    return bytes(out)


def folders(modules: Iterable[str], sys_path: Iterable[str]) -> list[str]:
    """The entries of a script's `sys_path` that hold some of the top-level `modules`, but for those of Python."""
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    homes = set()
    for name in set(modules) - {"__main__"}:
        found = importlib.util.find_spec(name)
        if found and found.origin and found.has_location:
            home = Path(found.origin).parent
            homes.add(home.parent if found.submodule_search_locations else home)
    return [entry for entry in dict.fromkeys(sys_path) if Path(entry) in homes and entry not in own]
