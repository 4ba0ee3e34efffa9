"""`run`, `open` and the bare command, without a terminal and on one."""

import os
import pty
import signal
import subprocess
import sys
import time
import types

import pytest

from rftui import launching
from rftui.cli import main
from rftui.commands import launch
from rftui.runs import Run
from rftui.tracking import outbox
from rftui.tracking.ledger import count_unsent

RENDEZVOUS = """
import json, os, pathlib
from rftui.paths import create
from rftui.runs import Run
from rftui.store import Store

def experiment(state):
    made = create(pathlib.Path(os.environ["RFTUI_HOME"]), "exp")
    store = Store.create(made.db)
    store.add_run(Run(0, "a", state=state))
    store.close()
    pathlib.Path(os.environ["RFTUI_RENDEZVOUS"]).write_text(json.dumps({"experiment": str(made.path)}))
"""
"""What an Experiment does, as far as the command line sees it."""


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("print('hello')", 2, "trained nothing"),
        ("x = 1\nraise ValueError('bad [x')", 2, "ValueError: bad [x ({script}:2); the traceback is in "),
        ("class Odd(Exception): pass\nraise Odd", 2, "Odd ({script}:2)"),
        ("print(", 2, "SyntaxError: '(' was never closed ({script}:1)"),
        ("import sys; print('rftui: two', 'rftui: faults', sep='\\n', file=sys.stderr); sys.exit(2)", 2, "faults"),
        (RENDEZVOUS + "experiment('done')", 0, ""),
        (RENDEZVOUS + "experiment('failed')", 1, ""),
        (RENDEZVOUS + "experiment('queued'); raise SystemExit(130)", 130, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGHUP)", 130, ""),
        (RENDEZVOUS + "experiment('queued'); 1 / 0", 2, "ZeroDivisionError"),
        (RENDEZVOUS + "experiment('done'); 1 / 0", 1, "ZeroDivisionError"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 1, "SIGKILL"),
        ("import sys; sys.exit('no rows here')", 2, "script.py ended with exit code 1: no rows here\n"),
        ("import sys; print('usage: x\\nx: error: what is that', file=sys.stderr); sys.exit(2)", 2, "what is that ("),
        ("raise SystemExit(7)", 7, "script.py ended with exit code 7\n"),
        (RENDEZVOUS + "experiment('done'); raise SystemExit('not good enough')", 1, "not good enough"),
        (RENDEZVOUS + "experiment('failed'); raise SystemExit(1)", 1, ""),
    ],
)
def test_the_end_of_a_script(script, rftui, text, code, said):
    path = script(text)
    done = rftui("run", path)
    assert done.returncode == code and said.format(script=path) in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and bool(done.stderr) == bool(said)
    if "traceback is in" in done.stderr:
        with open(done.stderr.split()[-1]) as log:
            assert 'script.py", line ' in log.read()


def test_a_script_gets_its_arguments_and_the_flags(script, rftui):
    path = script("import os, sys; print(sys.argv[1:], os.environ['RFTUI_DEVICES'], sys.stdin.read())")
    done = rftui("run", path, "plain", "--headless", "more", "--devices", "cpu:2", "--", "--epochs", "3", "--", "x")
    assert done.stdout == "['plain', 'more', '--epochs', '3', '--', 'x'] cpu:2 \n"


WAITS = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {SENT})
print('ready', flush=True)
signal.sigwait({SENT, signal.SIGUSR1})
print('again' if signal.sigtimedwait({SENT}, 0.3) else 'once', flush=True)
sys.exit(130)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_script_once(script, sent):
    """A hang-up as what it is: it may come again and again, and that means no more."""
    command = [sys.executable, "-m", "rftui.cli", "run", script(WAITS.replace("SENT", str(int(sent))))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as shell:
        assert shell.stdout.readline() == "ready\n"
        os.killpg(shell.pid, sent)  # as a terminal does
        assert shell.stdout.readline() == "once\n"
        assert shell.wait(20) == 130


def test_a_hang_up_does_not_reach_what_nohup_started(script):
    text = (
        "import os, signal\n"
        "assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN\n"
        "os.kill(os.getppid(), signal.SIGHUP)\n"
        "print('still here', flush=True)\n"
        "raise SystemExit(130)"
    )
    command = ["nohup", sys.executable, "-m", "rftui.cli", "run", script(text)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "still here\n")


def test_open_without_a_terminal_leaves_a_running_experiment_alone(rftui, make):
    made = make(Run(0, "a"))
    with made.lock():
        done = rftui("open", "exp", "--headless")
    assert done.returncode == 1 and f"process {os.getpid()}" in done.stderr


def test_open_without_a_terminal_takes_up_what_is_left(make, monkeypatch):
    started = []
    monkeypatch.setattr(launch, "_plain", lambda argv, title, arguments: started.append(argv) or 0)
    monkeypatch.setattr(outbox, "send_rest", lambda experiment: [])
    make(Run(0, "a", state="done"), Run(0, "b", state="failed"), name="over")
    assert main(["open", "over", "--headless"]) == 1 and not started
    made = make(Run(0, "a"))
    assert main(["open", "exp", "--headless"]) == 0
    assert started == [["-m", "rftui.scheduler", "exp", "--home", str(made.home)]]


def test_open_without_a_terminal_sends_what_the_tracker_still_lacks(told, make, tmp_path):
    made = make(Run(0, "a", state="done"), points=[(1, "loss", 1, 0.5)])
    assert count_unsent(made) == 1
    assert told("--readonly", "open", "exp", "--headless")[0] == 0 and count_unsent(made) == 1
    code, out, err = told("open", "exp", "--headless")
    assert (code, err) == (0, "") and out.startswith("exp: nothing left to train") and out.count("\n") == 1
    assert count_unsent(made) == 0 and (tmp_path / "home" / "mlflow.db").exists()


def test_a_script_knows_the_process_that_it_ends_with(script, rftui):
    path = script("import os; print(os.environ['RFTUI_FRONT'] == str(os.getppid()))")
    assert rftui("run", path, "--headless").stdout == "True\n"


# ---------------------------------------------------------------- on a terminal


@pytest.fixture
def terminal(monkeypatch):
    """A terminal, a viewer that only notes what it was given, and schedulers that are not really started."""
    shown = []
    app = types.ModuleType("rftui.tui.app")
    app.run = lambda launch, **how: shown.append((launch, how["readonly"], how["ascii"])) or 0
    monkeypatch.setitem(sys.modules, "rftui.tui.app", app)
    monkeypatch.setattr("rftui.tui.app", app, raising=False)
    monkeypatch.setattr(launch, "has_terminal", lambda: True)
    monkeypatch.setattr(
        launching,
        "spawn",
        lambda argv, home, *, title, devices=None: types.SimpleNamespace(asked=(argv, title, devices), served=True),
    )
    monkeypatch.setattr(launching, "attach", lambda experiment: types.SimpleNamespace(asked=experiment, served=True))
    return shown


def test_run_and_open_show_the_viewer(script, terminal, make):
    path = script("")
    assert main(["run", path, "x", "--devices", "cpu", "--ascii"]) == 0
    launched, readonly, drawn = terminal.pop()
    assert (launched.asked, readonly, drawn) == (([path, "x"], "script.py", "cpu"), False, True)
    made = make(Run(0, "a"))
    assert main(["open", "exp"]) == 0
    assert terminal.pop()[0].asked[0] == ["-m", "rftui.scheduler", "exp", "--home", str(made.home)]
    with made.lock():
        assert main(["--readonly", "open", "exp"]) == 0
    launched, readonly, drawn = terminal.pop()
    assert (launched.asked, readonly, drawn) == (made, True, False)
    assert main(["--readonly", "open", "exp"]) == 1 and not terminal


@pytest.fixture
def watched(monkeypatch):
    """A terminal, and a viewer that sees nothing before what it watches has ended."""

    def watch(launch, **_):
        until = time.monotonic() + 60
        while launch.exit_status is None:
            assert time.monotonic() < until, "it never ended"
            launch.poll()
        return launch.exit_status

    app = types.ModuleType("rftui.tui.app")
    app.run = watch
    monkeypatch.setitem(sys.modules, "rftui.tui.app", app)
    monkeypatch.setattr("rftui.tui.app", app, raising=False)
    monkeypatch.setattr(launch, "has_terminal", lambda: True)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("", "trained nothing"),
        ("import sys; sys.exit('no rows here')", "script.py ended with exit code 1: no rows here"),
    ],
)
def test_a_script_that_ends_before_its_viewer_comes_is_explained(told, script, watched, text, line):
    code, _, err = told("run", script(text))
    assert code == 2 and line in err and err.count("\n") == 1


def test_a_scheduler_that_ends_before_its_viewer_comes_is_explained(told, make, watched):
    made = make(Run(0, "a", state="stopped"))
    made.db.write_bytes(b"no database" * 100)
    code, _, err = told("open", "exp")
    assert code == 1 and f"{made.db} cannot be read" in err and err.count("\n") == 1


def test_open_starts_a_scheduler_where_the_one_that_runs_has_no_word_any_more(told, make, watched, monkeypatch):
    made = make(Run(0, "a", state="stopped"))
    attach, lock = launching.attach, made.lock()

    def just_ending(experiment):
        lock.close()
        return attach(experiment)

    monkeypatch.setattr(launching, "attach", just_ending)
    made.db.write_bytes(b"no database" * 100)
    code, _, err = told("open", "exp")
    assert code == 1 and f"{made.db} cannot be read" in err, "what the new one says"


def test_a_readonly_viewer_that_comes_too_late_starts_nothing(told, make, watched, monkeypatch):
    made = make(Run(0, "a", state="stopped"))
    attach, lock = launching.attach, made.lock()
    monkeypatch.setattr(launching, "attach", lambda experiment: lock.close() or attach(experiment))
    monkeypatch.setattr(launching, "spawn", pytest.fail)
    code, _, err = told("open", "exp", "--readonly")
    assert code == 1 and "exp is not running, and --readonly starts nothing" in err


@pytest.mark.parametrize(("answer", "code"), [("1", 0), ("exp", 0), ("7", 2), ("", 0)])
def test_the_bare_command_lets_one_pick(terminal, make, monkeypatch, capsys, answer, code):
    made = make(Run(0, "a"))
    monkeypatch.setattr("builtins.input", lambda prompt: answer)
    with made.lock():
        assert main([]) == code
    assert capsys.readouterr().out.splitlines()[1].startswith(" 1 exp")
    assert [launched.asked for launched, _, _ in terminal] == ([made] if answer and not code else [])


@pytest.mark.parametrize(("term", "there"), [("xterm-256color", True), ("foo", True), ("dumb", False), ("", False)])
def test_what_counts_as_a_terminal(on_a_terminal, term, there):
    assert on_a_terminal(TERM=term) == there


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_no_screen_is_drawn_into_a_file(on_a_terminal, stream):
    with open(os.devnull, "r+") as elsewhere:
        assert not on_a_terminal(**{stream: elsewhere})


@pytest.fixture
def on_a_terminal():
    """What `has_terminal` says on a terminal, but for a stream or a variable that is given."""
    master, slave = pty.openpty()

    def ask(TERM="xterm-256color", **streams):
        code = "from rftui.commands.text import has_terminal; import sys; sys.exit(has_terminal())"
        streams = {"stdin": slave, "stdout": slave, "stderr": slave, **streams}
        return bool(
            subprocess.run([sys.executable, "-c", code], env=os.environ | {"TERM": TERM}, **streams).returncode
        )

    yield ask
    os.close(master)
    os.close(slave)


def test_with_stderr_in_a_file_the_lines_are_plain(script, tmp_path):
    """As in `rftui run script.py 2>errors.txt`: Textual would draw into the file."""
    path = script("print('a plain line')")
    master, slave = pty.openpty()
    with (tmp_path / "errors.txt").open("w") as errors:
        command = [sys.executable, "-m", "rftui.cli", "run", path]
        done = subprocess.run(command, stdin=slave, stdout=slave, stderr=errors, timeout=120)
    assert os.read(master, 65536) == b"a plain line\r\n"
    os.close(master)
    os.close(slave)
    said = (tmp_path / "errors.txt").read_text()
    assert done.returncode == 2 and said.startswith("rftui: script.py trained nothing") and "\x1b" not in said
