"""An experiments' home of its own for each test, and ways to call the command in it."""

import signal
import subprocess
import sys

import pytest

from rftui.cli import main
from rftui.paths import create
from rftui.store import Store


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("RFTUI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def make(tmp_path):
    """Write an experiment with these runs."""

    def experiment(*runs, name="exp", points=()):
        made = create(tmp_path / "home", name)
        store = Store.create(made.db)
        for run in runs:
            store.add_run(run)
        store.add_points(points)
        store.close()
        return made

    return experiment


@pytest.fixture
def rftui():
    """The command in a process of its own, without a terminal."""

    def run(*arguments, **how):
        how.setdefault("stdin", subprocess.DEVNULL)
        command = [sys.executable, "-m", "rftui.cli", *arguments]
        return subprocess.run(command, capture_output=True, text=True, **how)

    return run


@pytest.fixture
def told(capsys):
    """Exit code, stdout and stderr of the command, called in this process."""

    def call(*arguments):
        code = main(list(arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def script(tmp_path):
    """Write a script; its path."""

    def write(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return str(path)

    return write
