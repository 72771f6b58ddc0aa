"""Schemathesis asks a node what its OpenAPI document allows, and what it does not: every answer is
one that the document names.

It lives in an environment of its own (`tests/clients/environments/schemathesis.in`). `make
prove-clients` runs it at full size; the seed of a run is in its output.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.harness.client_environments import Unavailable, client_python
from tests.harness.missing import missing
from tests.harness.nodes import Node, running_node

FULL = os.environ.get("SHOAL_PROVE") == "1"
CASES = 5_000 if FULL else 60
MOST_S = 1_500 if FULL else 90
PHASES = "coverage,fuzzing,stateful" if FULL else "fuzzing"
EXAMPLES = 40 if FULL else 1
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance"
)
ELSEWHERE = (
    "/apikeys|/node/|/admin/|/v1/diagnostics|rdma-test|/api/pull|/models/pull|/models/add|quantize"
    "|web_search"
)
"""Paths that other tests ask: they close the node to who has no key, drain nodes, restart them,
sample processes for seconds, join nodes, ask a hub, take every runner slot (which answers 503, as
documented), or search the web."""
WORDED = '[checks.not_a_server_error]\nexpected-statuses = ["2xx", "3xx", "4xx", "507"]\n'
"""What is more than any node has is a 507, where the description says so: that is checked, too."""
PATIENCE_S = 900
"""A hundred answers of thousands of tokens each may be asked for in one request."""


@pytest.fixture
def node() -> Iterator[Node]:
    """A node of its own: what is asked of it may unload its model."""
    with running_node() as made:
        yield made


@pytest.mark.proof
@pytest.mark.timeout(2 * MOST_S + PATIENCE_S + 600)
def test_every_answer_to_what_schemathesis_asks_is_a_documented_one(
    node: Node, tmp_path: Path
) -> None:
    try:
        python = client_python("schemathesis")
    except Unavailable as why:
        missing(why)
    report = tmp_path / "report.json"
    (tmp_path / "schemathesis.toml").write_text(WORDED)
    ran = subprocess.run(
        [python.parent / "schemathesis", "run", f"{node.url}/openapi.json",
         "--exclude-path-regex", ELSEWHERE, "--exclude-operation-id", "post_store_models_name",
         "--checks", CHECKS, "--phases", PHASES,
         "-n", str(EXAMPLES), "--max-time", str(MOST_S), "--request-timeout", str(PATIENCE_S),
         "--suppress-health-check", "filter_too_much",
         "--continue-on-failure", "--no-shrink", "--no-color", "--report-json-path", report],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * MOST_S + PATIENCE_S + 500,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-4_000:]
    told = json.loads(report.read_text())
    cases = told["test_cases"]
    print(f"seed {told['seed']}: {cases} of {told['operations']}")
    assert cases["generated"] >= CASES
    assert cases["with_failures"] == cases["errored"] == 0
    assert told["operations"]["tested"] == told["operations"]["selected"] > 40
    assert httpx.get(f"{node.url}/health", timeout=30).json()["status"] == "ok"
