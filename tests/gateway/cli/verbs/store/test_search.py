"""`shoal search` against a node that has asked a hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.app import app
from tests.harness.node_server import serving

MODEL = {
    "model": "mlx-community/Qwen3-0.6B-4bit", "for_mlx": True, "family": "qwen3", "makes": "text",
    "quantization": "4-bit", "size_bytes": 335_000_000, "parameters": 600_000_000,
    "downloads": 12_345, "likes": 3, "gated": False, "changed_at": "2025-05-01", "here": ["desk"],
    "quantizations": [],
}  # fmt: skip
OTHER = {
    **MODEL, "model": "org/other", "for_mlx": False, "family": None, "quantization": None,
    "size_bytes": None, "parameters": None, "downloads": 0, "gated": True, "here": [],
}  # fmt: skip


def searched(tmp_path: Path, answer: Any, *words: str) -> tuple[Result, list[str]]:
    """Type it; what it said, and what the node was asked."""
    asked: list[str] = []

    def node(_method: str, path: str, _body: dict[str, Any]) -> Any:
        asked.append(path)
        return answer

    with serving(node) as url:
        line = ["--home", str(tmp_path), "--url", url, "search", *words]
        return CliRunner().invoke(app, line), asked


def test_what_was_found_is_a_table_with_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    answer = 200, {
        "query": "qwen3 0.6b", "author": "", "hub": "https://hub", "left_out": 4,
        "models": [MODEL, OTHER],
    }  # fmt: skip
    found, asked = searched(tmp_path, answer, "qwen3", "0.6b", "--limit", "5", "--author", "org")
    assert found.exit_code == 0, found.stderr
    assert asked == ["/models/search?query=qwen3+0.6b&author=org&limit=5"]
    head, first, second = found.stdout.splitlines()
    assert head.split()[:3] == ["model", "for", "family"]
    for word in ("mlx", "qwen3", "600.0M", "4-bit", "335.0 MB", "12.3k", "desk"):
        assert word in first, found.stdout
    assert second.split() == ["org/other", "any", "-", "text", "-", "-", "-", "-", "-"]
    for word in ("4 more matches", "org/other is gated", "`shoal pull org/other`"):
        assert word in found.stderr, found.stderr
    in_gguf = {**OTHER, "gated": False, "quantizations": ["Q4_K_M", "Q8_0"]}
    listed, _ = searched(tmp_path, (200, {**answer[1], "models": [in_gguf]}), "qwen3")
    assert listed.stdout.splitlines()[1].split()[1] == "gguf"
    assert "org/other has Q4_K_M, Q8_0: pull one as org/other:QUANTISATION" in listed.stderr
    told, _ = searched(tmp_path, answer, "qwen3", "--json")
    assert json.loads(told.stdout)["models"] == [MODEL, OTHER]


def test_nothing_found_and_what_the_hub_refuses_are_said(tmp_path: Path) -> None:
    none: dict[str, Any] = {"query": "x", "author": "", "left_out": 0, "models": []}
    nothing = 200, {**none, "hub": "https://hub"}
    found, _ = searched(tmp_path, nothing, "x")
    assert (
        found.exit_code == 0
        and ("https://hub has no matching model that runs here") in found.stdout
    )
    for status, code, exit_code, words in (
        (429, "hub_rate_limited", 5, "wait, then try again"),
        (502, "hub_unreachable", 1, "this node can reach the model hub"),
        (502, "hub_unauthorized", 1, "then try again"),
        (409, "offline", 5, "offline = false"),
    ):
        refused, _ = searched(tmp_path, (status, {"error": {"message": "m", "code": code}}), "x")
        assert refused.exit_code == exit_code and words in refused.stderr, refused.stderr
