"""What a model gives no effect is told by its runner, and named to the client in every case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.gateway_testbed import MODEL, GatewayTestbed, gateway_testbed

ORDERS = [{"role": "user", "content": "tokens=2 unheeded=1"}]
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": ORDERS}),
    ("/v1/responses", {"input": ORDERS}),
    ("/v1/messages", {"messages": ORDERS, "max_tokens": 9}),
    ("/api/chat", {"messages": ORDERS}),
]


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    with gateway_testbed() as made:
        made.runner()
        yield made


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), BODIES)
def test_what_has_no_effect_is_named_in_the_header(
    testbed: GatewayTestbed, path: str, body: dict[str, Any], stream: bool
) -> None:
    asked = {"model": MODEL, "stream": stream, **body}
    answer = httpx.post(f"{testbed.url}{path}", json=asked, timeout=10)
    assert (answer.status_code, answer.headers["x-shoal-ignored"]) == (200, "tools.strict")
    assert "ignored" not in answer.text
    both = httpx.post(f"{testbed.url}{path}", json={**asked, "flavour": "salt"}, timeout=10)
    assert both.headers["x-shoal-ignored"] == "flavour, tools.strict"


def test_it_is_named_in_a_comment_of_a_stream_that_began_before_it_was_known() -> None:
    with gateway_testbed(load_timeout_s=20.0) as made:
        body = {"model": MODEL, "stream": True, "messages": ORDERS}
        lines: list[str] = []
        url = f"{made.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=20) as answer:
            assert "x-shoal-ignored" not in answer.headers
            for line in answer.iter_lines():
                lines.append(line)
                if len(lines) == 3:
                    made.runner()
        assert lines.count(": ignored: tools.strict") == 1
        assert "data: [DONE]" in lines
