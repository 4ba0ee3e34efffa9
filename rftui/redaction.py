"""What looks like a secret is hidden wherever a config is shown, logged, exported or tracked. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any
from urllib.parse import unquote

_SECRET_NAME = re.compile(r"(^|[._-])(token|key|api_?key|password|passwd|secret|credentials?)$", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"^(hf_|sk-|ghp_|github_pat_|xox[abp]-|AKIA)[A-Za-z0-9_-]{6,}")
_NOT_SECRET = re.compile(r"(pad|eos|bos|unk|sep|cls|mask|image)_token$")
HIDDEN = "[redacted]"


def redact(value: Any, name: str = "") -> Any:
    """`value` with what looks like a secret, by its knob's name or by its own look, replaced by a marker."""
    if isinstance(value, dict):
        return {key: redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(item, name) for item in value]
    if isinstance(value, str) and value:
        if _SECRET_VALUE.match(value) or (_SECRET_NAME.search(name) and not _NOT_SECRET.search(name)):
            return HIDDEN
    return value


_USER_INFO = re.compile(r"(?<=://)[^\s'\"<>]*@")
_QUERY = re.compile(r"(://[^\s'\"<>?]*\?)[^\s'\"<>]+")
_SHORTEST = 4
"""A shorter secret is hidden in addresses only: elsewhere it would be found inside ordinary words."""


def hide_credentials(text: str, secrets: Collection[str] = ()) -> str:
    """`text` without the user, password and query of any address in it, and without each of `secrets`."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, HIDDEN)
    return _QUERY.sub(rf"\1{HIDDEN}", _USER_INFO.sub("", text))


def credentials(uri: str) -> set[str]:
    """What is secret in an address, as it stands there and as it is sent: the password (or the user, where there is
    none: a token) and the values of the query."""
    rest = uri.split("://", 1)[-1]
    user_info = rest.rpartition("@")[0]
    user, _, password = user_info.partition(":")
    query = rest.rpartition("@")[2].partition("?")[2]
    values = [item.partition("=")[2] or item for item in query.split("&")]
    found = {user_info, password or user, *values}
    return {each for text in found for each in (text, unquote(text)) if each}
