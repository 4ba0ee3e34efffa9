"""Python imports this first where its folder is on PYTHONPATH: faults are injected into the real processes.

FAULT_PLAN is a file with a fault a line, FAULT_LOG the file in which those that fired are noted, and FAULT_COUNTS, if
set, a folder for how often each place came. A fault that fired in an earlier process comes again only if it lasts.
"""

import atexit
import importlib.util
import os
import sys
from pathlib import Path


def _kind() -> str:
    words = sys.orig_argv
    for module, kind in (("rftui.training.worker", "worker"), ("rftui.tracking", "tracker"), ("rftui.cli", "front")):
        if module in words:
            return kind
    return "scheduler" if "rftui.scheduler" in words or words[-1].endswith("script.py") else ""


class _Watch:
    """Wraps the functions of a module of the program once it is imported."""

    def __init__(self, injector, but):
        self._injector, self._but, self._busy = injector, but, False

    def find_spec(self, name, path=None, target=None):
        if not name.startswith("rftui.") or self._busy:
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        if spec and spec.loader and hasattr(spec.loader, "exec_module"):
            execute = spec.loader.exec_module

            def then(module):
                execute(module)
                self._injector.functions([name], self._but)

            spec.loader.exec_module = then
        return spec


def _begin(kind: str) -> None:
    from tests.faults.injector import Fault, Injector
    from tests.faults.real import GUARDS, OWN

    log = Path(os.environ["FAULT_LOG"])
    fired = log.read_text().split("\n") if log.exists() else []
    plan = [Fault.parse(line) for line in Path(os.environ["FAULT_PLAN"]).read_text().splitlines()]
    faults = [each for each in plan if each.process == kind and (each.lasting or each.place not in fired)]
    injector = Injector(faults, log)
    injector.operations()
    watch = _Watch(injector, GUARDS)
    find = watch.find_spec
    watch.find_spec = lambda name, path=None, target=None: (
        find(name, path, target) if name.startswith(OWN[kind]) else None
    )
    sys.meta_path.insert(0, watch)
    if folder := os.environ.get("FAULT_COUNTS"):
        file = Path(folder) / f"{kind}-{os.getpid()}.txt"
        lines = injector.counts
        leave = os._exit

        def write():
            file.write_text("\n".join(f"{count} {place}" for place, count in lines.items()))

        atexit.register(write)
        os._exit = lambda code: (write(), leave(code))  # the tracking process ends so


if "FAULT_PLAN" in os.environ and (kind := _kind()):
    _begin(kind)
