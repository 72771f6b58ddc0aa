"""Real processes, real signals: what a client sees of each fault, and how soon."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from bus.links.reactor import REOPEN_S, SOCKET_GONE
from bus.switchboard.tap_client import listen
from conf.paths import means_of
from conf.settings import load_settings
from tests.harness.mixed_streams import begun, check_same
from tests.harness.nodes import MODEL, SERVICES, Node, Stream, eventually, kill, running_node
from tests.processes.conftest import Ledger

LONG = {"max_tokens": 1500, "ignore_eos": True}
SHORTER = {"max_tokens": 700, "ignore_eos": True}
RESUMED = {"max_tokens": 250, "ignore_eos": True}
"""Shorter than the 279 tokens after which two tokens of this story are about equally likely: a
prompt and single steps round differently, and a resumed answer reads its text as a prompt."""
STORY = "Tell me a long story about a fish."


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with running_node() as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(node: Node) -> Stream:
    """What a stream says that no fault touches."""
    stream = node.stream(STORY, **SHORTER).wait(120)
    assert stream.done and stream.finish == "length", saw(stream)
    return stream


@pytest.fixture(autouse=True)
def whole(node: Node) -> Iterator[None]:
    """Every fault begins with a node that serves, and ends with one, unless it was taken down."""
    if not node.all_processes():
        node.up()
    eventually(node.ready, 60, "the node serves before the fault")
    yield
    if not node.all_processes():
        return
    eventually(node.ready, 60, "the node serves after the fault")
    assert node.chat("hi", max_tokens=4).status_code == 200


def saw(stream: Stream) -> str:
    if stream.error is not None:
        return f"error {stream.error.get('code') or stream.error.get('type')}"
    return f"finish {stream.finish}" if stream.done else f"broken {stream.broken}"


def generations(node: Node) -> dict[str, int]:
    """The generation of each instance."""
    return {name: i["generation"] for name, i in node.state()["instances"].items()}


def wait_back(node: Node, before: dict[str, int]) -> None:
    """Wait for another generation or instance that serves; where none comes, say what the node says
    of it."""

    def is_back() -> bool:
        return node.ready() and generations(node) not in ({}, before)

    try:
        eventually(is_back, 60, "the model is back")
    except AssertionError as late:
        told = [
            (one["instance"], one["status"], one["generation"], one.get("why"))
            for one in node.state()["instances"].values()
        ]
        raise AssertionError(f"{late}; before {before}, now {told}") from late


def gap_s(stream: Stream) -> float:
    """The longest time between two pieces of a stream."""
    return max(after - before for before, after in pairwise(stream.at))


def since(at: float, stream: Stream) -> float:
    assert stream.ended_at is not None
    return stream.ended_at - at


def test_x01_streams_of_all_kinds_outlive_a_killed_runner(node: Node, ledger: Ledger) -> None:
    before, kinds = generations(node), ("text", "logprobs", "choices", "schema", "tools")
    undisturbed = begun(node, *kinds, max_tokens=150)
    for stream in undisturbed.values():
        stream.wait(120)
    streams = begun(node, *kinds, max_tokens=150)
    streams["text"].flowing(30)
    kill(node.runner()[1])
    check_same(streams, undisturbed)
    wait_back(node, before)
    seconds = max(stream.gap_s for stream in streams.values())
    ledger("X01 kill -9 runner", saw="a pause", seconds=seconds, bound_s=15, reloaded=1)


def take_a_fresh_copy(node: Node) -> None:
    """Load the model anew: three failures of one copy within a minute give it up, and those of the
    fault before would count."""
    for instance in node.state()["instances"]:
        assert node.http.delete(f"/instance/{instance}").status_code in (200, 202)
        eventually(lambda one=instance: one not in node.state()["instances"], 30, "it is removed")
    assert node.chat("hi", max_tokens=4).status_code == 200


def test_a_killed_runners_flight_recorder_is_kept_by_its_worker(node: Node) -> None:
    eventually(node.ready, 60, "the model is loaded")
    answered = node.chat("Hi.", max_tokens=4)
    assert answered.status_code == 200
    stream = node.stream("Tell me a long story.", max_tokens=500, ignore_eos=True).flowing()
    _, pid = node.runner()
    kill(pid)

    def ended() -> list[dict[str, Any]]:
        """Return what diagnostics tell of that runner, which is gone."""
        told = node.http.get("/v1/diagnostics/node").json()
        return [one for one in told.get("ended", []) if one["pid"] == pid]

    (found,) = eventually(ended, 30, "diagnostics tell of the runner that was killed")
    request = answered.json()["id"].removeprefix("chatcmpl-")
    phases = [one["phase"] for one in found["recorder"] if one.get("request_id") == request]
    assert phases[0] == "task_submission" and phases[-1] == "completion", found["recorder"]
    open_ones = {one.get("request_id") for one in found["recorder"]} - {request, None}
    assert open_ones, "the request that was open when it was killed is there too"
    assert found["exit_code"] != 0 and found["instance"]
    stream.wait(60)
    eventually(node.ready, 60, "the node serves again")


def test_a_long_prompt_outlives_its_instance_on_the_disk(node: Node) -> None:
    """KV that the first runner wrote is where the second one starts, and the text is the same."""
    take_a_fresh_copy(node)
    text = "The tide comes in and the tide goes out. " * 65

    def ask() -> tuple[str, int]:
        answer = node.chat(text, max_tokens=12).json()
        assert answer["usage"]["prompt_tokens"] >= 1024
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["message"]["content"], cached

    wanted, cached = ask()
    assert cached == 0
    kept = node.home / "state" / "kv" / MODEL
    eventually(lambda: list(kept.glob("*/*.safetensors")), 30, "the prompt's KV is on the disk")
    (instance,) = node.state()["instances"]
    assert node.http.delete(f"/instance/{instance}").status_code in (200, 202)
    eventually(lambda: instance not in node.state()["instances"], 30, "the instance is removed")
    again, cached = ask()
    assert again == wanted and cached >= 1024
    assert node.shoal("kv", "purge", MODEL).returncode == 0
    assert not list(kept.glob("*/*"))


def test_x02_a_stream_outlives_a_frozen_runner(
    node: Node, undisturbed: Stream, ledger: Ledger
) -> None:
    take_a_fresh_copy(node)
    before = generations(node)
    stream = node.stream(STORY, **RESUMED).flowing()
    frozen = node.runner()[1]
    kill(frozen, signal.SIGSTOP)
    stream.wait(120)
    assert (stream.error, stream.finish) == (None, "length"), saw(stream)
    assert stream.text and undisturbed.text.startswith(stream.text), saw(stream)
    eventually(lambda: not psutil.pid_exists(frozen), 60, "the frozen runner is gone")
    wait_back(node, before)
    ledger("X02 SIGSTOP runner", saw="a pause", seconds=gap_s(stream), bound_s=25, reloaded=1)


def test_x03_streams_outlive_an_instance_that_is_deleted(
    node: Node, undisturbed: Stream, ledger: Ledger
) -> None:
    stream = node.stream(STORY, **RESUMED).flowing()
    (instance,) = node.state()["instances"]
    assert node.http.delete(f"/instance/{instance}").status_code in (200, 202)
    stream.wait(120)
    assert (stream.error, stream.finish) == (None, "length"), saw(stream)
    assert stream.text and undisturbed.text.startswith(stream.text), saw(stream)
    eventually(lambda: instance not in node.state()["instances"], 30, "the instance is removed")
    again = node.chat("hi", max_tokens=4)
    assert again.status_code == 200, again.text
    ledger("X03 delete instance", saw="a pause", seconds=gap_s(stream), bound_s=15, reloaded=1)


def test_x05_an_impossible_placement_is_refused_with_its_arithmetic(
    node: Node, ledger: Ledger
) -> None:
    folder = node.home / "data" / "models" / "too-big"
    make_huge_model(folder)
    at = time.monotonic()

    def answer() -> httpx.Response | None:
        reply = node.http.post("/place_instance", json={"model": "too-big"})
        return None if reply.status_code == 404 else reply

    reply = eventually(answer, 45, "the worker sees the new model")
    seconds = time.monotonic() - at
    assert reply.status_code in (400, 507), reply.text
    assert "GB" in reply.text or "GiB" in reply.text
    asked = node.chat("hello", model="too-big")
    assert asked.status_code == 507, asked.text
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    seen = f"{reply.status_code} {reply.json()['error']['message'][:60]}"
    ledger("X05 impossible placement", saw=seen, seconds=seconds, bound_s=40, reloaded=0)


def make_huge_model(folder: Any) -> None:
    """A model whose safetensors header claims 800 GB; the file is sparse."""
    folder.mkdir(parents=True)
    config = {
        "model_type": "qwen3", "hidden_size": 8192, "num_hidden_layers": 80,
        "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    size = 800 * 10**9
    header = json.dumps(
        {"model.w": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}
    ).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)


def test_x06_thirty_two_at_once_are_served_or_refused_in_bounded_time(
    node: Node, ledger: Ledger
) -> None:
    at = time.monotonic()
    streams = [node.stream(f"Count from 1 to {n + 5}.", max_tokens=48) for n in range(32)]
    for stream in streams:
        stream.wait(120)
    served = [s for s in streams if s.status == 200 and s.done and s.error is None]
    refused = [s for s in streams if s.status == 429]
    assert len(served) + len(refused) == 32, [saw(s) for s in streams]
    assert len(served) >= 32 - len(refused) and served
    firsts = sorted(s.at[0] - s.started_at for s in served if s.at)
    p99 = firsts[int(0.99 * (len(firsts) - 1))]
    seen = f"{len(served)} served, {len(refused)} refused, p99 TTFT {p99:.2f} s"
    ledger("X06 32 concurrent", saw=seen, seconds=time.monotonic() - at, bound_s=60, reloaded=0)


BAD = {
    "misspelt field": {"temprature": 1},
    "bad schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "no-such-type"}},
        }
    },
    "bad image": {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,x"}}],
            }
        ]
    },
    "negative temperature": {"temperature": -1},
    "huge max_tokens": {"max_tokens": -5},
    "bad bias": {"logit_bias": {"999999": 5}},
    "empty messages": {"messages": []},
    "long prompt": {"messages": [{"role": "user", "content": "fish " * 20_000}]},
}


def test_x07_bad_requests_fail_alone(node: Node, ledger: Ledger) -> None:
    before = generations(node)
    stream = node.stream(STORY, max_tokens=400, ignore_eos=True).flowing()
    at = time.monotonic()
    statuses: dict[str, int] = {}
    for name, change in BAD.items():
        reply = node.chat("hello", **change)
        statuses[name] = reply.status_code
        assert reply.status_code == 400, (name, reply.status_code, reply.text)
        assert reply.json()["error"]["message"]
    seconds = time.monotonic() - at
    stream.wait(120)
    assert stream.done and stream.error is None and stream.finish == "length", saw(stream)
    assert generations(node) == before
    seen = f"{len(statuses)} x 400, the other stream whole"
    ledger("X07 bad requests", saw=seen, seconds=seconds, bound_s=20, reloaded=0)


def test_x08_a_slow_reader_slows_nobody_and_holds_bounded_memory(
    node: Node, ledger: Ledger
) -> None:
    gateway = psutil.Process(node.pid("gateway"))
    family = [gateway, *gateway.children(recursive=True)]
    alone = node.stream(STORY, max_tokens=200, ignore_eos=True).wait(120)
    alone_s = since(alone.started_at, alone)
    resident = sum(p.memory_info().rss for p in family)
    body = {
        "model": MODEL, "stream": True, "max_tokens": 3000, "ignore_eos": True, "logprobs": True,
        "top_logprobs": 20, "messages": [{"role": "user", "content": STORY}],
    }  # fmt: skip
    data = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", node.base_port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)
        )
        slow.recv(64)
        beside = node.stream(STORY, max_tokens=200, ignore_eos=True).wait(120)
        grown = sum(p.memory_info().rss for p in family) - resident
    beside_s = since(beside.started_at, beside)
    assert beside.done and beside.error is None and beside.finish == "length"
    assert grown < 32 << 20, f"the gateway grew by {grown >> 20} MiB"
    seen = f"other stream {beside_s / alone_s:.2f} x its time alone, gateway +{grown >> 10} KiB"
    ledger("X08 slow reader", saw=seen, seconds=beside_s, bound_s=60, reloaded=0)


def running_rows(node: Node) -> int:
    queue = node.http.get("/queue").json()
    return sum(r["running"] + r["waiting"] for r in queue["instances"])


def test_x09_a_killed_gateway_process_has_its_requests_cancelled(
    node: Node, ledger: Ledger
) -> None:
    before = generations(node)
    gateway = psutil.Process(node.pid("gateway"))
    # The ones that serve first: they end their streams in words when they see their parent die.
    family = [*gateway.children(recursive=True), gateway]
    stream = node.stream(STORY, **LONG).flowing()
    at = time.monotonic()
    for process in family:
        with contextlib.suppress(psutil.Error):
            process.kill()
    stream.wait(30)
    assert stream.broken is not None or not stream.done
    eventually(node.ready, 30, "the gateway is back")

    def idle() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return running_rows(node) == 0
        return False

    eventually(idle, 30, "the runner has dropped the request")
    seconds = time.monotonic() - at
    assert generations(node) == before
    ledger("X09 kill -9 gateway", saw=saw(stream), seconds=seconds, bound_s=5, reloaded=0)


@pytest.mark.parametrize(
    "service",
    ["bus", "master", "worker", pytest.param("telemetry", marks=pytest.mark.proof)],
)
def test_killing_a_service_disturbs_no_stream(
    node: Node, undisturbed: Stream, ledger: Ledger, service: str
) -> None:
    runner, before = node.runner(), generations(node)
    old = node.pid(service)
    stream = node.stream(STORY, **SHORTER).flowing()
    at = kill(old)

    def serving() -> bool:
        with contextlib.suppress(Exception):
            pid = node.processes().get(service)
            return pid not in (None, old) and serves(node, service)
        return False

    eventually(serving, 30, f"{service} serves again")
    seconds = time.monotonic() - at
    stream.wait(120)
    assert stream.done and stream.error is None, saw(stream)
    assert stream.text == undisturbed.text
    assert stream.usage is not None and undisturbed.usage is not None
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [stream.usage[k] for k in counts] == [undisturbed.usage[k] for k in counts]
    assert node.runner() == runner
    assert generations(node) == before
    ledger(
        f"kill -9 {service}", saw="text and usage equal", seconds=seconds,
        bound_s=5, reloaded=0,
    )  # fmt: skip


def serves(node: Node, service: str) -> bool:
    """Whether a service does its work again, seen from outside."""
    if service == "telemetry":
        reply = node.http.get("/v1/diagnostics/node/processes/bus/stacks")
        return reply.status_code == 200
    if service == "bus":
        tapped = listen(load_settings(home=node.home).endpoints, "reading.*", patience_s=1.0)
        return next(tapped) is not None
    if service == "worker":
        told = node.http.get("/v1/diagnostics/node").json()["runners"]
        return any("recorder" in runner for runner in told)  # its own account, by its worker
    asked = node.http.get("/instance/placement", params={"model": MODEL})
    return asked.status_code == 200


@pytest.mark.proof
def test_a_hundred_requests_at_once_are_all_answered(node: Node) -> None:
    with ThreadPoolExecutor(64) as pool:
        replies = list(pool.map(lambda n: node.chat(f"repeat {n}", max_tokens=4), range(100)))
    counts = {status: sum(r.status_code == status for r in replies) for status in (200, 429)}
    assert sum(counts.values()) == 100
    for reply in replies:
        if reply.status_code == 429:
            assert float(reply.headers["retry-after"]) >= 0
            assert "position" in reply.text
    assert counts[200] >= 40


def test_hanging_up_frees_the_row(node: Node) -> None:
    lock = threading.Event()

    def hang_up() -> None:
        body = {
            "model": MODEL, "stream": True, "max_tokens": 3000, "ignore_eos": True,
            "messages": [{"role": "user", "content": STORY}],
        }  # fmt: skip
        with httpx.stream("POST", node.url + "/v1/chat/completions", json=body) as response:
            for line in response.iter_lines():
                if '"content"' in line:
                    lock.set()
                    return

    hang_up()
    assert lock.is_set()
    eventually(lambda: running_rows(node) == 0, 6, "the row is freed")


def test_what_is_removed_of_a_running_node_comes_back(node: Node, ledger: Ledger) -> None:
    settings = load_settings(home=node.home)
    paths = settings.paths
    needed = [one.path for one in means_of(paths, settings.endpoints, SERVICES)]
    eventually(lambda: all(path.exists() for path in needed), 30, "the node is whole")
    before = generations(node)
    at = time.monotonic()
    for folder in (paths.runtime, paths.logs, paths.run, paths.models, paths.journal):
        shutil.rmtree(folder)
    for file in paths.records.parent.glob(f"{paths.records.name}*"):
        file.unlink()
    again = [
        path for path in (*needed, Path(settings.endpoints.supervisor)) if path != paths.records
    ]
    eventually(lambda: all(path.exists() for path in again), 30, "all is made anew")
    seconds = time.monotonic() - at
    (instance,) = before
    assert node.http.delete(f"/instance/{instance}?drain_s=1").status_code == 200
    eventually(lambda: not node.state()["instances"], 30, "the model is unloaded")
    answer = node.chat("hi", max_tokens=4)
    assert answer.status_code == 200, f"a new runner meets all of them: {answer.text}"
    (health,) = node.http.get("/state").json()["nodeHealth"].values()
    codes = {one["code"] for one in health["reasons"]}
    assert "means_restored" in codes and not codes & {"means_gone", "supervisor_silent"}
    Path(settings.endpoints.services()["worker"][0]).unlink()  # the first one's line may be lost
    eventually(
        lambda: any(SOCKET_GONE in str(line) for line in node.log_lines("worker")),
        3 * REOPEN_S,
        "the worker logs that its socket was gone",
    )
    ledger("rm -rf of all folders", saw="all back", seconds=seconds, bound_s=6, reloaded=0)


def test_a_killed_supervisord_takes_every_process_with_it(node: Node, ledger: Ledger) -> None:
    stream = node.stream(STORY, **LONG).flowing()
    everything = node.all_processes()
    assert len(everything) >= 8, everything
    supervisord = next(p for p in everything if "supervisord" in " ".join(p.cmdline()))
    at = kill(supervisord.pid)
    eventually(lambda: not node.all_processes(), 15, "every process ends itself")
    seconds = time.monotonic() - at
    stream.wait(30)
    node.up()
    assert node.chat("hi", max_tokens=4).status_code == 200
    ledger("kill -9 supervisord", saw=saw(stream), seconds=seconds, bound_s=5, reloaded=1)


def test_down_leaves_nothing(node: Node, ledger: Ledger) -> None:
    folder = load_settings(home=node.home).paths.runtime
    assert len(node.all_processes()) >= 8
    at = time.monotonic()
    done = node.down()
    seconds = time.monotonic() - at
    assert done.returncode == 0, done.stdout + done.stderr
    assert node.all_processes() == []
    assert [p.name for p in folder.rglob("*")] == []
    ledger("down", saw="no process, socket or lock left", seconds=seconds, bound_s=15, reloaded=0)
