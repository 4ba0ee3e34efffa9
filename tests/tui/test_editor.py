"""A text in the user's own editor, as a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import nullcontext

import pytest
from textual.app import App

from rftui.errors import UserError
from rftui.tui.editor import edit


@pytest.fixture
def app(monkeypatch):
    monkeypatch.setattr(App, "suspend", lambda app: nullcontext())
    return App()


def script(monkeypatch, tmp_path, text):
    path = tmp_path / "an editor.sh"
    path.write_text(text)
    monkeypatch.setenv("EDITOR", f"sh '{path}' --wait")
    monkeypatch.delenv("VISUAL", raising=False)


def test_the_text_that_was_written(app, monkeypatch, tmp_path):
    script(monkeypatch, tmp_path, 'test "$1" = --wait && echo "$2" > seen && echo more >> "$2"\n')
    monkeypatch.chdir(tmp_path)
    assert edit(app, "é\n", ".yaml") == "é\nmore\n"
    path = (tmp_path / "seen").read_text().strip()
    assert path.endswith(".yaml") and not os.path.exists(path)


def test_visual_comes_before_editor_and_vi_before_nano(app, monkeypatch, tmp_path):
    script(monkeypatch, tmp_path, "exit 1\n")
    monkeypatch.setenv("VISUAL", "true")
    assert edit(app, "x", ".txt") == "x"
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("nano", "vi"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} >$1\n")
        (tmp_path / name).chmod(0o755)
        assert edit(app, "x", ".txt") == f"{name}\n"


def test_an_interrupt_is_the_editors_alone(app, monkeypatch, tmp_path):
    """Ctrl-C reaches all processes of the terminal."""
    script(monkeypatch, tmp_path, f"kill -INT {os.getpid()}; echo more >>$2\n")

    async def main():
        came = []
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, came.append, "SIGINT")
        assert edit(app, "", ".txt") == "more\n"
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGINT)
        while not came:
            await asyncio.sleep(0)
        assert came == ["SIGINT"], "the one that came after the editor had ended"

    asyncio.run(main())


def test_a_sigterm_acts_when_the_editor_has_ended(app, monkeypatch, tmp_path):
    script(monkeypatch, tmp_path, f"kill -TERM {os.getpid()}; echo more >>$2\n")

    async def main():
        came = []
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, came.append, "SIGTERM")
        assert edit(app, "", ".txt") == "more\n"
        while not came:
            await asyncio.sleep(0)

    asyncio.run(main())


def test_an_editor_that_cannot_be_started(app, monkeypatch):
    monkeypatch.setenv("VISUAL", "/no/such/editor")
    with pytest.raises(UserError, match="cannot be started"):
        edit(app, "", ".txt")


def test_an_editor_that_removes_the_file(app, monkeypatch):
    monkeypatch.setenv("VISUAL", "rm")
    with pytest.raises(UserError, match="rm left no file to read"):
        edit(app, "", ".txt")
