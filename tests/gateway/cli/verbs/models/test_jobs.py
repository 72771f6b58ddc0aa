"""`shoal jobs`, over a gateway that has some; every line of its page runs as printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed
from tests.harness.typed_lines import examples, typed


@pytest.fixture(scope="module")
def made() -> Iterator[GatewayTestbed]:
    with gateway_testbed() as found:
        found.runner()
        yield found


def submitted(made: GatewayTestbed, orders: str) -> str:
    body = {"model": MODEL, "messages": [{"role": "user", "content": orders}]}
    asked = {"path": "/v1/chat/completions", "body": body}
    return httpx.post(f"{made.url}/v1/jobs", json=asked, timeout=10).json()["id"]


@pytest.mark.parametrize("line", examples("jobs"))
def test_each_line_of_the_page_runs_as_printed(
    made: GatewayTestbed, tmp_path: Path, line: str
) -> None:
    job = submitted(made, "tokens=100000 every_ms=20")
    found = typed(made, tmp_path, line.replace("JOB", job))
    assert found.returncode == 0, found.stderr
    assert job in found.stdout
    if "cancel" in line:
        assert "cancelled" in found.stdout
    else:
        httpx.post(f"{made.url}/v1/jobs/{job}/cancel", timeout=30)


def test_the_result_of_a_job_is_shown_in_json(made: GatewayTestbed, tmp_path: Path) -> None:
    job = submitted(made, "tokens=3")
    eventually(
        lambda: httpx.get(f"{made.url}/v1/jobs/{job}", timeout=10).json()["status"] == "done",
        20,
        "it is done",
    )
    shown = json.loads(typed(made, tmp_path, f"shoal jobs show {job} --json").stdout)
    assert shown["result"]["choices"][0]["message"]["content"] == "one two three "
    assert "--json" in typed(made, tmp_path, f"shoal jobs show {job}").stderr
    unknown = typed(made, tmp_path, "shoal jobs show job_req-n1-h0-b-99")
    assert unknown.returncode == 4 and "job_req-n1-h0-b-99" in unknown.stderr
