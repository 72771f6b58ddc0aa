"""Talks to the disk: the chat template in a file of its own, as image processors keep it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

SIDECAR = "chat_template.json"


def sidecar_template(path: Path) -> str | None:
    """Return the chat template in the folder's `chat_template.json`; None where there is none, or
    the folder has one where tokenizers keep theirs."""
    if (path / "chat_template.jinja").is_file() or _told(
        path / "tokenizer_config.json"
    ) is not None:
        return None
    found = _told(path / SIDECAR)
    return found if isinstance(found, str) else None


def _told(file: Path) -> object:
    if not file.is_file():
        return None
    found: Any = json.loads(file.read_text(encoding="utf-8"))
    return cast(dict[str, object], found).get("chat_template") if isinstance(found, dict) else None
