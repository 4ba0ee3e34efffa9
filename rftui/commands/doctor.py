"""`doctor`: what this machine has, what is missing, and what to do."""

from __future__ import annotations

import argparse
import json
import locale
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rftui.errors import DONE, FAILED
from rftui.formatting import clean, format_bytes
from rftui.scheduler.environment import cores
from rftui.tracking.trackers import target

_LEAST_DISK = 2e9

_PROBE = """
import json, torch
devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps({"cuda": torch.version.cuda, "threads": torch.get_num_threads(),
    "devices": [[d.name, d.total_memory] for d in devices]}))
"""


@dataclass
class Finding:
    """`remedy` is what must be done; a `hint` only says what would be better."""

    topic: str
    text: str
    remedy: str = ""
    hint: str = ""


def doctor(arguments: argparse.Namespace) -> int:
    """Print the findings; 1 if something must be fixed."""
    ill = False
    for finding in _findings(arguments.home):
        mark = "FIX" if finding.remedy else "note" if finding.hint else "ok"
        print(f"{mark:4}  {finding.topic:9}  {finding.text}", flush=True)
        if advice := finding.remedy or finding.hint:
            print(f"{'':17}-> {advice}", flush=True)
        ill = ill or bool(finding.remedy)
    print("problems found" if ill else "no problems found")
    return FAILED if ill else DONE


def _findings(home: Path) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    old = sys.version_info < (3, 11)
    yield Finding("python", f"{version} at {sys.executable}", remedy="rftui needs Python 3.11 or newer" if old else "")
    yield from _packages()
    yield from _torch()
    usable, why = cores()
    yield Finding("cores", f"{usable} of {os.cpu_count()}" + (f" ({why})" if why else ""))
    yield Finding("memory", format_bytes(_memory()))
    yield from _home(home)
    tracked = target(home)
    yield Finding("tracking", str(tracked), remedy=tracked.fault or "")
    yield from _terminal()


def _packages() -> Iterator[Finding]:
    from packaging.requirements import Requirement

    for line in metadata.requires("rftui") or []:
        wanted = Requirement(line)
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        remedy = f"{sys.executable} -m pip install '{wanted.name}{wanted.specifier}'"
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            yield Finding("package", f"{wanted.name} is missing", remedy=remedy)
            continue
        fits = wanted.specifier.contains(version, prereleases=True)
        yield Finding("package", f"{wanted.name} {version}", remedy="" if fits else remedy)


def _torch() -> Iterator[Finding]:
    """In a process of its own: torch takes seconds to load, and may not load at all."""
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, errors="replace")
    if probe.returncode:
        last = (probe.stderr.strip().splitlines() or ["it was killed"])[-1]
        yield Finding("device", f"torch does not load: {clean(last, 200)}", remedy="reinstall torch")
        return
    found = json.loads(probe.stdout.splitlines()[-1])
    for name, memory in found["devices"]:
        yield Finding("device", f"{name}, {format_bytes(memory)} (CUDA {found['cuda']})")
    if not found["devices"]:
        hint = ""
        if shutil.which("nvidia-smi"):
            hint = "nvidia-smi is installed, but torch sees no GPU: install a torch build for this driver's CUDA"
        yield Finding("device", f"CPU only, {found['threads']} torch threads", hint=hint)


def _memory() -> int:
    """Bytes of memory, or the container's limit where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return total


def _home(home: Path) -> Iterator[Finding]:
    folder = next(path for path in (home, *home.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        remedy = "choose another home with --home DIR or RFTUI_HOME"
        yield Finding("home", f"{home} cannot be written: {error.strerror}", remedy=remedy)
        return
    free = shutil.disk_usage(folder).free
    remedy = "free some space, or choose another home with --home DIR" if free < _LEAST_DISK else ""
    yield Finding("home", f"{home}, {format_bytes(free)} free", remedy=remedy)


def _terminal() -> Iterator[Finding]:
    term = os.environ.get("TERM", "")
    size = shutil.get_terminal_size()
    encoding = locale.getpreferredencoding(False)
    hints = []
    if not sys.stdout.isatty():
        hints.append("stdout is not a terminal: rftui run prints plain lines here")
    elif term in ("", "dumb"):
        hints.append("set TERM, for example to xterm-256color: without it rftui run prints plain lines")
    elif size.columns < 80 or size.lines < 24:
        hints.append("make it 80 x 24 or larger to see everything")
    if encoding.lower().replace("-", "") != "utf8":
        hints.append("set LANG to a UTF-8 locale such as C.UTF-8, or use --ascii")
    text = f"TERM={term or '(unset)'}, {_colours(term)} colours, {size.columns} x {size.lines}, {encoding}"
    yield Finding("terminal", text, hint="; ".join(hints))
    tmux = shutil.which("tmux")
    inside = "in use" if os.environ.get("TMUX") else "not in use"
    hint = "" if tmux else "not needed: training continues when the terminal closes, and rftui open reattaches"
    yield Finding("tmux", f"{tmux} ({inside})" if tmux else "not installed", hint=hint)


def _colours(term: str) -> str:
    import curses

    if os.environ.get("NO_COLOR"):
        return "no (NO_COLOR)"
    if os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        return "16 million"
    try:
        curses.setupterm(term or "dumb", os.open(os.devnull, os.O_WRONLY))
        return str(max(0, curses.tigetnum("colors"))) if term else "no"
    except curses.error:
        return "an unknown number of"
