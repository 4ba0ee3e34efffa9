"""The terminal that the viewer runs on."""

from __future__ import annotations

import os
import subprocess
import sys

import pexpect
import pytest

from rftui.tui.terminal import forget_stale_size

STALE = {"COLUMNS": "60", "LINES": "15"}
SIZE = """
import os, shutil
from rftui.tui.terminal import forget_stale_size
forget_stale_size(os.environ)
print("SIZE", *shutil.get_terminal_size())
"""


def test_the_real_size_of_the_terminal_wins_over_what_is_exported() -> None:
    child = pexpect.spawn(sys.executable, ["-c", SIZE], env=os.environ | STALE, dimensions=(40, 120), encoding="utf-8")
    child.expect("SIZE 120 40")


def test_a_size_that_cannot_be_known_is_as_it_is_exported() -> None:
    done = subprocess.run([sys.executable, "-c", SIZE], env=os.environ | STALE, capture_output=True, text=True)
    assert "SIZE 60 15" in done.stdout


def test_the_size_is_forgotten_before_the_screen_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda number: os.terminal_size((120, 40)))
    environment = dict(STALE, HOME="/")
    forget_stale_size(environment)
    assert environment == {"HOME": "/"}
