"""Instances that come, go, freeze and die under a real gateway, and what its clients see."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from bus.process.clock import now
from bus.wire.ids import InstanceId, ModelId
from bus.wire.messages.events import GenerationOpened, InstanceRemoved
from tests.harness.gateway_testbed import (
    MODEL,
    GatewayTestbed,
    Runner,
    eventually,
    gateway_testbed,
)
from tests.harness.http_clients import Reader, chat, ready
from tests.harness.shared_testbeds import new_name, turn_at

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared() -> Iterator[GatewayTestbed]:
    with gateway_testbed(load_timeout_s=40.0) as made:
        yield made


@pytest.fixture
def made(shared: GatewayTestbed) -> Iterator[GatewayTestbed]:
    with turn_at(shared) as testbed:
        yield testbed


def placed(made: GatewayTestbed) -> Runner:
    """A runner with an instance of its own name, which the gateway may ask."""
    runner = made.runner(new_name())
    eventually(lambda: ready(made), 10, "the instance is ready")
    return runner


def known(made: GatewayTestbed, runners: Sequence[Runner]) -> bool:
    """Whether the gateway's state has the instances of these runners."""
    found = httpx.get(f"{made.url}/state").json()["state"]["instances"]
    return all(runner.instance in found for runner in runners)


def test_a_request_waits_for_its_model_with_progress_and_is_served_once_it_is_ready(
    made: GatewayTestbed,
) -> None:
    reader = Reader(made, "tokens=5")
    demand = eventually(  # after what takes back that of an earlier process
        lambda: made.holder.demands and made.holder.demands[-1].models, 10, "the demand"
    )
    assert demand[0].model == MODEL
    eventually(lambda: any("waiting for" in line for line in reader.lines), 10, "progress")
    made.runner(new_name())
    reader.wait_end(10)
    assert len(reader.text.split()) == 5
    eventually(lambda: not made.holder.demands[-1].models, 5, "the demand is withdrawn")


def test_a_model_that_does_not_load_in_time_is_a_503_with_retry_after() -> None:
    with gateway_testbed(load_timeout_s=1.0) as made:
        answer = chat(made, "tokens=5")
        assert answer.status_code == 503
        assert "retry-after" in answer.headers
        assert answer.json()["error"]["code"] == "model_loading"


def test_a_killed_runner_ends_streams_in_words_and_the_next_is_served(made: GatewayTestbed) -> None:
    first = placed(made)
    reader = Reader(made, "tokens=1000000 every_ms=10")
    reader.wait_lines(3)
    killed_at = now()
    first.signal(signal.SIGKILL)
    seconds = reader.wait_end(10) - killed_at
    print(f"terminal {seconds:.2f} s after the kill")
    assert reader.error is not None and reader.error["code"] == "runner_lost"
    assert reader.lines[-1] == "data: [DONE]"
    name = InstanceId(first.instance)
    made.happen(GenerationOpened(instance=name, generation=2, why="runner ended"))
    made.runner(name, generation=2)
    assert chat(made, "tokens=3").status_code == 200


@pytest.mark.proof  # tests/processes/test_faults.py has it with a real runner
def test_a_frozen_runner_ends_streams_in_words(made: GatewayTestbed) -> None:
    runner = placed(made)
    reader = Reader(made, "tokens=1000000 every_ms=10")
    reader.wait_lines(3)
    frozen_at = now()
    runner.signal(signal.SIGSTOP)
    seconds = reader.wait_end(45) - frozen_at
    print(f"terminal {seconds:.2f} s after the freeze")
    assert reader.error is not None and reader.error["code"] == "runner_lost"


def test_a_removed_instance_answers_what_it_has_and_nothing_new(made: GatewayTestbed) -> None:
    runner = placed(made)
    reader = Reader(made, "tokens=200 every_ms=10")
    reader.wait_lines(3)
    made.happen(InstanceRemoved(instance=InstanceId(runner.instance), why="another log"))
    eventually(lambda: not ready(made), 5, "it is asked no more")
    reader.wait_end(20)
    assert reader.error is None and len(reader.text.split()) == 200


def test_a_removed_instance_whose_runner_goes_ends_its_streams_in_words(
    made: GatewayTestbed,
) -> None:
    runner = placed(made)
    reader = Reader(made, "tokens=1000000 every_ms=10")
    reader.wait_lines(3)
    made.happen(InstanceRemoved(instance=InstanceId(runner.instance), why="another log"))
    runner.end()
    reader.wait_end(5)
    assert reader.error is not None and reader.error["code"] == "runner_lost"


def test_a_refused_request_is_tried_at_the_other_instance_once(made: GatewayTestbed) -> None:
    both = [placed(made), placed(made)]
    eventually(lambda: known(made, both), 10, "both instances are known")
    answer = chat(made, "refuse=queue_full")
    assert answer.status_code == 429
    eventually(lambda: all(one.heard("submit") for one in both), 5, "both were asked")
    assert [len(one.heard("submit")) for one in both] == [1, 1]


def prompts(made: GatewayTestbed, orders: str, count: int) -> tuple[str, dict[str, Any]]:
    """Where a body of so many prompts goes, and the body."""
    return f"{made.url}/v1/completions", {"model": MODEL, "prompt": [orders] * count}


def test_a_body_of_more_prompts_than_there_are_places_is_answered_whole(
    made: GatewayTestbed,
) -> None:
    runner = placed(made)
    url, body = prompts(made, "places=40 tokens=3", 128)
    answer = httpx.post(url, json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    assert [one["text"] for one in answer.json()["choices"]] == ["one two three "] * 128
    assert len({one["request"] for one in runner.heard("submit")}) == 128
    with httpx.stream("POST", url, json={**body, "stream": True}, timeout=30) as stream:
        chunks = [line for line in stream.iter_lines() if line.startswith("data: {")]
    told = {json.loads(one[6:])["choices"][0]["index"] for one in chunks if '"text":"one' in one}
    assert told == set(range(128))


def test_what_waits_for_its_own_body_goes_with_its_client(made: GatewayTestbed) -> None:
    runner = placed(made)
    url, body = prompts(made, "places=4 tokens=1000000 every_ms=10", 41)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json=body, timeout=httpx.Timeout(30, read=0.5))
    eventually(lambda: len(runner.heard("cancel")) >= 4, 10, "what is under way is cancelled")
    eventually(lambda: not open_requests(made), 10, "nothing is open")
    assert chat(made, "places=4 tokens=1").status_code == 200


def open_requests(made: GatewayTestbed) -> list[Any]:
    return httpx.get(f"{made.url}/queue", timeout=5).json()["requests"]


def test_requests_of_one_cache_key_are_asked_of_one_instance(made: GatewayTestbed) -> None:
    runners = [placed(made) for _ in range(3)]
    eventually(lambda: known(made, runners), 10, "the instances are known")

    def asked(keys: Sequence[str]) -> list[int]:
        """How many requests each runner had of these, whose texts all differ."""
        before = [len(runner.heard("submit")) for runner in runners]
        for number, key in enumerate(keys):
            turn = {"role": "user", "content": f"{number} tokens=1"}
            body = {"model": MODEL, "messages": [turn], "prompt_cache_key": key}
            url = f"{made.url}/v1/chat/completions"
            assert httpx.post(url, json=body, timeout=30).status_code == 200
        return [
            len(runner.heard("submit")) - had for runner, had in zip(runners, before, strict=True)
        ]

    assert sorted(asked(["same"] * 12)) == [0, 0, 12]
    assert max(asked([f"other {number}" for number in range(24)])) < 24


def test_an_unanswered_submit_goes_to_the_other_instance(made: GatewayTestbed) -> None:
    one, other = placed(made), placed(made)
    eventually(lambda: known(made, [one, other]), 10, "both instances are known")
    one.signal(signal.SIGSTOP)
    for number in range(6):
        assert chat(made, f"tokens=3 number={number}").status_code == 200
    # What the runner says comes by a pipe of its own, perhaps after the answer.
    eventually(lambda: len(other.heard("submit")) == 6, 10, "six were sent to the other")


def test_neither_streams_nor_waiting_requests_notice_a_new_bus_and_holder(
    made: GatewayTestbed,
) -> None:
    placed(made)
    running = Reader(made, "tokens=300 every_ms=10")
    running.wait_lines(3)
    waiting = Reader(made, "tokens=5", model="org/other")
    eventually(
        lambda: made.holder.demands and made.holder.demands[-1].models,
        10,
        "the demand is published",
    )
    made.restart_bus_and_holder()
    running.wait_end(20)
    assert running.error is None and len(running.text.split()) == 300
    eventually(lambda: made.holder.demands, 10, "the new holder hears the demand")
    other = made.runner(new_name(), place=False)
    made.place(other, ModelId("org/other"))
    waiting.wait_end(20)
    assert waiting.error is None and len(waiting.text.split()) == 5
