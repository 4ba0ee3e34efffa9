"""Wrong usage, encodings, and readers that leave."""

import json
import os
import subprocess
import sys

import pytest

from rftui.runs import Run


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["opne"], "did you mean 'open'"),
        (["show"], "NAME"),
        (["ls", "--jsno"], "--jsno"),
        (["run", "missing.py"], "missing.py"),
        (["run", "."], "directory"),
        (["run", "script.py", "--epochs", "3"], "options after --"),
        (["run", "script.py", "--devices", "gpu"], "cpu:N"),
        (["script.py"], "rftui run script.py"),
        (["clone", "exp", "1", "--set", "lr"], "KNOB=VALUE"),
        (["--readonly", "stop", "exp", "1"], "--readonly"),
        (["delete", "exp", "1"], "--yes"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(script, told, make, monkeypatch, arguments, text):
    make(Run(0, "a", state="waiting"))
    script("")
    monkeypatch.setattr(sys, "stdin", open(os.devnull))
    code, out, err = told(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1) and text in err


def test_flags_may_stand_before_or_after_the_command(told, make, tmp_path, monkeypatch):
    make(Run(0, "a"))
    monkeypatch.delenv("RFTUI_HOME")
    home = str(tmp_path / "home")
    for arguments in (["--home", home, "ls", "--json"], ["ls", "--home", home, "--json"]):
        assert len(json.loads(told(*arguments)[1])) == 1


def test_output_survives_any_encoding_and_a_reader_that_leaves(rftui, make):
    make(Run(0, "naïve \U0001f600"), name="é \U0001f600")
    ascii_only = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for arguments in (["ls"], ["ls", "--json"], ["show", "é \U0001f600"], ["show", "é"]):
        done = rftui(*arguments, env=ascii_only)
        assert "Traceback" not in done.stderr and done.returncode == ("é" == arguments[-1])
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "rftui.cli", "ls"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_nobody_foresaw_leaves_a_traceback_in_a_file_only(told, monkeypatch):
    monkeypatch.setattr("rftui.paths.all_in", lambda home: 1 / 0)
    code, _, err = told("ls")
    assert code == 1 and err.count("\n") == 1
    with open(err.split()[-1]) as log:
        assert "ZeroDivisionError" in log.read()
    os.remove(err.split()[-1])


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["stop", "nowhere", "1", "--json"], 1, "no experiment 'nowhere'"),
        (["show", "nowhere", "--json"], 1, "no experiment 'nowhere'"),
        (["clone", "exp", "1", "--set", "lr", "--json"], 2, "--set lr: write it as KNOB=VALUE"),
        (["stop", "exp", "7", "--json"], 1, "no run '7'"),
        (["stop", "exp", "1", "--json"], 1, "already done"),
        (["--readonly", "stop", "exp", "1", "--json"], 2, "--readonly"),
        (["stop", "exp", "--json"], 2, "required: RUN"),
        (["rules", "exp", "on", "nothing", "--json"], 2, "nothing"),
    ],
)
def test_with_json_a_fault_found_before_anything_is_asked_is_json_too(told, make, arguments, code, text):
    make(Run(0, "a", state="done"))
    status, out, err = told(*arguments)
    said = [json.loads(line) for line in out.splitlines()]
    assert (status, err) == (code, "") and len(said) == 1
    assert said[0].keys() == {"ok", "text"} and said[0]["ok"] is False and text in said[0]["text"]


def test_a_scripts_own_json_option_changes_no_fault(told):
    code, out, err = told("run", "nothing.py", "--", "--json")
    assert (code, out) == (2, "") and err.startswith("rftui: no script nothing.py")
