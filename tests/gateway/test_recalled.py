"""Requests at a copy that makes way for something urgent: what goes back, and how it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from bus.wire.ids import InstanceId
from bus.wire.messages.events import InstanceYields
from tests.harness.gateway_testbed import GatewayTestbed, Runner, eventually, gateway_testbed
from tests.harness.http_clients import Reader, ready, send_raw

pytestmark = pytest.mark.slow

SLOW = "tokens=40 every_ms=100"


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    """A gateway in which no request may wait, for a load no time at all, but what was asked
    back."""
    with gateway_testbed(max_waiting=0, load_timeout_s=0.5) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        yield made


def yields(testbed: GatewayTestbed, to: str = "other", *, urgently: bool = False) -> None:
    name = InstanceId("inst-1")
    testbed.happen(InstanceYields(instance=name, to=to, why="a test", urgently=urgently))


@contextmanager
def yielding(testbed: GatewayTestbed, *, urgently: bool = True) -> Iterator[None]:
    yields(testbed, urgently=urgently)
    try:
        yield
    finally:
        yields(testbed, "")
        eventually(lambda: ready(testbed), 10, "the instance is ready again")


def runner(testbed: GatewayTestbed) -> Runner:
    return testbed.runners[0]


def recalled(testbed: GatewayTestbed) -> list[dict[str, Any]]:
    return runner(testbed).heard("recall")


def submits(testbed: GatewayTestbed, before: int) -> list[dict[str, Any]]:
    return runner(testbed).heard("submit")[before:]


def waiting(testbed: GatewayTestbed) -> list[dict[str, Any]]:
    requests = httpx.get(f"{testbed.url}/queue", timeout=5).json()["requests"]
    return [one for one in requests if one["waiting"]]


def test_a_batch_stream_pauses_and_goes_on_where_it_was(testbed: GatewayTestbed) -> None:
    before, asked_back = len(submits(testbed, 0)), len(recalled(testbed))
    reader = Reader(testbed, SLOW, x_priority="batch", stream_options={"include_usage": True})
    reader.wait_lines(4)
    with yielding(testbed):
        eventually(lambda: waiting(testbed), 10, "it waits")
        (one,) = waiting(testbed)
        assert one["tokens"] > 0
        lines = len(reader.lines)
        reader.wait_lines(lines + 3)
        assert all(line.startswith(": ") for line in reader.lines[lines : lines + 3]), "kept alive"
    reader.wait_end(30)
    assert reader.error is None and reader.lines[-1] == "data: [DONE]"
    words = reader.text.split()
    assert len(words) == 40 and words[:8] * 5 == words, "nothing is lost, nothing said twice"
    usage = next(one["usage"] for one in reader.chunks if one.get("usage"))
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (7, 40)
    first, second = submits(testbed, before)
    assert first["request"] == second["request"] and first["has"] == []
    assert 0 < second["has"][0] < 40 and second["waited_ms"] > 0
    assert [one["begun"] for one in recalled(testbed)[asked_back:]] == [True]


def test_nothing_is_asked_back_for_what_is_not_urgent(testbed: GatewayTestbed) -> None:
    asked_back = len(recalled(testbed))
    reader = Reader(testbed, "tokens=25 every_ms=100", x_priority="batch")
    reader.wait_lines(3)
    with yielding(testbed, urgently=False):
        reader.wait_end(20)
    assert len(reader.text.split()) == 25 and len(recalled(testbed)) == asked_back


def test_a_row_that_is_no_batch_runs_to_its_end_and_an_urgent_one_is_not_asked_for(
    testbed: GatewayTestbed,
) -> None:
    before, asked_back = len(submits(testbed, 0)), len(recalled(testbed))
    readers = [
        Reader(testbed, "tokens=25 every_ms=100", x_priority=priority)
        for priority in ("normal", "urgent")
    ]
    for reader in readers:
        reader.wait_lines(3)
    with yielding(testbed):
        for reader in readers:
            reader.wait_end(20)
            assert len(reader.text.split()) == 25 and reader.error is None
    assert [one["begun"] for one in recalled(testbed)[asked_back:]] == [False]
    assert len(submits(testbed, before)) == 2


def test_one_that_cannot_be_gone_on_with_runs_to_its_end(testbed: GatewayTestbed) -> None:
    before, asked_back = len(submits(testbed, 0)), len(recalled(testbed))
    reader = Reader(testbed, "tokens=25 every_ms=100 stays=1", x_priority="batch")
    reader.wait_lines(3)
    with yielding(testbed):
        reader.wait_end(20)
    assert len(reader.text.split()) == 25 and reader.error is None
    assert len(recalled(testbed)) == asked_back + 1 and len(submits(testbed, before)) == 1


def test_one_that_has_not_begun_goes_back_whole_and_outlives_the_time_of_a_load(
    testbed: GatewayTestbed,
) -> None:
    before = len(submits(testbed, 0))
    reader = Reader(testbed, "tokens=5 every_ms=3000", x_priority="high")
    eventually(lambda: submits(testbed, before), 10, "it is submitted")
    with yielding(testbed):
        eventually(lambda: waiting(testbed), 10, "it waits")
        reader.wait_lines(3)  # each second one, so that its time to load is long over
    reader.wait_end(40)
    assert len(reader.text.split()) == 5 and reader.error is None
    assert [one["has"] for one in submits(testbed, before)] == [[], []]


def test_one_that_waits_to_go_on_ends_with_its_client(testbed: GatewayTestbed) -> None:
    before = len(submits(testbed, 0))
    connection = send_raw(testbed, SLOW, stream=True, x_priority="batch")
    eventually(lambda: submits(testbed, before), 10, "it is submitted")
    with yielding(testbed):
        eventually(lambda: waiting(testbed), 10, "it waits")
        connection.close()
        eventually(lambda: not waiting(testbed), 10, "it is forgotten")
    assert len(submits(testbed, before)) == 1


def test_one_that_waits_to_go_on_is_stopped_with_what_it_has(testbed: GatewayTestbed) -> None:
    reader = Reader(testbed, SLOW, x_priority="batch")
    reader.wait_lines(4)
    with yielding(testbed):
        (one,) = eventually(lambda: waiting(testbed), 10, "it waits")
        stopped = httpx.post(f"{testbed.url}/v1/cancel/{one['request']}", timeout=10)
        assert stopped.status_code == 200, stopped.text
        reader.wait_end(5)
    assert reader.error is None and reader.lines[-1] == "data: [DONE]"
    assert len(reader.text.split()) == one["tokens"]


def test_a_runner_of_an_earlier_version_is_asked_for_nothing_back() -> None:
    with gateway_testbed() as made:
        earlier = made.runner(protocol=9)
        eventually(lambda: ready(made), 10, "the instance is ready")
        reader = Reader(made, "tokens=25 every_ms=100", x_priority="batch")
        reader.wait_lines(3)
        with yielding(made):
            reader.wait_end(20)
        assert len(reader.text.split()) == 25 and reader.error is None
        assert earlier.heard("bad") == [] and earlier.heard("recall") == []
