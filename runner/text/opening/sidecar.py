"""Talks to the disk: reads the chat template in a separate file, as image processors store it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

SIDECAR = "chat_template.json"


def sidecar_template(path: Path) -> str | None:
    """Return the chat template in the folder's `chat_template.json`. Return None if there is none,
    or if `chat_template.jinja` or `tokenizer_config.json` has a template."""
    if (path / "chat_template.jinja").is_file() or _template_in(
        path / "tokenizer_config.json"
    ) is not None:
        return None
    template = _template_in(path / SIDECAR)
    return template if isinstance(template, str) else None


def _template_in(file: Path) -> object:
    if not file.is_file():
        return None
    content: Any = json.loads(file.read_text(encoding="utf-8"))
    return (
        cast(dict[str, object], content).get("chat_template") if isinstance(content, dict) else None
    )
