"""Requests that wait too long for a model and spill over to a provider, in every dialect; and those
that stay in the queue, or return to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bus.wire.ids import ModelId
from bus.wire.messages.events import CloudFallbackAllowed
from bus.wire.pool import PoolReading, PoolWait
from tests.harness.gateway_testbed import NODE, GatewayTestbed, eventually
from tests.harness.providers import CALLS, TEXT, Provider
from tests.harness.spoken import PATHS, ask, said_in
from tests.harness.tasked_gateway import COLD, TaskedGateway, chat, tasked_gateway, who

SPILLS = """
[tasks.to-claude]
candidates = ["org/other"]
spill_to = "claude:works"
spill_after_s = 0.3

[tasks.to-says]
candidates = ["shoal-tiny"]
spill_to = "cloud:says"
spill_after_s = 0.5

[tasks.to-busy]
candidates = ["org/other"]
spill_to = "cloud:busy"
spill_after_s = 0.3

[tasks.to-none]
candidates = ["org/other"]
spill_to = "keyless:m"
spill_after_s = 0.3

[tasks.to-silence]
candidates = ["org/other", "shoal-tiny"]
spill_to = "cloud:silent"
spill_after_s = 0.2
budget_s = 0.6
pin_primary = true

[tasks.to-counts]
candidates = ["org/other"]
spill_to = "cloud:counts"
spill_after_s = 1.0

[tasks.patient-one]
candidates = ["org/other"]
spill_to = "cloud:says"
spill_after_s = 20

[models."org/other"]
spill_to = "cloud:works"
spill_after_s = 0.3
"""
NOT_SPILLED = "x-shoal-not-spilled"
OWN = (("chat", "cloud:works"), ("messages", "claude:works"))
"""The answers of these pairs are passed on as they come."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskedGateway]:
    with tasked_gateway(tmp_path_factory.mktemp("config"), more=SPILLS) as made:
        yield made


@pytest.fixture
def made(site: TaskedGateway) -> GatewayTestbed:
    return site.made


def rows_of(made: GatewayTestbed, client: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{made.url}/requests/recent", params={"client": client}, timeout=10)
    return answer.json()["requests"]


def open_rows(made: GatewayTestbed, client: str) -> list[dict[str, Any]]:
    rows = httpx.get(f"{made.url}/queue", timeout=10).json()["requests"]
    return [row for row in rows if row["client"] == client]


def use_of(made: GatewayTestbed, client: str) -> int:
    rows = httpx.get(f"{made.url}/clients", timeout=10).json()["clients"]
    return next((row["requests"] for row in rows if row["client"] == client), 0)


def spilled(made: GatewayTestbed, model: str, to: str, outcome: str) -> float:
    labels = f'{{model_name="{model}",outcome="{outcome}",provider_model="{to}"}}'
    lines = httpx.get(f"{made.url}/metrics", timeout=10).text.splitlines()
    name = f"shoal_spilled_requests_total{labels} "
    return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0.0)


def in_thread(call: Callable[[], httpx.Response]) -> tuple[threading.Thread, list[httpx.Response]]:
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    return thread, answers


CASES = [
    *((dialect, COLD, "cloud:works", False) for dialect in PATHS),
    *((dialect, "to-claude", "claude:works", True) for dialect in PATHS),
    ("chat", COLD, "cloud:works", True),
    ("messages", "to-claude", "claude:works", False),
]


@pytest.mark.parametrize(("dialect", "model", "to", "stream"), CASES)
def test_a_request_that_waits_too_long_is_answered_by_the_provider(
    made: GatewayTestbed, dialect: str, model: str, to: str, stream: bool
) -> None:
    client = f"{dialect} {to} {stream}"
    usage = {"stream_options": {"include_usage": True}} if dialect == "chat" and stream else {}
    answer = ask(made, dialect, model, stream=stream, x_client_id=client, **usage)
    if (dialect, to) in OWN:
        assert answer.status_code == 200 and all(piece.strip() in answer.text for piece in TEXT)
    else:
        said = said_in(dialect, answer, stream=stream)
        assert said.text == "".join(TEXT) and said.tokens == (11, 9)
        assert len(said.calls) == (0 if dialect == "generate" else len(CALLS))
    assert who(answer)[1] == to and NOT_SPILLED not in answer.headers
    assert (who(answer)[2] or "").endswith("did not begin within 0.3 s (spill_after_s)")
    (row,) = eventually(lambda: rows_of(made, client), 5, "a row")
    assert (row["model"], row["status"], row["error"]) == (to, 200, None), "it counts once"
    assert use_of(made, client) == 1 and not open_rows(made, client)


def test_the_metrics_count_what_spilled(made: GatewayTestbed) -> None:
    before = spilled(made, COLD, "cloud:works", "answered")
    assert chat(made, COLD).status_code == 200

    def is_counted() -> bool:
        return spilled(made, COLD, "cloud:works", "answered") == before + 1

    eventually(is_counted, 5, "it is counted")


def test_a_request_that_a_runner_begins_in_time_stays(made: GatewayTestbed) -> None:
    answer = chat(made, "to-says", "tokens=60 every_ms=20")
    assert who(answer)[1] == "shoal-tiny" and len(answer.text.split()) > 50


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_waits_at_a_runner_spills_over_and_is_stopped_there(
    made: GatewayTestbed, stream: bool
) -> None:
    (runner,) = made.runners
    before = len(runner.heard("cancel"))
    answer = chat(made, "to-says", "tokens=5 silent=0", stream=stream)
    assert who(answer)[:2] == ("to-says", "cloud:says")
    eventually(lambda: len(runner.heard("cancel")) > before, 5, "the runner was told")


def test_a_request_that_a_full_queue_refuses_spills_over_at_once(made: GatewayTestbed) -> None:
    answer = chat(made, "to-says", "refuse=queue_full")
    assert who(answer) == (
        "to-says",
        "cloud:says",
        "shoal-tiny cannot take the request (queue_full)",
    )


STAYING = [
    ("messages-only", {"model": "to-claude", "logprobs": True}, "logprobs: providers return no"),
    ("two", {"model": "to-claude", "n": 2}, "cannot serve n: "),
    ("keyless", {"model": "to-none"}, "SHOAL_TEST_NO_SUCH_KEY"),
]


@pytest.mark.parametrize(("client", "more", "words"), STAYING)
def test_a_request_that_the_provider_cannot_serve_stays_and_says_why(
    made: GatewayTestbed, client: str, more: dict[str, Any], words: str
) -> None:
    model = more["model"]
    rest = {name: value for name, value in more.items() if name != "model"}
    thread, answers = in_thread(
        lambda: chat(made, model, x_client_id=client, x_timeout_s=2.0, **rest)
    )
    (row,) = eventually(lambda: open_rows(made, client), 5, "it waits")
    assert row["spill"].startswith("stays: ") and words in row["spill"] and row["waiting"]
    thread.join(20)
    (answer,) = answers
    assert answer.status_code == 504 and words in answer.headers[NOT_SPILLED]


def test_a_raw_prompt_stays(made: GatewayTestbed, site: TaskedGateway) -> None:
    site.openai.heard.clear()
    body = {"model": COLD, "prompt": "<|user|>", "x_timeout_s": 1.0}
    answer = httpx.post(f"{made.url}/v1/completions", json=body, timeout=20)
    assert answer.status_code == 504 and "raw prompt" in answer.headers[NOT_SPILLED]
    assert not site.openai.heard


def test_nothing_spills_over_where_providers_are_switched_off(made: GatewayTestbed) -> None:
    made.happen(CloudFallbackAllowed(allowed=False))

    def is_off() -> bool:
        config = httpx.get(f"{made.url}/api/v1/config", timeout=10).json()
        return config["allowCloudFallback"] is False

    try:
        eventually(is_off, 5, "the gateway knows")
        answer = chat(made, COLD, x_timeout_s=1.0)
        assert answer.status_code == 504 and "allowCloudFallback" in answer.headers[NOT_SPILLED]
    finally:
        made.happen(CloudFallbackAllowed(allowed=True))
        eventually(lambda: not is_off(), 5, "it is as before")


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_the_provider_refuses_waits_again_and_counts_once(
    made: GatewayTestbed, stream: bool
) -> None:
    client = f"refused {stream}"
    answer = chat(made, "to-busy", x_timeout_s=1.5, x_client_id=client, stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert "cloud:busy did not answer (provider_rate_limited)" in answer.headers[NOT_SPILLED]
    (row,) = eventually(lambda: rows_of(made, client), 5, "a row")
    assert (row["status"], row["error"]) == (504, "deadline_exceeded")
    assert use_of(made, client) == 1
    assert spilled(made, COLD, "cloud:busy", "returned") > 0


def test_a_provider_that_hangs_leaves_the_task_to_its_next_candidate(
    made: GatewayTestbed,
) -> None:
    answer = chat(made, "to-silence", x_client_id="hangs")
    assert answer.status_code == 200 and who(answer)[1] == "shoal-tiny"
    assert "cloud:silent did not answer (deadline_exceeded)" in answer.headers[NOT_SPILLED]


def test_a_spilled_request_keeps_its_id_and_is_stopped_by_it(
    made: GatewayTestbed, site: TaskedGateway
) -> None:
    client, hung_up = "stopped", site.openai.hung_up
    thread, answers = in_thread(lambda: chat(made, "to-counts", x_client_id=client, stream=True))
    (row,) = eventually(lambda: open_rows(made, client), 5, "it waits")
    assert row["spill"] == "to cloud:counts after 1 s" and row["provider"] is None

    def at_provider() -> list[dict[str, Any]]:
        rows = open_rows(made, client)
        return [row for row in rows if row["provider"] and not row["waiting"]]

    (later,) = eventually(at_provider, 10, "the provider answers")
    assert (later["request"], later["model"]) == (row["request"], "cloud:counts")
    stop = httpx.post(f"{made.url}/v1/cancel/{row['request']}", timeout=10)
    assert stop.status_code == 200
    thread.join(20)
    eventually(lambda: site.openai.hung_up > hung_up, 10, "the connection is closed")
    assert not open_rows(made, client)
    (row,) = eventually(lambda: rows_of(made, client), 5, "a row")
    assert (row["model"], row["error"]) == ("cloud:counts", "cancelled")
    assert answers[0].text.endswith("data: [DONE]\n\n")


def test_a_waiting_request_is_stopped_before_it_spills(made: GatewayTestbed) -> None:
    thread, answers = in_thread(lambda: chat(made, "to-counts", x_client_id="early"))
    (row,) = eventually(lambda: open_rows(made, "early"), 5, "it waits")
    assert httpx.post(f"{made.url}/v1/cancel/{row['request']}", timeout=10).status_code == 200
    thread.join(20)
    assert answers[0].status_code == 200 and who(answers[0])[1] == COLD


def test_embeddings_and_token_counts_never_spill_over(
    made: GatewayTestbed, site: TaskedGateway
) -> None:
    site.openai.heard.clear()
    body = {"model": COLD, "messages": [{"role": "user", "content": "x"}], "x_timeout_s": 1.0}
    answer = httpx.post(f"{made.url}/v1/messages/count_tokens", json=body, timeout=20)
    assert answer.status_code == 504 and NOT_SPILLED not in answer.headers
    assert not site.openai.heard


def test_a_longer_wait_that_the_leader_expects_is_not_waited_for_and_a_load_ends_it(
    tmp_path: Path,
) -> None:
    wait = PoolWait(
        model=ModelId(COLD), kind="demand", priority=10, standing=10.0, waited_s=0.0,
        phase="waiting", why="the memory is full", ready_in_s=60.0,
    )  # fmt: skip
    reading = PoolReading(node=NODE, term=1, waits=(wait,))
    with tasked_gateway(tmp_path, more=SPILLS) as site:
        made = site.made
        made.do(lambda: made.holder.bus.publish("reading.pool", reading))  # pyright: ignore
        answer = chat(made, "patient-one", x_timeout_s=15.0)
        assert who(answer)[1] == "cloud:says", answer.text
        assert "is expected to be ready in 60 s, after 20 s" in (who(answer)[2] or "")
        # a returned request is answered by the model once it is loaded
        thread, answers = in_thread(lambda: chat(made, "to-busy", x_timeout_s=25.0))
        eventually(lambda: refused(site.openai), 10, "the provider refused it")
        made.place(made.runner("inst-2", place=False), model=ModelId(COLD))
        thread.join(30)
        (answer,) = answers
        assert answer.status_code == 200 and who(answer)[1] == COLD, answer.text
        assert json.loads(answer.content)["model"] == COLD
        assert "provider_rate_limited" in answer.headers[NOT_SPILLED]


def refused(provider: Provider) -> bool:
    return any(heard.body["model"] == "busy" for heard in provider.heard)
