"""What a runner gives back waits in its gateway and is submitted again: no client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import Reader, chat, ready, send_raw

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    """A gateway in which no request may wait but one that was given back."""
    with gateway_testbed(max_waiting=0) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        yield made


def submits(testbed: GatewayTestbed, before: int, count: int) -> list[dict[str, Any]]:
    runner = testbed.runners[0]
    eventually(lambda: len(runner.heard("submit")) >= before + count, 15, "it is asked so often")
    return runner.heard("submit")[before:]


def test_a_stream_stays_open_and_is_answered_whole_by_the_second_submit(
    testbed: GatewayTestbed,
) -> None:
    before = len(testbed.runners[0].heard("submit"))
    reader = Reader(testbed, "displace=2 tokens=20")
    reader.wait_end(20)
    assert reader.status == 200 and reader.error is None
    assert len(reader.text.split()) == 20
    assert reader.lines[-1] == "data: [DONE]"
    roles = [one for one in reader.chunks if one["choices"][0]["delta"].get("role")]
    assert len(roles) == 1, "it begins once"
    told = submits(testbed, before, 3)
    assert len({one["request"] for one in told}) == 1 and len(told) == 3
    waited = [one["waited_ms"] for one in told]
    assert waited[0] == 0 < waited[1] < waited[2]
    took_ms = [1000 * (one["at"] - told[0]["at"]) for one in told]
    assert all(abs(said - took) < 500 for said, took in zip(waited, took_ms, strict=True))


def test_a_whole_answer_comes_once_though_the_runner_says_it_twice(
    testbed: GatewayTestbed,
) -> None:
    before = len(testbed.runners[0].heard("submit"))
    answer = chat(testbed, "displace=1 back_twice=1 tokens=5")
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 5
    assert len(submits(testbed, before, 2)) == 2


def test_one_that_is_given_back_while_it_is_being_stopped_ends_as_cancelled(
    testbed: GatewayTestbed,
) -> None:
    before = len(testbed.runners[0].heard("submit"))
    reader = Reader(testbed, "back_late=1 tokens=5 every_ms=60000")
    (told,) = submits(testbed, before, 1)
    stopped = httpx.post(f"{testbed.url}/v1/cancel/{told['request']}", timeout=10)
    assert stopped.status_code == 200, stopped.text
    reader.wait_end(2.5)
    assert reader.error is None and reader.lines[-1] == "data: [DONE]"
    assert len(submits(testbed, before, 1)) == 1, "it is not asked again"


def test_one_whose_client_hung_up_is_not_submitted_again(testbed: GatewayTestbed) -> None:
    before = len(testbed.runners[0].heard("submit"))
    connection = send_raw(testbed, "displace=1000000 tokens=5", stream=True)
    submits(testbed, before, 2)
    connection.close()
    eventually(lambda: not open_requests(testbed), 10, "nothing is open")
    asked = testbed.runners[0].asked_so_far(lambda: chat(testbed, "tokens=1"))
    assert testbed.runners[0].asked_so_far(lambda: chat(testbed, "tokens=1")) == asked + 1


def test_a_deadline_counts_on_and_says_for_what_was_waited(testbed: GatewayTestbed) -> None:
    answer = chat(testbed, "displace=1000000 tokens=5", x_timeout_s=1.5)
    assert answer.status_code == 504, answer.text
    assert "a more urgent request took your slot" in answer.text
    eventually(lambda: not open_requests(testbed), 10, "nothing is open")


def test_a_runner_that_was_given_no_version_8_is_not_told_how_long() -> None:
    with gateway_testbed() as made:
        runner = made.runner(protocol=7)
        eventually(lambda: ready(made), 10, "the instance is ready")
        assert chat(made, "displace=1 tokens=5").status_code == 200
        assert [one["waited_ms"] for one in runner.heard("submit")] == [0, 0]
        assert runner.heard("bad") == []


def open_requests(testbed: GatewayTestbed) -> list[Any]:
    requests = httpx.get(f"{testbed.url}/queue", timeout=5).json()["requests"]
    return [one for one in requests if one["model"] == MODEL]
