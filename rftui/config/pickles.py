"""Pickling what a user's script defines, so that another process can load it, also when the script is gone."""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

LIMIT = 10_000_000
"""Bytes that one callable or value of a config may pickle to."""


_STANDARD = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
"""Where Python's own modules lie; telling it anew for each of thousands of modules would take seconds."""


@contextmanager
def by_value() -> Iterator[None]:
    """Within it, cloudpickle takes what is defined in the user's own modules by value.

    Those are the modules beside the script or under the working directory that were not installed there.
    """
    known = cloudpickle.list_registry_pickle_by_value()
    loaded = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    mine = [module for module in loaded if _users(module) and module.__name__ not in known]
    for module in mine:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in mine:
            cloudpickle.unregister_pickle_by_value(module)


def _users(module: ModuleType) -> bool:
    # Out of the module's dict, since lazy modules import things when they are asked for attributes.
    file, name = vars(module).get("__file__"), module.__name__
    if not isinstance(file, str) or sys.modules.get(name) is not module or name.split(".")[0] in ("__main__", "rftui"):
        return False
    path = Path(file).absolute()
    script = vars(sys.modules["__main__"]).get("__file__")
    homes = [Path.cwd(), *([Path(script).absolute().parent] if script else [])]
    return any(path.is_relative_to(home) for home in homes) and not (
        {"site-packages", "dist-packages"} & set(path.parts) or any(path.is_relative_to(lib) for lib in _STANDARD)
    )


def trouble(name: str, value: Any) -> str | None:
    """Why `value`, called `name` in the config, cannot travel to a worker, naming the culprit; None where it can."""
    size, error = _weigh(value)
    if size <= LIMIT and error is None:
        return None
    what = f"{name} ({getattr(value, '__name__', type(value).__name__)})"
    culprit = _culprit(value, set())
    holder = f": it holds {culprit}" if culprit else ""
    if error is None:
        return f"{what} pickles to more than {LIMIT // 1_000_000} MB{holder}; load such objects inside the function"
    reason = "" if culprit else f" ({error})"
    return f"{what} cannot be sent to a worker{holder}{reason}; open or create such objects inside the function"


class _Scale:
    """A file that only counts, and refuses to go on past the limit."""

    size = 0

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        self.size += count
        if self.size > LIMIT:
            raise OverflowError
        return count


def _weigh(value: Any) -> tuple[int, str | None]:
    """Bytes that `value` pickles to (counted to just past the limit), and why it does not pickle at all."""
    scale = _Scale()
    try:
        cloudpickle.Pickler(scale).dump(value)
    except OverflowError:
        return LIMIT + 1, None
    except Exception as error:
        # Anything may be raised by a user's __reduce__; what it says is shown, in one line.
        return scale.size, " ".join(str(error).split()) or type(error).__name__
    return scale.size, None


def _culprit(value: Any, seen: set[int]) -> str | None:
    """The innermost captured object that alone is too big or cannot be pickled, as "'name' (type)"."""
    seen.add(id(value))
    for name, item in _captured(value):
        if id(item) in seen or isinstance(item, ModuleType) and not _users(item):
            continue
        size, error = _weigh(item)
        if size > LIMIT or error is not None:
            return _culprit(item, seen) or f"{name!r} ({type(item).__name__})"
    return None


def _captured(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        return [
            ("func", value.func),
            *((f"args[{n}]", arg) for n, arg in enumerate(value.args)),
            *value.keywords.items(),
        ]
    if inspect.ismethod(value):
        return [("self", value.__self__)]
    if inspect.isfunction(value):
        found = inspect.getclosurevars(value)
        defaults = [(f"default {n + 1}", item) for n, item in enumerate(value.__defaults__ or ())]
        return [*found.nonlocals.items(), *found.globals.items(), *defaults]
    if isinstance(value, dict):
        return [(str(key), item) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{n}]", item) for n, item in enumerate(value)]
    if isinstance(value, type) or isinstance(value, ModuleType) or not hasattr(value, "__dict__"):
        return []
    return list(vars(value).items())
