"""`mlflow`: MLflow's own UI, on the loopback interface only."""

from __future__ import annotations

import argparse
import getpass
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import IO
from urllib.request import ProxyHandler, build_opener

from rftui.errors import DONE, FAILED, UserError
from rftui.redaction import credentials, hide_credentials
from rftui.tracking import mlflow_uri

_PATIENCE = 120.0
_PORT = 5000
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Ended(Exception):
    """A signal asks for the end."""


def serve(arguments: argparse.Namespace) -> int:
    """Serve the UI until Ctrl-C."""
    home: Path = arguments.home
    uri, cwd = mlflow_uri.address(home)
    place = mlflow_uri.place(uri, cwd)
    if fault := mlflow_uri.fault(uri):
        raise UserError(fault)
    if uri.startswith(("http://", "https://")):
        print(f"the runs are tracked to a server ({mlflow_uri.VARIABLE}): open {hide_credentials(uri)}")
        return DONE
    database = mlflow_uri.database(uri, cwd)
    if database and not database.exists():
        old = "; ./mlruns holds runs of an older MLflow: `mlflow migrate-filestore` moves them" if _old_runs() else ""
        raise UserError(f"nothing is tracked in {home} yet: train something first{old}", code=FAILED)
    if os.environ.get(mlflow_uri.VARIABLE):
        print(f"{mlflow_uri.VARIABLE} is set: showing {place}")
    if _old_runs():
        print("not shown: ./mlruns, the runs of an older MLflow; `mlflow migrate-filestore` moves them over")
    port = _free_port(arguments.port)
    log = home / ".logs" / "mlflow.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    print("Starting MLflow's UI... (takes up to a minute)", flush=True)
    for number in _SIGNALS:
        signal.signal(number, _end)
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as output:
        # Its own group, so that all of its processes can be ended together.
        server = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"],
            cwd=cwd,
            env=os.environ
            | {
                "MLFLOW_BACKEND_STORE_URI": uri,  # every user of the machine can read a command line
                "MLFLOW_DISABLE_TELEMETRY": "true",
                # Its job runners are ten processes that a UI over training runs does not need.
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
        )
        threading.Thread(target=_copy, args=(server.stdout, os.dup(output.fileno()), uri), daemon=True).start()
    try:
        _wait_for(port, server, log)
        print(f"MLflow is at http://127.0.0.1:{port} until Ctrl-C", flush=True)
        print(
            f"from another machine: ssh -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.gethostname()}",
            flush=True,
        )
        print(
            "It asks for no password: every user of this machine can open it, and change runs, until you end it",
            flush=True,
        )
        server.wait()
        raise UserError(f"MLflow ended; see {log}", code=FAILED)
    except _Ended:
        return DONE
    finally:
        _end_group(server)


def _copy(lines: IO[str], log: int, uri: str) -> None:
    """What the server prints, without the credentials of its database."""
    with open(log, "w") as output:
        for line in lines:
            output.write(hide_credentials(line, credentials(uri)))
            output.flush()


def _end(*_: int | FrameType | None) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the end is under way; a second signal must not cut it short
    raise _Ended


def _end_group(server: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
            server.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def _wait_for(port: int, server: subprocess.Popen[str], log: Path) -> None:
    opener = build_opener(ProxyHandler({}))
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        if server.poll() is not None:
            raise UserError(f"MLflow did not start; see {log}", code=FAILED)
        try:
            opener.open(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise UserError(f"MLflow does not answer on port {port}; see {log}", code=FAILED)


def _free_port(wanted: int | None) -> int:
    """The port asked for; else 5000 or, where that is taken, any."""
    for port in (wanted,) if wanted is not None else (_PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
            except (OSError, OverflowError):
                continue
    raise UserError(f"port {wanted} cannot be used: name another with --port", code=FAILED)


def _old_runs() -> bool:
    """Whether an older MLflow kept runs in ./mlruns."""
    return any(Path("mlruns").glob("*/meta.yaml"))
