"""The Vector configuration of docs/operations/diagnostics.md fits the log files that a node writes.

Vector itself is not run.
"""

from __future__ import annotations

import json
import re
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from conf.settings import load_settings
from tests.harness.nodes import ROOT, Node

pytestmark = pytest.mark.nodes
PAGE = ROOT / "docs" / "operations" / "diagnostics.md"
SERVICES = {"bus", "gateway", "master", "telemetry", "worker"}


def recipe() -> dict[str, Any]:
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return tomllib.loads(text)


def test_each_part_of_the_recipe_reads_from_the_part_before_it() -> None:
    found = recipe()
    (source,), (transform,), (sink,) = (found[name] for name in ("sources", "transforms", "sinks"))
    assert found["transforms"][transform]["inputs"] == [source]
    assert found["sinks"][sink]["inputs"] == [transform]


def test_the_recipe_reads_every_log_file_and_each_json_line_has_the_fields_of_the_page(
    shared_node: Node,
) -> None:
    assert shared_node.chat("Hi.", max_tokens=2).status_code == 200
    (pattern,) = recipe()["sources"]["shoal"]["include"]
    files = sorted(load_settings(home=shared_node.home).paths.logs.glob(Path(pattern).name))
    assert {path.stem for path in files} >= SERVICES
    for path in files:
        lines = path.read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        assert found or path.stem not in SERVICES, path
        for line in found:
            assert {"time", "level", "message", "node", "process"} <= line.keys(), line
            assert datetime.fromisoformat(line["time"]).tzinfo is not None
