"""A real gateway between real clients and synthetic runners: every way an exchange may go."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from bus.clock import now
from bus.ids import InstanceId
from bus.messages.events import GenerationOpened, InstanceRemoved
from tests.harness.stage import MODEL, Stage, eventually, stage


@pytest.fixture(scope="module")
def shared() -> Iterator[Stage]:
    """One gateway with short deadlines and one ready instance, for what leaves no trace."""
    with stage(request_timeout_s=2.0, load_timeout_s=3.0, body_limit_bytes=1 << 20) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        yield made


def ready(made: Stage) -> bool:
    return MODEL in httpx.get(f"{made.url}/health").json()["models_ready"]


def body(orders: str, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": orders}], **more}


def chat(made: Stage, orders: str, **more: Any) -> httpx.Response:
    return httpx.post(f"{made.url}/v1/chat/completions", json=body(orders, **more), timeout=30)


class Reader:
    """A stream read in a thread: its lines, when they came, how it ended."""

    def __init__(self, made: Stage, orders: str, **more: Any) -> None:
        self.lines: list[str] = []
        self.status = 0
        self.ended_at: float | None = None
        self._made, self._body = made, body(orders, stream=True, **more)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait_lines(self, count: int) -> None:
        eventually(lambda: len(self.lines) >= count, 15, f"{count} lines")

    def wait_end(self, timeout_s: float) -> float:
        eventually(lambda: self.ended_at is not None, timeout_s, "the stream ends")
        assert self.ended_at is not None
        return self.ended_at

    @property
    def chunks(self) -> list[dict[str, Any]]:
        data = [line[6:] for line in self.lines if line.startswith("data: {")]
        return [json.loads(one) for one in data]

    @property
    def text(self) -> str:
        return "".join(
            one["choices"][0]["delta"].get("content", "")
            for one in self.chunks
            if one.get("choices")
        )

    @property
    def error(self) -> dict[str, Any] | None:
        return next((one["error"] for one in self.chunks if "error" in one), None)

    def _read(self) -> None:
        url = f"{self._made.url}/v1/chat/completions"
        with (
            httpx.Client(timeout=60) as client,
            client.stream("POST", url, json=self._body) as response,
        ):
            self.status = response.status_code
            self.lines.extend(line for line in response.iter_lines() if line)
        self.ended_at = now()


# --- answers ----------------------------------------------------------------------------------


def test_a_stream_has_its_role_first_its_tokens_in_order_and_done_last(shared: Stage) -> None:
    reader = Reader(shared, "tokens=20", stream_options={"include_usage": True})
    reader.wait_end(10)
    assert reader.status == 200
    assert reader.chunks[0]["choices"][0]["delta"] == {"role": "assistant"}
    assert reader.text.split()[:3] == ["one", "two", "three"]
    assert len(reader.text.split()) == 20
    assert reader.chunks[-1]["usage"]["completion_tokens"] == 20
    assert reader.lines[-1] == "data: [DONE]"


def test_a_stream_longer_than_its_credit_comes_whole(shared: Stage) -> None:
    reader = Reader(shared, "tokens=5000")
    reader.wait_end(20)
    assert len(reader.text.split()) == 5000
    assert reader.error is None


def test_a_whole_answer_of_several_choices_longer_than_their_credit(shared: Stage) -> None:
    answer = chat(shared, "tokens=300", n=3).json()
    assert [len(one["message"]["content"].split()) for one in answer["choices"]] == [300] * 3
    assert answer["usage"]["completion_tokens"] == 900


def test_several_prompts_are_one_answer(shared: Stage) -> None:
    asked = {"model": MODEL, "prompt": ["tokens=2", "tokens=3"]}
    answer = httpx.post(f"{shared.url}/v1/completions", json=asked).json()
    assert [one["text"] for one in answer["choices"]] == ["one two ", "one two three "]


def test_ollama_streams_lines_at_both_of_its_paths(shared: Stage) -> None:
    for path in ("/api/chat", "/ollama/api/chat"):
        answer = httpx.post(f"{shared.url}{path}", json=body("tokens=3"))
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert "".join(one["message"]["content"] for one in lines) == "one two three "
        assert lines[-1]["done"] is True


def test_short_names_mean_the_only_model_that_they_can(shared: Stage) -> None:
    for name in (f"{MODEL}:latest", "Shoal-Tiny"):
        answer = httpx.post(f"{shared.url}/v1/chat/completions", json={**body("x"), "model": name})
        assert answer.status_code == 200
        assert answer.json()["model"] == name


# --- refusals ---------------------------------------------------------------------------------


def test_an_unknown_model_is_a_404_that_names_the_way(shared: Stage) -> None:
    asked = {**body("hi"), "model": "nobody/nothing"}
    openai = httpx.post(f"{shared.url}/v1/chat/completions", json=asked)
    assert openai.status_code == 404
    assert "shoal pull nobody/nothing" in openai.json()["error"]["message"]
    ollama = httpx.post(f"{shared.url}/api/chat", json=asked)
    assert ollama.status_code == 404
    assert isinstance(ollama.json()["error"], str)


def test_a_full_queue_is_a_429_with_retry_after_and_position(shared: Stage) -> None:
    for stream in (False, True):
        answer = chat(shared, "refuse=queue_full", stream=stream)
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "3"
        assert answer.headers["x-queue-position"] == "9"
        assert answer.json()["error"]["position"] == 9


def test_a_failure_before_the_first_byte_is_a_status(shared: Stage) -> None:
    answer = chat(shared, "tokens=0 fail=context_length")
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_failure_in_a_stream_is_an_error_frame_and_done(shared: Stage) -> None:
    reader = Reader(shared, "tokens=5 fail=memory_pressure")
    reader.wait_end(10)
    assert len(reader.text.split()) == 5
    assert reader.error is not None and reader.error["code"] == "memory_pressure"
    assert reader.lines[-1] == "data: [DONE]"


def test_a_lost_entry_ends_the_request_instead_of_its_text_being_wrong(shared: Stage) -> None:
    reader = Reader(shared, "tokens=20 skip=7 every_ms=1")
    reader.wait_end(10)
    assert reader.error is not None and reader.error["code"] == "internal_error"
    assert len(reader.text.split()) == 7


def test_no_progress_is_a_504_and_the_work_is_cancelled(shared: Stage) -> None:
    runner = shared.runners[0]
    answer = chat(shared, "silent=1")
    assert answer.status_code == 504
    mine = runner.heard("submit")[-1]["request"]
    cancel = eventually(lambda: cancels_of(runner, mine), 2, "a cancel")
    assert cancel[0]["why"] == "deadline"


def test_a_clients_own_timeout_bounds_the_whole_answer(shared: Stage) -> None:
    answer = chat(shared, "tokens=100000 every_ms=10", x_timeout_s=0.5)
    assert answer.status_code == 504
    assert "0.5 s" in answer.json()["error"]["message"]


def test_bodies_too_large_or_wrong_are_refused_in_their_dialect(shared: Stage) -> None:
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


def test_unknown_paths_and_methods_answer_in_the_dialect_of_the_path(shared: Stage) -> None:
    assert httpx.get(f"{shared.url}/v1/nothing").json()["error"]["code"] == "not_found"
    assert isinstance(httpx.get(f"{shared.url}/api/nothing").json()["error"], str)
    wrong = httpx.get(f"{shared.url}/v1/chat/completions")
    assert wrong.status_code == 405
    assert wrong.json()["error"]["code"] == "method_not_allowed"
    assert "POST" in wrong.headers["allow"]


def test_a_strangers_host_name_or_page_is_refused(shared: Stage) -> None:
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


# --- clients that leave, stall, cancel --------------------------------------------------------


def cancels_of(runner: Any, request: str) -> list[dict[str, Any]]:
    return [one for one in runner.heard("cancel") if one["request"] == request]


def send_raw(made: Stage, orders: str, *, stream: bool) -> socket.socket:
    data = json.dumps(body(orders, stream=stream)).encode()
    connection = socket.create_connection(("127.0.0.1", made.port))
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)
    )
    return connection


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("orders", ["tokens=1000000 every_ms=20", "silent=1"])
def test_a_hang_up_is_a_cancel_at_the_runner(shared: Stage, orders: str, stream: bool) -> None:
    runner = shared.runners[0]
    before = len(runner.heard("submit"))
    connection = send_raw(shared, orders, stream=stream)
    eventually(lambda: len(runner.heard("submit")) > before, 5, "the request arrives")
    mine = runner.heard("submit")[-1]["request"]
    left_at = now()
    connection.close()
    cancel = eventually(lambda: cancels_of(runner, mine), 3, "a cancel after the hang-up")
    assert cancel[0]["why"] == "client"
    print(f"cancel {1000 * (cancel[0]['at'] - left_at):.1f} ms after the hang-up")


def test_a_slow_reader_is_bounded_and_slows_nobody(shared: Stage) -> None:
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


def test_a_request_can_be_stopped_by_its_id_and_ends_well(shared: Stage) -> None:
    reader = Reader(shared, "tokens=1000000 every_ms=10")
    reader.wait_lines(3)
    name = reader.chunks[0]["id"]
    stopped = httpx.post(f"{shared.url}/v1/cancel/{name}")
    assert stopped.json() == {"id": name, "cancelled": True}
    reader.wait_end(5)
    assert reader.error is None
    assert reader.lines[-1] == "data: [DONE]"
    again = httpx.post(f"{shared.url}/v1/cancel/{name}")
    assert again.status_code == 404


def test_many_streams_at_once_are_all_served(shared: Stage) -> None:
    def one(_: int) -> int:
        reader = Reader(shared, "tokens=200 every_ms=2")
        reader.wait_end(30)
        return len(reader.text.split())

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(one, range(32))) == [200] * 32


# --- what it tells of itself ------------------------------------------------------------------


def test_health_answers_at_once_while_streams_run(shared: Stage) -> None:
    readers = [Reader(shared, "tokens=20000") for _ in range(4)]
    for reader in readers:
        reader.wait_lines(2)
    assert httpx.get(f"{shared.url}/health", timeout=5).json()["status"] == "ok"
    for reader in readers:
        reader.wait_end(30)


def test_the_queue_lists_what_is_open(shared: Stage) -> None:
    reader = Reader(shared, "tokens=1000000 every_ms=10", x_client_id="somebody")
    reader.wait_lines(2)
    requests = httpx.get(f"{shared.url}/queue").json()["requests"]
    assert [one["client"] for one in requests if one["client"]] == ["somebody"]
    httpx.post(f"{shared.url}/v1/cancel/{reader.chunks[0]['id']}")
    reader.wait_end(5)


def test_metrics_count_every_token_and_their_gaps(shared: Stage) -> None:
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


def test_each_request_leaves_one_line_in_the_log_without_its_text(shared: Stage) -> None:
    reader = Reader(shared, "tokens=4 secret_of_the_prompt")
    reader.wait_end(10)
    name = reader.chunks[0]["id"].removeprefix("chatcmpl-")
    lines = eventually(
        lambda: [one for one in shared.log_lines() if one.get("request") == name], 5, "its line"
    )
    assert len(lines) == 1
    assert (lines[0]["tokens"], lines[0]["outcome"], lines[0]["status"]) == (4, "finished", 200)
    assert "secret_of_the_prompt" not in Path(f"{shared.folder}/gateway.log").read_text()


# --- instances that come, go, freeze, die -----------------------------------------------------


def test_a_request_waits_for_its_model_with_progress_and_is_served_once_it_is_ready() -> None:
    with stage(load_timeout_s=20.0) as made:
        reader = Reader(made, "tokens=5")
        demand = eventually(lambda: made.holder.demands, 10, "the demand is published")
        assert demand[-1].models[0].model == MODEL
        eventually(lambda: any("waiting for" in line for line in reader.lines), 10, "progress")
        made.runner()
        reader.wait_end(10)
        assert len(reader.text.split()) == 5
        eventually(lambda: not made.holder.demands[-1].models, 5, "the demand is withdrawn")


def test_a_model_that_does_not_load_in_time_is_a_503_with_retry_after() -> None:
    with stage(load_timeout_s=1.0) as made:
        answer = chat(made, "tokens=5")
        assert answer.status_code == 503
        assert "retry-after" in answer.headers
        assert answer.json()["error"]["code"] == "model_loading"


def test_a_killed_runner_ends_streams_in_words_and_the_next_is_served() -> None:
    with stage() as made:
        first = made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        reader = Reader(made, "tokens=1000000 every_ms=10")
        reader.wait_lines(3)
        killed_at = now()
        first.signal(signal.SIGKILL)
        seconds = reader.wait_end(10) - killed_at
        print(f"terminal {seconds:.2f} s after the kill")
        assert reader.error is not None and reader.error["code"] == "runner_lost"
        assert reader.lines[-1] == "data: [DONE]"
        made.happen(
            GenerationOpened(instance=InstanceId("inst-1"), generation=2, why="runner ended")
        )
        made.runner(generation=2)
        assert chat(made, "tokens=3").status_code == 200


def test_a_frozen_runner_ends_streams_in_words() -> None:
    with stage() as made:
        runner = made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        reader = Reader(made, "tokens=1000000 every_ms=10")
        reader.wait_lines(3)
        frozen_at = now()
        runner.signal(signal.SIGSTOP)
        seconds = reader.wait_end(45) - frozen_at
        print(f"terminal {seconds:.2f} s after the freeze")
        assert reader.error is not None and reader.error["code"] == "runner_lost"


def test_a_removed_instance_ends_its_streams_in_words() -> None:
    with stage() as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        reader = Reader(made, "tokens=1000000 every_ms=10")
        reader.wait_lines(3)
        made.happen(InstanceRemoved(instance=InstanceId("inst-1"), why="deleted"))
        reader.wait_end(5)
        assert reader.error is not None and reader.error["code"] == "model_unavailable"


def test_a_refused_request_is_tried_at_the_other_instance_once() -> None:
    with stage() as made:
        made.runner("inst-1")
        made.runner("inst-2")
        eventually(lambda: ready(made), 10, "the instances are ready")
        answer = chat(made, "refuse=queue_full")
        assert answer.status_code == 429
        assert [len(one.heard("submit")) for one in made.runners] == [1, 1]


def test_an_unanswered_submit_goes_to_the_other_instance() -> None:
    with stage() as made:
        one, other = made.runner("inst-1"), made.runner("inst-2")
        eventually(lambda: ready(made), 10, "the instances are ready")
        one.signal(signal.SIGSTOP)
        for number in range(6):
            assert chat(made, f"tokens=3 number={number}").status_code == 200
        assert len(other.heard("submit")) == 6


# --- the process ------------------------------------------------------------------------------


def test_sigterm_lets_a_short_stream_finish_and_ends_a_long_one_in_words() -> None:
    with stage(drain_s=2.0) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        short = Reader(made, "tokens=100 every_ms=10")
        long = Reader(made, "tokens=1000000 every_ms=10")
        short.wait_lines(3)
        long.wait_lines(3)
        made.gateway.send_signal(signal.SIGTERM)
        short.wait_end(10)
        long.wait_end(10)
        assert short.error is None and len(short.text.split()) == 100
        assert long.error is not None and long.error["code"] == "model_unavailable"
        assert made.gateway.wait(10) == 0
        name = long.chunks[0]["id"].removeprefix("chatcmpl-")
        assert eventually(lambda: cancels_of(made.runners[0], name), 5, "the cancel")


def test_keys_are_asked_for_in_the_words_of_the_dialect() -> None:
    from gateway.keys import hashed

    with stage(keys=[hashed("sk-one"), hashed("sk-two")]) as made:
        url = f"{made.url}/v1/models"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url).json()["error"]["code"] == "invalid_api_key"
        assert isinstance(httpx.get(f"{made.url}/api/tags").json()["error"], str)
        wrong = httpx.get(url, headers={"authorization": "Bearer sk-three"})
        assert wrong.status_code == 401
        for headers in ({"authorization": "Bearer sk-one"}, {"x-api-key": "sk-two"}):
            assert httpx.get(url, headers=headers).status_code == 200
        assert httpx.get(f"{made.url}/health").status_code == 200


def test_two_http_processes_share_cancels_lists_and_counts() -> None:
    with stage(processes=2) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        readers = [Reader(made, "tokens=1000000 every_ms=10") for _ in range(12)]
        for reader in readers:
            reader.wait_lines(3)
        names = [reader.chunks[0]["id"] for reader in readers]
        assert {name.split("-")[3] for name in names} == {"h0", "h1"}
        assert len(httpx.get(f"{made.url}/queue").json()["requests"]) == 12
        for name in names:
            assert httpx.post(f"{made.url}/v1/cancel/{name}").status_code == 200
        for reader in readers:
            reader.wait_end(5)
        text = httpx.get(f"{made.url}/metrics").text
        row = next(r for r in text.splitlines() if r.startswith("shoal_requests_total"))
        assert float(row.rpartition(" ")[2]) == 12
