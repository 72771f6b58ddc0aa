"""A real gateway between real clients and synthetic runners: every way an exchange may go."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from bus.process.clock import now
from bus.process.ports import addresses_of
from bus.wire.accelerators import AcceleratorReading, HardwareReading
from bus.wire.errors import Refusal
from bus.wire.ids import NodeId
from bus.wire.topics import reading_topic
from gateway.http.routes import ROUTES
from tests.harness.gateway_testbed import MODEL, NODE, GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import Reader, body, cancels_of, chat, ready, send_raw
from tests.harness.node_server import reading
from tests.harness.shown_answers import ShownAnswers

pytestmark = pytest.mark.slow
UNSEEN = {("GET", path) for path in ("/settings", "/config", "/models/search")}
"""What a testbed does not have."""


@pytest.fixture(scope="module")
def shared() -> Iterator[GatewayTestbed]:
    """One gateway with short deadlines and one ready instance, for what leaves no trace."""
    with gateway_testbed(
        request_timeout_s=2.0, load_timeout_s=3.0, body_limit_bytes=1 << 20
    ) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        yield made


# --- answers ----------------------------------------------------------------------------------


def test_a_stream_has_its_role_first_its_tokens_in_order_and_done_last(
    shared: GatewayTestbed,
) -> None:
    reader = Reader(shared, "tokens=20", stream_options={"include_usage": True})
    reader.wait_end(10)
    assert reader.status == 200
    assert reader.chunks[0]["choices"][0]["delta"] == {"role": "assistant"}
    assert reader.text.split()[:3] == ["one", "two", "three"]
    assert len(reader.text.split()) == 20
    assert reader.chunks[-1]["usage"]["completion_tokens"] == 20
    assert reader.lines[-1] == "data: [DONE]"


def test_a_stream_longer_than_its_credit_comes_whole(shared: GatewayTestbed) -> None:
    reader = Reader(shared, "tokens=5000")
    reader.wait_end(20)
    assert len(reader.text.split()) == 5000
    assert reader.error is None


def test_a_whole_answer_of_several_choices_longer_than_their_credit(shared: GatewayTestbed) -> None:
    answer = chat(shared, "tokens=300", n=3).json()
    assert [len(one["message"]["content"].split()) for one in answer["choices"]] == [300] * 3
    assert answer["usage"]["completion_tokens"] == 900


def test_several_prompts_are_one_answer(shared: GatewayTestbed) -> None:
    asked = {"model": MODEL, "prompt": ["tokens=2", "tokens=3"]}
    answer = httpx.post(f"{shared.url}/v1/completions", json=asked).json()
    assert [one["text"] for one in answer["choices"]] == ["one two ", "one two three "]


def test_ollama_streams_lines_at_both_of_its_paths(shared: GatewayTestbed) -> None:
    for path in ("/api/chat", "/ollama/api/chat"):
        answer = httpx.post(f"{shared.url}{path}", json=body("tokens=3"))
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert "".join(one["message"]["content"] for one in lines) == "one two three "
        assert lines[-1]["done"] is True


def test_short_names_mean_the_only_model_that_they_can(shared: GatewayTestbed) -> None:
    for name in (f"{MODEL}:latest", "Shoal-Tiny"):
        answer = httpx.post(f"{shared.url}/v1/chat/completions", json={**body("x"), "model": name})
        assert answer.status_code == 200
        assert answer.json()["model"] == name


# --- refusals ---------------------------------------------------------------------------------


def test_an_unknown_model_is_a_404_that_names_the_way(shared: GatewayTestbed) -> None:
    asked = {**body("hi"), "model": "nobody/nothing"}
    openai = httpx.post(f"{shared.url}/v1/chat/completions", json=asked)
    assert openai.status_code == 404
    assert "shoal pull nobody/nothing" in openai.json()["error"]["message"]
    ollama = httpx.post(f"{shared.url}/api/chat", json=asked)
    assert ollama.status_code == 404
    assert isinstance(ollama.json()["error"], str)


def test_a_full_queue_is_a_429_with_retry_after_and_position(shared: GatewayTestbed) -> None:
    for stream in (False, True):
        answer = chat(shared, "refuse=queue_full", stream=stream)
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "3"
        assert answer.headers["x-queue-position"] == "9"
        assert answer.json()["error"]["position"] == 9


def test_a_failure_before_the_first_byte_is_a_status(shared: GatewayTestbed) -> None:
    answer = chat(shared, "tokens=0 fail=context_length")
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_failure_in_a_stream_is_an_error_frame_and_done(shared: GatewayTestbed) -> None:
    reader = Reader(shared, "tokens=5 fail=memory_pressure")
    reader.wait_end(10)
    assert len(reader.text.split()) == 5
    assert reader.error is not None and reader.error["code"] == "memory_pressure"
    assert reader.lines[-1] == "data: [DONE]"


def test_a_lost_entry_ends_the_request_instead_of_its_text_being_wrong(
    shared: GatewayTestbed,
) -> None:
    reader = Reader(shared, "tokens=20 skip=7 every_ms=1")
    reader.wait_end(10)
    assert reader.error is not None and reader.error["code"] == "internal_error"
    assert len(reader.text.split()) == 7


def test_no_progress_is_a_504_and_the_work_is_cancelled(shared: GatewayTestbed) -> None:
    runner = shared.runners[0]
    answer = chat(shared, "silent=1")
    assert answer.status_code == 504
    mine = runner.heard("submit")[-1]["request"]
    cancel = eventually(lambda: cancels_of(runner, mine), 10, "a cancel")
    assert cancel[0]["why"] == "deadline"


def test_a_clients_own_timeout_bounds_the_whole_answer(shared: GatewayTestbed) -> None:
    answer = chat(shared, "tokens=100000 every_ms=10", x_timeout_s=0.5)
    assert answer.status_code == 504
    assert "0.5 s" in answer.json()["error"]["message"]
    told = shared.runners[0].heard("submit")[-1]["remaining_ms"]
    assert 0 < told <= 500, "the runner knows of it too"


def test_bodies_too_large_or_wrong_are_refused_in_their_dialect(shared: GatewayTestbed) -> None:
    large = httpx.post(f"{shared.url}/v1/chat/completions", content=b"x" * (2 << 20))
    assert large.status_code == 413
    assert large.json()["error"]["code"] == "body_too_large"

    def pieces() -> Iterator[bytes]:
        for _ in range(40):
            yield b"y" * 65536

    chunked = httpx.post(f"{shared.url}/api/chat", content=pieces())
    assert chunked.status_code == 413
    assert isinstance(chunked.json()["error"], str)
    deep = "[" * 100 + "]" * 100
    nested = httpx.post(
        f"{shared.url}/v1/chat/completions", content=f'{{"model":"m","messages":{deep}}}'
    )
    assert nested.status_code == 400
    assert "deeper" in nested.json()["error"]["message"]


def test_unknown_paths_and_methods_answer_in_the_dialect_of_the_path(
    shared: GatewayTestbed,
) -> None:
    assert httpx.get(f"{shared.url}/v1/nothing").json()["error"]["code"] == "not_found"
    assert isinstance(httpx.get(f"{shared.url}/api/nothing").json()["error"], str)
    wrong = httpx.get(f"{shared.url}/v1/completions")
    assert wrong.status_code == 405
    assert wrong.json()["error"]["code"] == "method_not_allowed"
    assert "POST" in wrong.headers["allow"]
    posted = httpx.post(f"{shared.url}/api/tags")
    assert posted.status_code == 405 and posted.headers["allow"] == "GET, HEAD, OPTIONS"


def test_head_says_what_get_says_without_the_body(shared: GatewayTestbed) -> None:
    with httpx.Client(base_url=shared.url) as client:
        for path in ("/", "/api/tags", "/ollama/api/version", "/v1/models", "/health", "/nothing"):
            head, get = client.head(path), client.get(path)
            assert (head.status_code, head.content) == (get.status_code, b""), path
            assert head.headers["content-type"] == get.headers["content-type"]
            assert int(head.headers["content-length"]) > 0
        assert client.head("/v1/completions").status_code == 405


def test_every_answer_has_a_request_id_of_its_own(shared: GatewayTestbed) -> None:
    asked = [
        httpx.get(f"{shared.url}/api/tags"),
        httpx.head(f"{shared.url}/"),
        httpx.get(f"{shared.url}/v1/nothing"),
        httpx.get(f"{shared.url}/v1/models", headers={"host": "evil.example"}),
        httpx.post(f"{shared.url}/api/chat", content=b"{"),
        httpx.post(f"{shared.url}/v1/audio/speech", json={}),
        httpx.get(f"{shared.url}/v1/completions"),
        httpx.post(f"{shared.url}/v1/messages", json={"model": "x"}),
        chat(shared, "tokens=2"),
    ]
    ids = [answer.headers["x-request-id"] for answer in asked]
    assert all(ids) and len(set(ids)) == len(ids)
    assert [answer.status_code for answer in asked] == [200, 200, 404, 403, 400, 404, 405, 400, 200]
    whole = asked[-1]
    assert whole.json()["id"].endswith(whole.headers["x-request-id"].removeprefix("chatcmpl-"))
    unknown = httpx.post(
        f"{shared.url}/api/chat", json={"model": "nothing", "messages": body("x")["messages"]}
    )
    assert unknown.status_code == 404 and unknown.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    "path",
    ["/v1/audio/speech", "/v1/images/generations", "/v1/moderations",
     "/v1/files", "/v1/fine_tuning/jobs", "/v1/assistants", "/v1/threads/t", "/v1/vector_stores",
     "/v1/score", "/score"],
)  # fmt: skip
def test_what_no_engine_does_is_said_in_openais_words(shared: GatewayTestbed, path: str) -> None:
    answer = httpx.post(f"{shared.url}{path}", json={"model": "x"})
    error = answer.json()["error"]
    assert answer.status_code == 404, "clients ask again after any 5xx"
    assert error["code"] in ("no_such_engine", "not_offered")
    assert error["message"].startswith(f"{path} is not supported: ")


@pytest.mark.parametrize(
    ("path", "code"),
    [("/v1/responses", "not_there_yet"), ("/v1/realtime", "no_such_engine")],
)
def test_what_is_asked_for_over_websocket_is_answered_as_absent(
    shared: GatewayTestbed, path: str, code: str
) -> None:
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    answer = httpx.get(f"{shared.url}{path}", headers=upgrade)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, code)
    assert answer.headers["x-request-id"] and answer.headers["connection"] == "close"


def test_what_ollama_has_and_we_have_not_is_said_in_its_words(shared: GatewayTestbed) -> None:
    for path in ("/api/push", "/api/blobs/sha256:00", "/api/embed"):
        for root in ("", "/ollama"):
            answer = httpx.post(f"{shared.url}{root}{path}", json={"model": "x"})
            assert answer.status_code == 404 and list(answer.json()) == ["error"], path
    # a client that makes a model asks this first, and sends the file when it is not there
    assert httpx.head(f"{shared.url}/api/blobs/sha256:00").status_code == 404


def test_a_strangers_host_name_or_page_is_refused(shared: GatewayTestbed) -> None:
    rebound = httpx.get(f"{shared.url}/v1/models", headers={"host": "evil.example"})
    assert rebound.status_code == 403
    page = httpx.get(f"{shared.url}/v1/models", headers={"origin": "https://evil.example"})
    assert page.status_code == 403
    ours = httpx.options(
        f"{shared.url}/v1/chat/completions",
        headers={
            "origin": "http://localhost:3000",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization",
        },
    )
    assert ours.status_code == 204
    assert ours.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert ours.headers["access-control-allow-headers"] == "authorization"


@pytest.mark.parametrize("origin", ["app://obsidian.md", "vscode-webview://0d1c2b3a"])
def test_a_program_s_page_asks_models_and_reads_why_it_may_no_more(
    shared: GatewayTestbed, origin: str
) -> None:
    page = {"origin": origin, "sec-fetch-site": "cross-site"}
    asks = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type",
        "access-control-request-private-network": "true",
    }
    url = f"{shared.url}/v1/chat/completions"
    before = httpx.options(url, headers=page | asks)
    assert before.status_code == 204
    assert before.headers["access-control-allow-private-network"] == "true"
    chat = httpx.post(url, headers=page, json=body("tokens=2"))
    owner_s = httpx.get(f"{shared.url}/state", headers=page)
    assert (chat.status_code, owner_s.status_code) == (200, 403)
    assert "is only for the user who runs this node" in owner_s.text
    for answer in (before, chat, owner_s):
        assert answer.headers["access-control-allow-origin"] == origin
    null = httpx.post(url, headers={"origin": "null"}, json=body("tokens=2"))
    assert null.status_code == 403 and "http://localhost" in null.json()["error"]["message"]


def test_both_loopbacks_are_listened_at(shared: GatewayTestbed) -> None:
    for address in addresses_of("localhost"):
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{shared.port}/v1/chat/completions"
        assert httpx.post(url, json=body("tokens=2")).status_code == 200


# --- clients that leave, stall, cancel --------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("orders", ["tokens=1000000 every_ms=20", "silent=1"])
def test_a_hang_up_is_a_cancel_at_the_runner(
    shared: GatewayTestbed, orders: str, stream: bool
) -> None:
    runner = shared.runners[0]
    before = len(runner.heard("submit"))
    connection = send_raw(shared, orders, stream=stream)
    eventually(lambda: len(runner.heard("submit")) > before, 5, "the request arrives")
    mine = runner.heard("submit")[-1]["request"]
    left_at = now()
    connection.close()
    cancel = eventually(lambda: cancels_of(runner, mine), 10, "a cancel after the hang-up")
    assert cancel[0]["why"] == "client"
    print(f"cancel {1000 * (cancel[0]['at'] - left_at):.1f} ms after the hang-up")


def test_a_slow_reader_is_bounded_and_slows_nobody(shared: GatewayTestbed) -> None:
    runner = shared.runners[0]
    worker = psutil.Process(shared.gateway.pid).children()[0]
    slow = send_raw(shared, "tokens=1000000", stream=True)
    try:
        blocked = eventually(lambda: runner.heard("blocked"), 10, "the runner is out of credit")
        resident = worker.memory_info().rss
        assert len(chat(shared, "tokens=3000").json()["choices"][0]["message"]["content"]) > 3000
        assert blocked[-1]["made"] < 20_000
        assert worker.memory_info().rss - resident < 32 << 20
    finally:
        slow.close()


def test_a_request_can_be_stopped_by_its_id_and_ends_well(shared: GatewayTestbed) -> None:
    reader = Reader(shared, "tokens=1000000 every_ms=10")
    reader.wait_lines(3)
    name = reader.chunks[0]["id"]
    stopped = httpx.post(f"{shared.url}/v1/cancel/{name}")
    assert stopped.json() == {"id": name, "cancelled": True}
    reader.wait_end(5)
    assert reader.error is None
    assert reader.lines[-1] == "data: [DONE]"
    again = httpx.post(f"{shared.url}/v1/cancel/{name}")
    assert (again.status_code, again.json()) == (200, stopped.json())


def test_a_request_that_ended_by_itself_or_never_was_cannot_be_stopped(
    shared: GatewayTestbed,
) -> None:
    ended = chat(shared, "tokens=3").json()["id"]
    never = ended[: ended.rindex("-")] + "-ffffff"
    for name in (ended, never, "req-n1-h7-00000000-1", "req-nowhere-h0-00000000-1", "nonsense"):
        assert httpx.post(f"{shared.url}/v1/cancel/{name}").status_code == 404, name


def test_many_streams_at_once_are_all_served(shared: GatewayTestbed) -> None:
    def one(_: int) -> int:
        reader = Reader(shared, "tokens=200 every_ms=2")
        reader.wait_end(30)
        return len(reader.text.split())

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(one, range(32))) == [200] * 32


# --- what it tells of itself ------------------------------------------------------------------


def test_health_answers_at_once_while_streams_run(shared: GatewayTestbed) -> None:
    readers = [Reader(shared, "tokens=20000") for _ in range(4)]
    for reader in readers:
        reader.wait_lines(2)
    said = httpx.get(f"{shared.url}/health", timeout=5).json()
    assert said["status"] == "ok" and said["open_requests"] >= 4
    assert said["queue"].keys() == {"running", "waiting"} and "load_1m" in said
    assert isinstance(said["ranks"], list)
    for reader in readers:
        reader.wait_end(30)


def test_the_queue_lists_what_is_open(shared: GatewayTestbed) -> None:
    reader = Reader(shared, "tokens=1000000 every_ms=10", x_client_id="somebody")
    reader.wait_lines(2)
    requests = httpx.get(f"{shared.url}/queue").json()["requests"]
    assert [one["client"] for one in requests if one["client"]] == ["somebody"]
    httpx.post(f"{shared.url}/v1/cancel/{reader.chunks[0]['id']}")
    reader.wait_end(5)


def test_metrics_count_every_token_and_their_gaps(shared: GatewayTestbed) -> None:
    def counted(name: str) -> float:
        text = httpx.get(f"{shared.url}/metrics").text
        rows = [line for line in text.splitlines() if line.startswith(name + "{")]
        return sum(float(row.rpartition(" ")[2]) for row in rows)

    tokens = counted("shoal_generation_tokens_total")
    gaps = counted("shoal_inter_token_latency_seconds_count")
    reader = Reader(shared, "tokens=50 every_ms=1")
    reader.wait_end(10)
    assert counted("shoal_generation_tokens_total") == tokens + 50
    assert counted("shoal_inter_token_latency_seconds_count") == gaps + 49


def test_a_request_waits_no_longer_for_a_runner_than_for_its_first_token(
    shared: GatewayTestbed,
) -> None:
    def told() -> dict[str, float]:
        rows = httpx.get(f"{shared.url}/metrics").text.splitlines()
        values = (row.rpartition(" ") for row in rows if not row.startswith("#"))
        return {name.partition("{")[0]: float(value) for name, _, value in values}

    queue, first = "shoal_request_queue_time_seconds", "shoal_time_to_first_token_seconds"
    before = told()
    Reader(shared, "tokens=5 every_ms=1").wait_end(10)
    after = eventually(
        lambda: now if (now := told())[f"{queue}_count"] != before.get(f"{queue}_count", 0) else {},
        5, "the request is counted",
    )  # fmt: skip
    waited = after[f"{queue}_sum"] - before.get(f"{queue}_sum", 0.0)
    assert 0.0 <= waited <= after[f"{first}_sum"] - before.get(f"{first}_sum", 0.0)


def test_metrics_are_of_this_node_alone_and_of_every_rank_on_it(shared: GatewayTestbed) -> None:
    held = shared.holder.state.instances["inst-1"]
    lead = reading(held).model_copy(update={"node": NODE, "process": "runner:00"})
    ranks = {
        "runner:05": lead.model_copy(update={"process": "runner:05", "rank": 1, "active_bytes": 7}),
        "runner:06": lead.model_copy(update={"process": "runner:06", "node": NodeId("far")}),
    }
    for process, said in ranks.items():
        topic = reading_topic("runner", said.node, process)
        shared.do(lambda topic=topic, said=said: shared.holder.bus.publish(topic, said))

    def rows(name: str) -> list[str]:
        text = httpx.get(f"{shared.url}/metrics").text
        return [row for row in text.splitlines() if row.startswith(name + "{") and "inst-1" in row]

    memory = eventually(lambda: rows("shoal_runner_memory_bytes"), 5, "the follower's memory")
    assert [row.rpartition(" ")[2] for row in memory] == ["7.0"]
    assert 'instance_id="inst-1"' in memory[0] and ' instance="' not in memory[0]
    assert rows("shoal_num_requests_running") == [], "it is the lead's to tell"


def test_sensors_are_gauges_of_this_node_and_stand_in_the_state_of_all(
    shared: GatewayTestbed,
) -> None:
    apple = AcceleratorReading(
        vendor="apple", device="AGX", name="Apple M4", utilisation_ratio=0.21, gtt_used_bytes=7
    )
    radeon = AcceleratorReading(
        vendor="amd", device="0000:03:00.0", power_w=97.0, temperature_c=54.0, clock_mhz=1800.0,
        vram_total_bytes=9, vram_used_bytes=0,
    )  # fmt: skip
    for node, cards in ((NODE, (apple, radeon)), (NodeId("far"), (apple,))):
        said = HardwareReading(
            node=node, accelerators=cards, cpu_temperature_c=61.0, measured_at_s=0.0
        )
        topic = reading_topic("hardware", node)
        shared.do(lambda topic=topic, said=said: shared.holder.bus.publish(topic, said))

    def gauges() -> dict[str, float]:
        rows = httpx.get(f"{shared.url}/metrics").text.splitlines()
        told = [row for row in rows if row.startswith(("shoal_accelerator_", "shoal_cpu_"))]
        return {row.rpartition(" ")[0]: float(row.rpartition(" ")[2]) for row in told}

    found = eventually(gauges, 5, "the gauges")
    mine = f'node="{NODE}",vendor="apple"'
    amd = f'name="",node="{NODE}",vendor="amd"'
    assert found == {
        f'shoal_accelerator_utilisation_ratio{{device="AGX",name="Apple M4",{mine}}}': 0.21,
        f'shoal_accelerator_memory_used_bytes{{device="AGX",memory="gtt",name="Apple M4",{mine}}}':
            7.0,
        f'shoal_accelerator_memory_used_bytes{{device="0000:03:00.0",memory="vram",{amd}}}': 0.0,
        f'shoal_accelerator_memory_total_bytes{{device="0000:03:00.0",memory="vram",{amd}}}': 9.0,
        f'shoal_accelerator_power_watts{{device="0000:03:00.0",{amd}}}': 97.0,
        f'shoal_accelerator_temperature_celsius{{device="0000:03:00.0",{amd}}}': 54.0,
        f'shoal_accelerator_clock_hertz{{device="0000:03:00.0",{amd}}}': 1.8e9,
        f'shoal_cpu_temperature_celsius{{node="{NODE}"}}': 61.0,
    }  # fmt: skip

    page = (Path(__file__).parents[3] / "docs/operations/monitoring.md").read_text()
    assert [name for name in found if f"`{name.partition('{')[0]}`" not in page] == []

    def sensed() -> Any:
        told = httpx.get(f"{shared.url}/state").json()["telemetry"]["hardware"]
        return told if {NODE, "far"} <= set(told) else None

    told = eventually(sensed, 5, "both nodes' sensors")
    assert [one["device"] for one in told[NODE]["accelerators"]] == ["AGX", "0000:03:00.0"]
    assert told["far"]["accelerators"][0]["power_w"] is None


def test_each_request_leaves_one_line_in_the_log_without_its_text(shared: GatewayTestbed) -> None:
    reader = Reader(shared, "tokens=4 secret_of_the_prompt")
    reader.wait_end(10)
    name = reader.chunks[0]["id"].removeprefix("chatcmpl-")
    lines = eventually(
        lambda: [one for one in shared.log_lines() if one.get("request") == name], 5, "its line"
    )
    assert len(lines) == 1
    assert (lines[0]["tokens"], lines[0]["outcome"], lines[0]["status"]) == (4, "finished", 200)
    assert "secret_of_the_prompt" not in Path(f"{shared.folder}/gateway.log").read_text()


# --- commands -----


def test_instances_are_placed_planned_and_deleted_by_commands_to_the_holder(
    shared: GatewayTestbed,
) -> None:
    url = shared.url
    placed = httpx.post(f"{url}/place_instance", json={"model": MODEL, "min_nodes": 2})
    assert placed.status_code == 200 and placed.json()["instance"] == "inst-1"
    assert shared.holder.commands[-1].min_nodes == 2
    planned = httpx.get(f"{url}/instance/placement", params={"model": MODEL})
    assert planned.status_code == 200
    assert shared.holder.commands[-1].dry_run
    hand = {"model": MODEL, "layers": {"b": 2, "a": 1}, "sharding": "pipeline"}
    assert httpx.post(f"{url}/place_instance", json=hand).status_code == 200
    assert list(shared.holder.commands[-1].layers.items()) == [("b", 2), ("a", 1)]
    query = {"model": MODEL, "excluded_nodes": "testbed", "sharding": "tensor"}
    assert httpx.get(f"{url}/instance/previews", params=query).status_code == 200
    asked = shared.holder.commands[-1]
    assert asked.previews and asked.dry_run and asked.sharding == "tensor"
    assert asked.excluded_nodes == ("n1",), "a node's name stands for its id"
    assert httpx.post(f"{url}/place_instance", json={"model": MODEL, "kv": "window:99"}).is_success
    assert shared.holder.commands[-1].kv == "window:99"
    assert httpx.get(f"{url}/instance/previews", params={**query, "kv": "4bit"}).is_success
    assert shared.holder.commands[-1].kv == "4bit"
    for asking in (
        httpx.post(f"{url}/place_instance", json={"model": MODEL, "kv": "rotated"}),
        httpx.get(f"{url}/instance/previews", params={**query, "kv": "rotated"}),
    ):
        assert asking.status_code == 400
        assert asking.json()["error"]["param"] == "kv"
        assert "rotated KV is not supported" in asking.json()["error"]["message"]
    unknown = httpx.get(f"{url}/instance/previews", params={**query, "excluded_nodes": "nobody"})
    assert unknown.status_code == 400 and "testbed" in unknown.json()["error"]["message"]
    deleted = httpx.delete(f"{url}/instance/inst-1", params={"drain_s": 3})
    assert deleted.status_code == 200
    assert shared.holder.commands[-1].drain_s == 3
    wrong = httpx.post(f"{url}/place_instance", json={"model": MODEL, "pined": True})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "pined"
    assert httpx.get(f"{url}/instance/inst-1").json()["instance"]["model"] == MODEL
    assert httpx.get(f"{url}/instance/nobody").status_code == 404
    shared.holder.refusal = Refusal(
        reason="insufficient_memory", message="needs 80.0 GB, 1.0 GB free", facts={"need_gb": 80}
    )
    try:
        refused = httpx.post(f"{url}/place_instance", json={"model": MODEL})
    finally:
        shared.holder.refusal = None
    assert refused.status_code == 507
    assert refused.json()["error"]["need_gb"] == 80


def test_ollama_loads_and_unloads_by_empty_requests(shared: GatewayTestbed) -> None:
    url = f"{shared.url}/api/generate"
    loaded = httpx.post(url, json={"model": MODEL, "keep_alive": "10m"})
    assert loaded.status_code == 200 and loaded.json()["done"] is True
    assert any(one.kind == "place_model" for one in shared.holder.commands)
    told = eventually(
        lambda: [one for one in shared.holder.commands if one.kind == "keep_alive"], 5, "the wish"
    )
    assert told[-1].keep_alive_s == 600
    unloaded = httpx.post(url, json={"model": MODEL, "keep_alive": 0})
    assert unloaded.json()["done_reason"] == "unload"
    assert shared.holder.commands[-1].kind == "delete_instance"


# --- connections ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict() -> Iterator[GatewayTestbed]:
    """One gateway with little patience, and room for few connections."""
    with gateway_testbed(headers_s=0.5, body_s=1.0, max_connections=6) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        yield made


def _until_closed(connection: socket.socket) -> bytes:
    said = b""
    while piece := connection.recv(4096):
        said += piece
    return said


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc"])
def test_a_connection_without_complete_headers_is_closed_in_words(
    strict: GatewayTestbed, sent: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", strict.port), timeout=5) as connection:
        connection.sendall(sent)
        assert _until_closed(connection).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_trickles_ends_in_a_timeout_of_its_own(strict: GatewayTestbed) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"
    with socket.create_connection(("127.0.0.1", strict.port), timeout=5) as connection:
        connection.sendall(head)
        for _ in range(20):
            connection.sendall(b" ")
            time.sleep(0.1)
            if select.select([connection], [], [], 0)[0]:
                break
        said = _until_closed(connection)
    assert said.startswith(b"HTTP/1.1 408 ") and b"not complete within 1 s" in said


NO_BYTE: Mapping[bytes, tuple[bytes, bytes]] = {
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99": (
        b"408", b"not complete within 1 s"
    ),
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked": (
        b"408", b"not complete within 1 s"
    ),
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 99": (
        b"403", b"is not allowed"
    ),
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999": (
        b"413", b"body_too_large"
    ),
    b"POST /apikeys HTTP/1.1\r\nHost: localhost\r\nVia: 1.1 a\r\nContent-Length: 999999": (
        b"403", b"owner_only"
    ),
    b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999": (b"404", b"/nowhere"),
}  # fmt: skip
"""Heads of requests whose bodies never come, with what is to be answered."""


@pytest.mark.parametrize("head", NO_BYTE, ids=lambda head: head.split(b"\r\n")[-1].decode())
def test_a_body_of_which_no_byte_comes_has_our_deadline_and_what_needs_none_is_told_at_once(
    strict: GatewayTestbed, head: bytes
) -> None:
    status, words = NO_BYTE[head]
    with socket.create_connection(("127.0.0.1", strict.port), timeout=20) as connection:
        connection.sendall(head + b"\r\n\r\n")
        said = _until_closed(connection)
    assert said.startswith(b"HTTP/1.1 %b " % status), said
    assert words in said and b"application/json" in said, said
    assert b"connection: close" in said.lower(), "a client would send its next request here"


HALF: Mapping[bytes, tuple[bytes, bytes]] = {
    b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n": (b"200", b""),
    b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n{": (b"400", b"JSON"),
    b"POST /pin HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n": (
        b"400", b"before the request body was complete"
    ),
    b"POST /pin HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{}": (
        b"400", b"before the request body was complete"
    ),
    b"GET /livez HTTP/1.1\r\nHost: loc": (b"400", b"before the request's headers were complete"),
}  # fmt: skip
"""What a client says before it ends its side of the connection, with what it is to be answered."""


@pytest.mark.parametrize("sent", HALF, ids=lambda sent: repr(sent[:8] + sent[-8:]))
def test_a_client_that_ends_its_side_of_the_connection_is_answered(
    strict: GatewayTestbed, sent: bytes
) -> None:
    status, words = HALF[sent]
    with socket.create_connection(("127.0.0.1", strict.port), timeout=20) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        said = _until_closed(connection)
    assert said.startswith(b"HTTP/1.1 %b " % status), said
    assert words in said, said


def test_a_chat_whose_client_ends_its_side_is_stopped_and_told_so(strict: GatewayTestbed) -> None:
    with send_raw(strict, "tokens=100000", stream=False) as connection:
        connection.settimeout(20)
        connection.shutdown(socket.SHUT_WR)
        said = _until_closed(connection)
    assert said.startswith(b"HTTP/1.1 499 ") and b"the client went away" in said, said


def test_connections_beyond_the_limit_are_refused_and_the_others_served(
    strict: GatewayTestbed,
) -> None:
    with contextlib.ExitStack() as opened:
        held = []
        for _ in range(6):
            connection = socket.create_connection(("127.0.0.1", strict.port), timeout=5)
            held.append(opened.enter_context(connection))
        with socket.create_connection(("127.0.0.1", strict.port), timeout=5) as one:
            said = _until_closed(one)
        assert said.startswith(b"HTTP/1.1 503 ") and b"Retry-After" in said
        held[0].sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert _until_closed(held[0]).startswith(b"HTTP/1.1 200 ")
    eventually(lambda: ready(strict), 10, "connections are taken again")


def test_what_a_gateway_answers_is_what_its_document_shows(
    shared: GatewayTestbed, shown_answers: ShownAnswers
) -> None:
    """Each path that takes no name, and some that do; `conftest` holds the answers to the schemas,
    here and in every other test of a gateway."""
    named = ["/v1/models/shoal-tiny", "/instance/inst-1", "/store/models/shoal-tiny"]
    named += ["/instance/placement?model=shoal-tiny"]
    plain = [
        route.path
        for route in ROUTES
        if route.method == "GET" and route.answer is not None and "{" not in route.path
    ]
    with httpx.Client(base_url=shared.url, timeout=20) as client:
        for path in [*plain, *named]:
            client.get(path)
        for path in ("/v1/models", "/v1/models/shoal-tiny", "/v1/v1/models"):
            client.get(path, headers={"anthropic-version": "2023-06-01"})
        client.post("/api/show", json={"model": MODEL})
        for path, asked in (("/v1/chat/completions", {}), ("/v1/messages", {}), ("/api/chat", {})):
            client.post(path, json=asked)
        for stream in (False, True):
            client.post("/v1/chat/completions", json=body("say 3", stream=stream))
            client.post("/v1/messages", json=body("say 3", stream=stream, max_tokens=9))
            client.post("/api/chat", json=body("say 3", stream=stream))
            client.post("/v1/responses", json={"model": MODEL, "input": "say 3", "stream": stream})
    checked = {(method, path) for method, path, status in shown_answers.checked if status == 200}
    assert checked >= {("GET", path) for path in plain} - UNSEEN
    assert checked >= {("POST", "/v1/chat/completions"), ("POST", "/api/show")}
    refused = {path for _, path, status in shown_answers.checked if status == 400}
    assert refused >= {"/v1/chat/completions", "/v1/messages", "/api/chat"}
