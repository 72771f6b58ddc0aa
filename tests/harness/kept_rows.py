"""Rows of results, one JSON object a line, that tests keep for `make prove-table` and figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def keep(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a file of results."""
    path.parent.mkdir(exist_ok=True)
    with open(path, "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def latest(path: Path, key: str) -> list[dict[str, Any]]:
    """Return the last row of each value of `key` that was kept; none where there is no file."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return list({row[key]: row for row in rows}.values())
