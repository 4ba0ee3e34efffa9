"""What looks like a secret is hidden wherever a config is shown, logged, exported or tracked. Pure."""

from __future__ import annotations

import re
from typing import Any

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
