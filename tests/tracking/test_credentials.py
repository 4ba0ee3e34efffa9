"""A tracking URI's user, password and tokens are written nowhere."""

import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rftui.cli import main
from rftui.tracking.outbox import start

PASSWORD = "s3cr3t@Pass"
SECRETS = re.compile(rb"s3cr3t|Pass\b|s3cr3t%40Pass|T0KEN|somebody")


class Failing(BaseHTTPRequestHandler):
    """Answers 500 with the request in it."""

    def do_GET(self):
        body = f"cannot serve {self.path} for {self.headers}".encode()
        self.send_response(500)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_): ...


@contextmanager
def failing_server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def until_it_fails(outbox):
    """What it says, until it has said that it fails, or has ended."""
    notices = []
    while not any("is sent again later" in notice for notice in notices) and not outbox.close(0.2):
        notices += outbox.notices()
    return notices + outbox.notices()


@pytest.mark.parametrize("path", ["", "/?token=T0KENT0KEN"])
def test_of_a_server_that_fails_only_the_host_is_told(database, monkeypatch, path):
    database.run(1, state="running")
    database.points(1, "loss", [1, 2])
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with failing_server() as host:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://somebody:s3cr3t%40Pass@{host}{path}")
        outbox = start(database.experiment)
        notices = until_it_fails(outbox)
        outbox.process.kill()
        outbox.process.wait()
    [notice] = notices
    assert notice.startswith(f"MLflow at {host} ")
    files = [path for path in database.experiment.path.rglob("*") if path.is_file()]
    assert database.experiment.logs / "tracking.txt" in files
    written = {path.name: path.read_bytes() for path in files} | {"told": notice.encode()}
    assert b"Traceback" in written["tracking.txt"], "it logs what failed"
    assert {name for name, content in written.items() if SECRETS.search(content)} == set()


@pytest.mark.parametrize(
    "uri",
    [
        f"https://somebody:{PASSWORD}@mlflow.example/?token=T0KENT0KEN",
        f"postgresql://somebody:{PASSWORD}@db.example/runs?password=T0KENT0KEN",
        f"file://somebody:{PASSWORD}@mlflow.example/runs",
        f"//somebody:{PASSWORD}@mlflow.example/runs",
    ],
)
def test_doctor_and_mlflow_name_the_host_only(tmp_path, monkeypatch, capsys, uri):
    monkeypatch.setattr("rftui.commands.doctor._PROBE", "raise ImportError")
    monkeypatch.setattr("rftui.commands.mlflow_ui._PATIENCE", 0.0)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    home = tmp_path / "home"
    home.mkdir()
    for command in ("doctor", "mlflow"):
        main([command, "--home", str(home)])
    told = capsys.readouterr()
    assert "example" in told.out
    assert not SECRETS.search((told.out + told.err).encode())
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and SECRETS.search(path.read_bytes())]
