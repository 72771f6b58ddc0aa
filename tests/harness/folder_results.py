"""What came of asking for each thing in a models folder: a row a thing, kept for `make
prove-table`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.harness import kept_rows
from tests.harness.nodes import ROOT

RESULTS = ROOT / "prove-results" / "folders.jsonl"
HEADS = (
    "thing", "reason", "ls", "doctor", "show", "load", "run", "chat completions", "responses",
    "anthropic", "ollama chat", "embeddings", "ollama embed",
)  # fmt: skip


def keep(rows: Sequence[dict[str, str]], path: Path = RESULTS) -> None:
    """Append rows to the results; a thing's later row stands for its earlier ones."""
    kept_rows.keep(path, rows)


def latest(path: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the last row of each thing that was kept; none where there is no file."""
    return kept_rows.latest(path, "thing")


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return a row as words, in the order of `HEADS`."""
    return tuple(str(row.get(head, "-") or "-").removeprefix("ends with ")[:60] for head in HEADS)
