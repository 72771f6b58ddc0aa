"""A real node traces real requests, and the parts of a trace add up."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.harness.nodes import MODEL, Node, eventually, everywhere, shoal
from tests.harness.traces import check_trace, check_usage

pytestmark = pytest.mark.timeout(600)


def asked(node: Node, tokens: int, **more: Any) -> str:
    turns = [{"role": "user", "content": "Tell me a long story about a fish."}]
    sent = {"model": MODEL, "messages": turns, "max_tokens": tokens, "ignore_eos": True}
    answer = node.http.post("/v1/chat/completions", json={**sent, **more}, timeout=120.0)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def raw_of(node: Node, name: str) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        answer = node.http.get(f"/v1/traces/{name}/raw")
        return answer.json() if answer.status_code == 200 else None

    return eventually(found, 10, f"a trace of {name}")


def test_the_parts_of_a_request_are_its_whole(node: Node) -> None:
    name = asked(node, 400, x_trace=True)
    raw = raw_of(node, name)
    check_usage(raw)
    check_trace(node.http.get(f"/v1/traces/{name}").json(), sequential=True)
    decode = [one for one in raw["lead"]["spans"] if one["name"] == "decode"]
    assert 30 < len(decode) <= 64, "399 tokens, bounded"
    assert all(one["computed_s"] > 0 for one in decode)
    assert raw["lead"]["clock"]["how"] == "one clock"


def test_tracing_is_turned_on_and_off_by_the_verb(node: Node) -> None:
    url = str(node.http.base_url)

    def ratio() -> Any:
        return httpx.get(f"{url}/v1/tracing").json()["cluster"]

    assert shoal("--url", url, "trace", "on").returncode == 0
    everywhere(ratio, lambda found: found == 1.0, "each process traces")
    assert raw_of(node, asked(node, 5))["why"] == "sampled"
    assert shoal("--url", url, "trace", "off").returncode == 0
    everywhere(ratio, lambda found: found == 0.0, "no process traces")
    plain, later = asked(node, 5), asked(node, 5, x_trace=True)
    raw_of(node, later)
    assert node.http.get(f"/v1/traces/{plain}").status_code == 404
    put = node.http.put("/v1/tracing", json={"ratio": None})
    assert put.status_code == 200, put.text
