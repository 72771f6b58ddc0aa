"""A client that is generated from a node's OpenAPI document asks that node, and reads its answers.

The generator lives in an environment of its own (`tests/clients/environments/openapi.in`).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.harness.client_environments import Unavailable, client_python
from tests.harness.missing import missing
from tests.harness.nodes import ROOT

STORY = ROOT / "tests" / "clients" / "stories" / "generated_client.py"


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_a_generated_client_reads_what_it_asked_for(
    node_url: str, model: str, tmp_path: Path
) -> None:
    try:
        python = client_python("openapi")
    except Unavailable as why:
        missing(why)
    tools = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    document = tmp_path / "openapi.json"
    document.write_bytes(httpx.get(f"{node_url}/openapi.json", timeout=30).content)
    # the generator knows no archives; it is told that they are bytes
    config = tmp_path / "config.json"
    overrides = {"application/gzip": "application/octet-stream"}
    config.write_text(json.dumps({"content_type_overrides": overrides}))
    generated = subprocess.run(
        [python.parent / "openapi-python-client", "generate", "--path", document, "--meta", "none",
         "--config", config,
         "--output-path", tmp_path / "shoal_client", "--fail-on-warning"],
        env=tools, capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert generated.returncode == 0, generated.stdout + generated.stderr
    told = subprocess.run(
        [python, STORY, node_url, model],
        env={**tools, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    texts = set(found["texts"].values())
    assert len(texts) == 1 and "1, 2, 3" in texts.pop()
    assert len(set(found["answer_tokens"])) == 1
    assert found["tokens"] >= 1
    assert found["refused"] == "model_not_found"
