"""`mlflow`: MLflow's own UI, on the loopback interface only."""

from __future__ import annotations

import argparse
import getpass
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from urllib.request import ProxyHandler, build_opener

from rftui.errors import DONE, FAILED, UserError
from rftui.tracking.outbox import tracking_uri, uri_fault

_PATIENCE = 120.0
_PORT = 5000
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Ended(Exception):
    """A signal asks for the end."""


def serve(arguments: argparse.Namespace) -> int:
    """Serve the UI until Ctrl-C."""
    home: Path = arguments.home
    uri = tracking_uri(home)
    if fault := uri_fault(uri):
        raise UserError(fault)
    if uri.startswith(("http://", "https://")):
        print(f"the runs are tracked to MLFLOW_TRACKING_URI: open {uri}")
        return DONE
    database = Path(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite:///") and not database.exists():
        old = "; ./mlruns holds runs of an older MLflow: `mlflow migrate-filestore` moves them" if _old_runs() else ""
        raise UserError(f"nothing is tracked in {home} yet: train something first{old}", code=FAILED)
    if os.environ.get("MLFLOW_TRACKING_URI"):
        print(f"MLFLOW_TRACKING_URI is set: showing {uri}")
    if _old_runs():
        print("not shown: ./mlruns, the runs of an older MLflow; `mlflow migrate-filestore` moves them over")
    port = _free_port(arguments.port)
    log = home / ".logs" / "mlflow.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    for number in _SIGNALS:
        signal.signal(number, _end)
    with open(log, "wb") as output:
        # Its own group, so that all of its processes can be ended together.
        server = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--host", "127.0.0.1"]
            + ["--port", str(port), "--workers", "1"],
            cwd=log.parent,
            # Its job runners are ten processes that a UI over training runs does not need.
            env=os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        _wait_for(port, server, log)
        print(f"MLflow is at http://127.0.0.1:{port} until Ctrl-C", flush=True)
        print(
            f"from another machine: ssh -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.gethostname()}",
            flush=True,
        )
        server.wait()
        raise UserError(f"MLflow ended; see {log}", code=FAILED)
    except _Ended:
        return DONE
    finally:
        _end_group(server)


def _end(*_: int | FrameType | None) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the end is under way; a second signal must not cut it short
    raise _Ended


def _end_group(server: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
            server.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
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
