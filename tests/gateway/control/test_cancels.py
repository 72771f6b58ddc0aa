"""Requests are stopped from any gateway of the cluster: by its node's name alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import httpx
import psutil
import pytest

from bus.wire.ids import NodeId, RequestId
from gateway.control.cancels import REMEMBERED, RememberedCancels, process_of
from tests.harness.gateway_testbed import GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import Reader, cancels_of, ready
from tests.harness.second_gateway import SecondGateway


def cancel(second: SecondGateway, name: str) -> httpx.Response:
    return httpx.post(f"{second.url}/v1/cancel/{name}", timeout=15)


@pytest.fixture(scope="module")
def made() -> Iterator[GatewayTestbed]:
    with gateway_testbed(processes=2) as one:
        one.runner()
        eventually(lambda: ready(one), 10, "the instance is ready")
        yield one


@pytest.fixture(scope="module")
def second(made: GatewayTestbed) -> Iterator[SecondGateway]:
    with contextlib.closing(SecondGateway(made)) as gateway:
        yield gateway


def test_another_nodes_gateway_stops_a_request_at_its_runner(
    made: GatewayTestbed, second: SecondGateway
) -> None:
    readers = [Reader(made, "tokens=1000000 every_ms=10") for _ in range(6)]
    for reader in readers:
        reader.wait_lines(3)
        name = reader.chunks[0]["id"]
        assert cancel(second, name).json() == {"id": name, "cancelled": True}
        mine = name.removeprefix("chatcmpl-")
        stops = eventually(lambda mine=mine: cancels_of(made.runners[0], mine), 10, "the cancel")
        assert stops[0]["why"] == "client"
        reader.wait_end(15)
        assert reader.error is None
        assert cancel(second, name).status_code == 200, "again says the same"


def test_a_request_that_waits_for_its_model_is_stopped_as_well(
    made: GatewayTestbed, second: SecondGateway
) -> None:
    reader = Reader(made, "hello", model="org/other")
    listed = eventually(lambda: httpx.get(f"{made.url}/queue").json()["requests"], 10, "it waits")
    assert listed[0]["waiting"]
    assert cancel(second, listed[0]["request"]).status_code == 200
    reader.wait_end(15)
    assert reader.error is None


def test_nobody_knows_a_request_that_ended_or_of_a_node_that_is_not_there(
    made: GatewayTestbed, second: SecondGateway
) -> None:
    reader = Reader(made, "tokens=3")
    reader.wait_end(10)
    assert cancel(second, reader.chunks[0]["id"]).status_code == 404
    assert cancel(second, "req-nowhere-h0-00000000-1").status_code == 404


def test_an_owner_that_does_not_answer_has_its_own_error(
    made: GatewayTestbed, second: SecondGateway
) -> None:
    reader = Reader(made, "tokens=1000000 every_ms=10")
    reader.wait_lines(3)
    name = reader.chunks[0]["id"]
    processes = psutil.Process(made.gateway.pid).children()
    for process in processes:
        process.suspend()
    try:
        answer = cancel(second, name)
    finally:
        for process in processes:
            process.resume()
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "owner_silent"
    assert "node testbed" in answer.json()["error"]["message"]
    assert cancel(second, name).status_code == 200
    reader.wait_end(15)


def test_what_was_stopped_is_remembered_up_to_a_bound() -> None:
    class All:
        open = {RequestId(f"req-{n}") for n in range(REMEMBERED + 1)}

        def cancel(self, request_id: RequestId) -> bool:
            found = request_id in self.open
            self.open.discard(request_id)
            return found

    stopped = RememberedCancels(All())
    names = [RequestId(f"req-{n}") for n in range(REMEMBERED + 1)]
    assert not stopped.cancel(RequestId("req-x"))
    assert all(stopped.cancel(name) for name in names)
    assert not stopped.cancel(names[0])
    assert all(stopped.cancel(name) for name in names[1:])


def test_the_process_of_a_request_is_a_small_number_of_its_own_node() -> None:
    def number(name: str) -> int | None:
        return process_of(RequestId(name), NodeId("n1"))

    assert number("req-n1-h12-b-1") == 12
    for name in (
        "req-n2-h0-b-1",
        "req-n1-h-b-1",
        "req-n1-h²-b-1",
        "x",
        f"req-n1-h{'9' * 5000}-b-1",
    ):
        assert number(name) is None, name[:40]
