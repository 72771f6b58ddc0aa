"""Who asks, as a runner is told: for whom a request counts when rows are shared."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    with gateway_testbed(trusted_proxies=["127.0.0.1"]) as made:
        made.runner()
        yield made


def sharer(testbed: GatewayTestbed, headers: dict[str, str], **fields: object) -> list[str]:
    runner = testbed.runners[0]
    before = len(runner.heard("submit"))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "tokens=1"}], **fields}
    answer = httpx.post(f"{testbed.url}/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    told = eventually(lambda: runner.heard("submit")[before:], 5, "the runner was asked")
    return told[0]["sharer"]


def test_a_runner_is_told_key_client_address_and_connection(testbed: GatewayTestbed) -> None:
    key, client, address, connection = sharer(testbed, {}, x_client_id="me")
    assert (key, client, address) == ("", "me", "127.0.0.1")
    host, _, port = connection.rpartition(":")
    assert host == "127.0.0.1" and port.isdigit()


def test_behind_a_trusted_proxy_the_address_is_the_one_that_it_names(
    testbed: GatewayTestbed,
) -> None:
    _, client, address, _ = sharer(testbed, {"X-Forwarded-For": "6.6.6.6, 10.1.2.3"})
    assert (client, address) == ("", "10.1.2.3")
