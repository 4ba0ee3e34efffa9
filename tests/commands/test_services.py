"""`init`, `mlflow` and `doctor`."""

import signal
import sqlite3
import subprocess
import sys
from urllib.request import urlopen

import psutil

from rftui.commands import mlflow_ui


def test_init_writes_the_samples_and_overwrites_nothing(told, tmp_path):
    code, out, _ = told("init", "mine")
    assert code == 0 and "rftui run mine/" in out
    sample = tmp_path / "mine" / "sft_assistant.py"
    assert "run_fit" in sample.read_text() and not list(tmp_path.rglob("__pycache__"))
    sample.write_text("my own")
    (tmp_path / "mine" / "qa_pairs.py").unlink()
    code, out, _ = told("init", "mine")
    assert code == 0 and "1 files" in out and f"kept {sample.relative_to(tmp_path)}" in out
    assert sample.read_text() == "my own" and (tmp_path / "mine" / "qa_pairs.py").exists()
    assert told("init", str(sample))[0] == 2


def test_mlflow_says_what_it_cannot_show(told, tmp_path, monkeypatch):
    code, _, err = told("mlflow")
    assert code == 1 and "nothing is tracked" in err and "mlruns" not in err
    (tmp_path / "mlruns" / "0").mkdir(parents=True)
    (tmp_path / "mlruns" / "0" / "meta.yaml").touch()
    assert "migrate-filestore" in told("mlflow")[2]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    assert told("mlflow")[0] == 2
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    code, out, _ = told("mlflow")
    assert code == 0 and "https://mlflow.example" in out


def test_a_port_that_is_taken(told, tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mlflow.db").touch()
    with mlflow_ui.socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        code, _, err = told("mlflow", "--port", str(taken))
        assert code == 1 and f"port {taken}" in err
        monkeypatch.setattr(mlflow_ui, "_PORT", taken)
        assert mlflow_ui._free_port(None) != taken


def test_mlflow_serves_on_loopback_until_ctrl_c(tmp_path, monkeypatch):
    """Also over a home whose name is syntax in the URI of a database."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    home = tmp_path / "lr 5%41 #1 is it? yes"
    home.mkdir()
    (home / "mlflow.db").touch()
    command = [sys.executable, "-m", "rftui.cli", "mlflow", "--port", "0", "--home", str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as shell:
        assert "takes up to a minute" in shell.stdout.readline()
        address = shell.stdout.readline().split()[3]
        [server] = psutil.Process(shell.pid).children()
        port = address.rpartition(":")[2]
        assert f"ssh -L {port}:127.0.0.1:{port} " in shell.stdout.readline()
        assert "no password" in shell.stdout.readline()
        assert "mlflow.db" not in " ".join(server.cmdline()), "any user can read it"
        served = psutil.Process(shell.pid).children(recursive=True)
        with urlopen(address) as page:
            assert b"MLflow" in page.read()
        listening = [each.laddr.ip for process in served for each in process.net_connections("inet")]
        assert set(listening) == {"127.0.0.1"}
        shell.send_signal(signal.SIGINT)
        shell.send_signal(signal.SIGINT)
        assert shell.wait(30) == 0
    assert not psutil.wait_procs(served, 10)[1]
    assert [path.name for path in tmp_path.iterdir()] == [home.name]
    assert {path.name.partition("-")[0] for path in home.iterdir()} == {".logs", "mlflow.db"}
    with sqlite3.connect(home / "mlflow.db") as db:
        assert db.execute("SELECT count(*) FROM experiments").fetchone() == (1,)


def test_doctor_tells_what_there_is_and_what_to_mend(told, monkeypatch):
    code, out, _ = told("doctor")
    assert code == 0 and "no problems found" in out
    assert {"python", "package", "device", "cores", "memory", "home", "terminal", "tmux"} <= {
        line.split()[1] for line in out.splitlines() if not line.startswith(" ")
    }
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    monkeypatch.setattr("rftui.commands.doctor._PROBE", "raise ImportError('libcudart.so.12: no such file')")
    code, out, _ = told("doctor", "--home", "/dev/null/home")
    assert code == 1 and "--home DIR" in out and "libcudart" in out and "migrate-filestore" in out
    assert out.count("FIX") == 3
