"""Where MLflow keeps runs, as its URIs have it. Imports no MLflow."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from rftui.redaction import hide_credentials

VARIABLE = "MLFLOW_TRACKING_URI"
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # no sockets but those to a server that the user named
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # and no long waits inside MLflow: its caller waits itself
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""What MLflow is to find in the environment when it is imported, unless the user set it."""

_SQLITE = "sqlite:///"


def address(home: Path) -> tuple[str, Path]:
    """$MLFLOW_TRACKING_URI as it is in this directory, else the database of the home.

    That one is named relative to the home: `#`, `?`, `%` and blanks are syntax in a database's URI, read differently
    by versions of SQLAlchemy, and a home may be called anything.
    """
    given = os.environ.get(VARIABLE)
    if not given:
        return f"{_SQLITE}mlflow.db", home
    relative = "://" not in given or re.match(rf"{_SQLITE}[^/]", given)
    return given, Path.cwd() if relative else home


def fault(uri: str) -> str | None:
    """Why MLflow cannot track to `uri`, in a line that says what to do; None where it can."""
    if os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() in ("true", "1"):
        return None
    if "://" in uri and not uri.startswith("file:"):
        return None
    return (
        f"{VARIABLE}={uri.rpartition('@')[2]} names a folder, and MLflow no longer keeps runs in folders: unset it, or"
        " set it to a database (sqlite:///mlflow.db) or a server; `mlflow migrate-filestore` moves old runs over"
    )


def database(uri: str, cwd: Path) -> Path | None:
    """The file that holds the runs; None where they are not in an SQLite file."""
    return cwd / uri.removeprefix(_SQLITE).partition("?")[0] if uri.startswith(_SQLITE) else None


def place(uri: str, cwd: Path) -> str:
    """The host, or the file; without user, password or query."""
    if file := database(uri, cwd):
        return str(file)
    plain = hide_credentials(uri).rpartition("@")[2].partition("?")[0]
    try:
        return urlsplit(plain).netloc or plain
    except ValueError:
        return re.sub(r"^.*://", "", plain)


def served(uri: str) -> bool:
    """Whether a server has the runs, which keeps artifacts too; a bare database does not."""
    return uri.startswith(("http:", "https:", "databricks"))
