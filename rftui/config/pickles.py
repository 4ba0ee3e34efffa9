"""Pickling what a user's script defines, so that another process can load it, also when the script is gone."""

from __future__ import annotations

import functools
import inspect
import io
import os
import pickle
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
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
    script = vars(sys.modules["__main__"]).get("__file__")
    homes = [os.getcwd(), *([os.path.dirname(os.path.abspath(script))] if script else [])]
    if not os.path.abspath(file).startswith(tuple(os.path.join(home, "") for home in homes)):
        return False
    path = Path(file).absolute()
    return not (
        {"site-packages", "dist-packages"} & set(path.parts) or any(path.is_relative_to(lib) for lib in _STANDARD)
    )


class Pickler(cloudpickle.Pickler):
    """Also takes functions that keep their results (`functools.cache`), with nothing kept yet."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, functools._lru_cache_wrapper) and not importable(value):
            # In terms of the standard library, since ejected scripts have nothing else.
            parameters, kind = value.cache_parameters(), functools._CacheInfo
            given = (value.__wrapped__, parameters["maxsize"], parameters["typed"], kind)
            return functools._lru_cache_wrapper, given, dict(vars(value))
        return super().reducer_override(value)


class _Located(Pickler):
    """Keeps the files of functions, which cloudpickle leaves out: errors are told with file and line."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            make, parts = self.dispatch_table[CodeType](value)
            return _code, (parts, value.co_filename)
        return super().reducer_override(value)


def _code(parts: tuple[Any, ...], file: str) -> CodeType:
    return CodeType(*parts).replace(co_filename=file)


def importable(value: Any) -> bool:
    """Whether another process finds it under its module's name, so that it need not be taken by value."""
    by_value = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    if any(value.__module__ == name or value.__module__.startswith(f"{name}.") for name in by_value):
        return False
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


def dumps(value: Any, limit: int | None = None) -> bytes:
    """`value` pickled. Raises OverflowError where that takes more than `limit` bytes, and what user code raises."""
    file = _Scale(limit, io.BytesIO())
    _Located(file).dump(value)
    assert file.kept
    return file.kept.getvalue()


class Unpickler(pickle.Unpickler):
    """Makes everything anew that was pickled by value, as a new process would: also classes, which cloudpickle would
    find again from an earlier time, with what they keep.

    `known` are classes that stay what they are, by cloudpickle's id; those that are made are put into `made`.
    """

    def __init__(self, content: bytes, known: dict[str, Any] | None = None) -> None:
        super().__init__(io.BytesIO(content))
        self.made: dict[str, Any] = {}
        self._known = known or {}

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if module == cloudpickle.Pickler.__module__:
            if name == "_class_setstate":
                return self._class_state(found)
            if name.startswith("_make_") and "class_tracker_id" in (told := inspect.signature(found).parameters):
                return self._class(found, list(told).index("class_tracker_id"))
        return found

    def _class(self, make: Callable[..., Any], place: int) -> Callable[..., Any]:
        def fresh(*given: Any) -> Any:
            number = given[place]
            if number not in self._known:
                self.made[number] = make(*given[:place], None, *given[place + 1 :])
            return self._known[number] if number in self._known else self.made[number]

        return fresh

    def _class_state(self, fill: Callable[..., Any]) -> Callable[..., Any]:
        return lambda made, state: made if made in self._known.values() else fill(made, state)


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
    """A file that counts, and refuses to go on past the limit."""

    def __init__(self, limit: int | None = LIMIT, kept: io.BytesIO | None = None) -> None:
        self.size = 0
        self.kept = kept
        self._limit = limit

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        self.size += count
        if self._limit is not None and self.size > self._limit:
            raise OverflowError(f"it takes more than {self._limit // 1_000_000} MB")
        if self.kept:
            self.kept.write(data)
        return count


def _weigh(value: Any) -> tuple[int, str | None]:
    """Bytes that `value` pickles to (counted to just past the limit), and why it does not pickle at all."""
    scale = _Scale()
    try:
        Pickler(scale).dump(value)
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
