"""A stream whose runner dies pauses and goes on at the next one (decision 0098)."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.gateway_testbed import GatewayTestbed, Runner, eventually, gateway_testbed
from tests.harness.http_clients import Reader, ready

pytestmark = pytest.mark.slow

SLOW = "keeps=1 tokens=40 every_ms=50"


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    with gateway_testbed(load_timeout_s=20) as made:
        yield made


@pytest.fixture
def runner(testbed: GatewayTestbed) -> Runner:
    """A new generation of the instance, which serves."""
    made = testbed.runner(generation=len(testbed.runners) + 1)
    eventually(lambda: ready(testbed), 10, "the instance is ready")
    return made


def reload(testbed: GatewayTestbed) -> Runner:
    return testbed.runner(generation=len(testbed.runners) + 1)


def submit_of(runner: Runner) -> dict[str, Any]:
    return eventually(lambda: runner.heard("submit"), 15, "it is submitted")[-1]


def is_ready(testbed: GatewayTestbed, runner: Runner) -> bool:
    instances = httpx.get(f"{testbed.url}/state", timeout=5).json()["state"]["instances"]
    return instances.get(runner.instance, {}).get("status") == "ready"


def losses(testbed: GatewayTestbed, outcome: str) -> float:
    lines = httpx.get(f"{testbed.url}/metrics", timeout=5).text.splitlines()
    found = [one for one in lines if "runner_losses_total{" in one and f'"{outcome}"' in one]
    return sum(float(one.split()[-1]) for one in found)


def test_a_stream_goes_on_where_it_was_and_is_kept_open_meanwhile(
    testbed: GatewayTestbed, runner: Runner
) -> None:
    reader = Reader(testbed, SLOW, stream_options={"include_usage": True})
    reader.wait_lines(16)
    runner.end()
    eventually(lambda: any(one.startswith(": wait") for one in reader.lines), 15, "it waits")
    again = submit_of(reload(testbed))
    reader.wait_end(30)
    assert reader.error is None and reader.lines[-1] == "data: [DONE]"
    words = reader.text.split()
    assert len(words) == 40 and words[:8] * 5 == words, "nothing is lost, nothing comes twice"
    final = next(one for one in reader.chunks if one.get("usage"))
    usage, timing = final["usage"], final["timing"]
    assert timing["resumes"] == 1 and 0 < timing["paused_seconds"] < 60
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (7, 40)
    assert (again["deaths"], again["suspect"]) == (1, True) and again["has"][0] > 0
    eventually(lambda: losses(testbed, "resumed") == 1, 5, "it is counted")


def test_a_request_whose_second_runner_dies_at_once_ends_and_is_named(
    testbed: GatewayTestbed, runner: Runner
) -> None:
    reader = Reader(testbed, "keeps=1 tokens=40 every_ms=400")
    name = submit_of(runner)["request"]
    reader.wait_lines(4)
    runner.end()
    had = len(reader.text.split())
    second = reload(testbed)
    assert submit_of(second)["suspect"]
    eventually(lambda: len(reader.text.split()) > had, 15, "the second one computes it")
    second.end()
    reader.wait_end(15)
    assert reader.error is not None and reader.error["code"] == "runner_lost"
    assert "a second runner died" in reader.error["message"]
    (line,) = [one for one in testbed.log_lines() if "killed its runner again" in one["message"]]
    assert line["request"] == name


def test_a_runner_that_ends_on_purpose_makes_no_suspects_and_three_resumes_are_enough(
    testbed: GatewayTestbed, runner: Runner
) -> None:
    reader = Reader(testbed, "keeps=1 tokens=20 every_ms=20 fail=model_unavailable")
    reader.wait_lines(4)
    other = testbed.runner("inst-2")
    again = submit_of(other)
    assert (again["deaths"], again["suspect"], again["has"]) == (1, False, [20])
    reader.wait_end(40)
    assert reader.error is not None and "resumed 3 times" in reader.error["message"]
    other.end()


def test_a_stream_leaves_a_silent_runner_for_another_that_is_ready(
    testbed: GatewayTestbed, runner: Runner
) -> None:
    # Long enough to last until the other runner is ready, also on a busy machine.
    reader = Reader(testbed, SLOW.replace("tokens=40", "tokens=320"))
    reader.wait_lines(16)
    other = testbed.runner("inst-3")
    eventually(lambda: is_ready(testbed, other), 10, "the other one is ready")
    runner.signal(signal.SIGSTOP)
    frozen_at = time.monotonic()
    again = submit_of(other)
    print(f"submitted again {time.monotonic() - frozen_at:.2f} s after the runner froze")
    assert (again["deaths"], again["suspect"]) == (1, False) and again["has"][0] > 0
    runner.signal(signal.SIGCONT)
    reader.wait_end(30)
    assert reader.error is None and reader.text.split() == reader.text.split()[:8] * 40
    eventually(lambda: runner.heard("cancel"), 5, "the first runner stops computing")
    other.end()


def test_a_stream_leaves_a_runner_that_answers_but_makes_no_progress(
    testbed: GatewayTestbed, runner: Runner
) -> None:
    reader = Reader(testbed, "keeps=1 tokens=2 every_ms=30000", x_timeout_s=9)
    assert submit_of(runner)["deaths"] == 0
    other = testbed.runner("inst-4")
    again = submit_of(other)
    assert (again["deaths"], again["suspect"]) == (1, False)
    eventually(lambda: runner.heard("cancel"), 5, "the first runner stops computing")
    reader.wait_end(15)
    assert reader.error is not None and "9 s" in reader.error["message"]
    other.end()


def test_a_request_begins_again_if_its_engine_reports_no_tokens_and_has_sent_none(
    testbed: GatewayTestbed, runner: Runner
) -> None:
    reader = Reader(testbed, "tokens=3 every_ms=1500", stream_options={"include_usage": True})
    assert submit_of(runner)["deaths"] == 0
    reader.wait_lines(1)  # the head of the stream follows the runner's acceptance
    runner.end()
    again = submit_of(reload(testbed))
    assert (again["deaths"], again["suspect"], again["has"]) == (1, True, [])
    reader.wait_end(30)
    assert reader.error is None and len(reader.text.split()) == 3
    (usage,) = [chunk["timing"] for chunk in reader.chunks if chunk.get("usage")]
    assert usage["resumes"] == 1


@pytest.mark.parametrize("refused", ["x_resume", "protocol", "engine"])
def test_what_may_not_resume_ends_as_before(testbed: GatewayTestbed, refused: str) -> None:
    made = testbed.runner(
        generation=len(testbed.runners) + 1, protocol=12 if refused == "protocol" else 13
    )
    eventually(lambda: ready(testbed), 10, "the instance is ready")
    extra = {"x_resume": False} if refused == "x_resume" else {}
    orders = SLOW.removeprefix("keeps=1 ") if refused == "engine" else SLOW
    reader = Reader(testbed, orders, **extra)
    assert submit_of(made)["resumes"] == (refused == "engine")
    reader.wait_lines(6)
    made.end()
    reader.wait_end(10)
    assert reader.error is not None and reader.error["code"] == "runner_lost"
    assert ("reports no tokens" in reader.error["message"]) == (refused != "x_resume")
