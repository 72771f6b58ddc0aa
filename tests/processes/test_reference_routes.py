"""Every route of the reference on a real node: it is there, under the reference's method and path,
and answers what it is for or says in words why not; and what its routes do on two nodes."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.clusters import Cluster
from tests.harness.nodes import MODEL, SERVICES, Node, answered, eventually
from tests.harness.printed_requests import printed
from tests.harness.pulling import REPOSITORY
from tests.harness.shared_nodes import Stores

pytestmark = pytest.mark.timeout(900)
TURN = [{"role": "user", "content": "Name a fish."}]
CHAT = {"model": MODEL, "messages": TURN, "max_tokens": 8}
CAPTURE_S = 240.0
Row = tuple[str, str, dict[str, Any] | None, int, str]
"""(method, path of the reference, body, status, code of an error); the query is ours."""
ROWS: tuple[Row, ...] = (
    # inference
    ("POST", "/v1/chat/completions", CHAT, 200, ""),
    ("POST", "/v1/responses", {"model": MODEL, "input": "Hi.", "max_output_tokens": 8}, 200, ""),
    ("POST", "/v1/messages", CHAT, 200, ""),
    ("POST", "/v1/embeddings", {"model": MODEL, "input": "a fish"}, 400, "unsupported"),
    ("POST", "/v1/images/generations", {"prompt": "a fish"}, 404, "no_such_engine"),
    ("POST", "/v1/images/edits", {"prompt": "a fish"}, 404, "no_such_engine"),
    ("POST", "/ollama/api/chat", {"model": MODEL, "messages": TURN, "stream": False}, 200, ""),
    ("POST", "/ollama/api/generate", {"model": MODEL, "prompt": "Hi.", "stream": False}, 200, ""),
    ("POST", "/v1/cancel/{command_id}", None, 200, ""),
    # models and placement
    ("GET", "/models", None, 200, ""),
    ("GET", "/v1/models", None, 200, ""),
    ("GET", "/models/search?query=tiny", None, 200, ""),
    ("POST", "/models/add", {"model_id": REPOSITORY}, 200, ""),
    ("DELETE", "/models/custom/{model_id}", None, 200, ""),
    ("POST", "/instance", {"model": MODEL, "nodes": ["{node_id}"]}, 200, ""),
    ("POST", "/place_instance", {"model": MODEL}, 200, ""),
    ("GET", "/instance/{instance_id}", None, 200, ""),
    ("DELETE", "/instance/{instance_id}", None, 200, ""),
    ("GET", f"/instance/placement?model={MODEL}", None, 200, ""),
    ("GET", "/store/storage", None, 200, ""),
    ("GET", f"/instance/previews?model={MODEL}", None, 200, ""),
    # state and events
    ("GET", "/state", None, 200, ""),
    ("GET", "/events?limit=5", None, 200, ""),
    ("GET", "/node_id", None, 200, ""),
    ("GET", "/config", None, 200, ""),
    ("PUT", "/config", {"set": {"keep_alive_s": 301}}, 200, ""),
    # tracing
    ("GET", "/v1/tracing", None, 200, ""),
    ("PUT", "/v1/tracing", {"ratio": None}, 200, ""),
    ("GET", "/v1/traces", None, 200, ""),
    ("GET", "/v1/traces/cluster", None, 200, ""),
    ("GET", "/v1/traces/{task_id}", None, 200, ""),
    ("GET", "/v1/traces/{task_id}/stats", None, 200, ""),
    ("GET", "/v1/traces/{task_id}/raw", None, 200, ""),
    ("GET", "/v1/traces/cluster/{task_id}", None, 200, ""),
    ("GET", "/v1/traces/cluster/{task_id}/stats", None, 200, ""),
    ("GET", "/v1/traces/cluster/{task_id}/raw", None, 200, ""),
    ("POST", "/v1/traces/delete", {"requests": ["{task_id}"]}, 200, ""),
    # diagnostics
    ("GET", "/v1/diagnostics/node", None, 200, ""),
    ("POST", "/v1/diagnostics/node/capture", None, 200, ""),
    ("POST", "/v1/diagnostics/node/runners/{runner_id}/cancel", {"request_id": "x"}, 200, ""),
    ("GET", "/v1/diagnostics/cluster", None, 200, ""),
    ("GET", "/v1/diagnostics/cluster/timeline", None, 200, ""),
    ("GET", "/v1/diagnostics/cluster/{node_id}", None, 200, ""),
    ("POST", "/v1/diagnostics/cluster/{node_id}/capture", None, 200, ""),
    ("POST", "/v1/diagnostics/cluster/{node_id}/runners/{runner_id}/cancel",
     {"request_id": "x"}, 200, ""),
    # tools, store, admin
    ("POST", "/v1/tools/web_search", {"query": "fish"}, 403, "fetch_refused"),
    ("POST", "/v1/tools/open_url", {"url": "http://example.org/"}, 403, "fetch_refused"),
    ("POST", "/v1/tools/extract_page", {"html": "<p>A fish.</p>"}, 200, ""),
    ("GET", "/store/health", None, 200, ""),
    ("GET", "/store/registry", None, 200, ""),
    ("POST", f"/store/models/{REPOSITORY}/download", {"stream": False}, 200, ""),
    ("DELETE", f"/store/models/{REPOSITORY}", None, 200, ""),
    ("POST", "/admin/restart?process=telemetry", None, 200, ""),
    # bench
    ("POST", "/bench/chat/completions", CHAT, 200, ""),
    ("POST", "/bench/images/generations", {"prompt": "a fish"}, 404, "no_such_engine"),
    ("POST", "/bench/images/edits", {"prompt": "a fish"}, 404, "no_such_engine"),
)  # fmt: skip
LAST = ("/instance/{instance_id}", "/admin/restart?process=telemetry")
"""Asked when all else was, where they change something: others need what these end."""


@pytest.fixture(scope="module")
def pair(shared_stores: Stores) -> Iterator[Cluster]:
    yield shared_stores
    eventually(shared_stores.formed, 120, "one cluster")
    shared_stores.clear()


def trace_of(node: Node) -> str:
    """The id of a request whose trace the node's gateway keeps."""
    name = node.chat("Name a fish.", max_tokens=8, x_trace=True).json()["id"]
    path = f"/v1/traces/{name}"
    answered(lambda: node.http.get(path), lambda found: found.status_code == 200, path)
    return name


def cancelled(node: Node) -> str:
    """The id of a request that was cancelled, which may be told to its gateway again."""

    def tried() -> str | None:
        sent = {**CHAT, "max_tokens": 900, "ignore_eos": True, "stream": True}
        with node.http.stream("POST", "/v1/chat/completions", json=sent) as stream:
            assert stream.status_code == 200, stream.read()
            lines = stream.iter_lines()  # the stream is open for as long as these are held
            next(lines)
            name = stream.headers["x-request-id"]
            was_open = httpx.post(f"{node.url}/v1/cancel/{name}").status_code == 200
        return name if was_open else None

    return eventually(tried, 60, "a request is cancelled before it ends by itself")


def known_of(pair: Cluster, node: Node) -> dict[str, str]:
    """What stands in the reference's paths, of things that there are."""
    instance = pair.place(excluded_nodes=[pair.nodes[1].node_id()])
    made = node.http.post("/api/create", json={"model": "walked", "from": MODEL, "stream": False})
    assert made.status_code == 200, made.text
    eventually(lambda: node.http.get("/v1/models/walked").status_code == 200, 30, "it is listed")

    def runner() -> str | None:
        runners = node.http.get("/v1/diagnostics/node").json()["runners"]
        return next((one["process"] for one in runners if one["phase"] == "ready"), None)

    return {
        "command_id": cancelled(node),
        "model_id": "walked",
        "instance_id": instance["instance"],
        "node_id": node.node_id(),
        "task_id": trace_of(node),
        "runner_id": eventually(runner, 30, "a runner that answers"),
    }


def filled(value: Any, known: dict[str, str]) -> Any:
    """A path, or a body, with what there is in the place of names."""
    match value:
        case str():
            return re.sub(r"\{(\w+)\}", lambda found: known[found[1]], value)
        case list():
            return [filled(one, known) for one in value]
        case dict():
            return {name: filled(one, known) for name, one in value.items()}
        case _:
            return value


def test_every_route_of_the_reference_answers(pair: Cluster) -> None:
    node = pair.nodes[0]
    known = known_of(pair, node)
    telemetry = node.pid("telemetry")
    wrong: list[str] = []
    for method, path, sent, status, code in sorted(ROWS, key=lambda row: row[1] in LAST):
        answer = node.http.request(
            method, filled(path, known), json=filled(sent, known), timeout=CAPTURE_S
        )
        said = answer.json()["error"]["code"] if answer.status_code >= 400 else ""
        if (answer.status_code, said) != (status, code):
            wrong.append(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
    assert wrong == []
    eventually(lambda: node.processes().get("telemetry", telemetry) != telemetry, 60, "a new one")
    assert node.http.put("/config", json={"unset": ["keep_alive_s"]}).status_code == 200


def test_the_settings_of_one_are_those_of_both_and_tell_where_they_differ(pair: Cluster) -> None:
    first, second = pair.nodes

    def value(node: Node, key: str) -> tuple[Any, list[Any]]:
        told = node.http.get("/config").json()
        (row,) = (one for one in told["settings"] if one["key"] == key)
        return row["value"], [one["value"] for one in row["elsewhere"]]

    changed = first.http.put("/config", json={"set": {"keep_alive_s": 61}})
    assert changed.status_code == 200 and [one["why"] for one in changed.json()["nodes"]] == [""]
    assert value(first, "keep_alive_s") == value(second, "keep_alive_s") == (61, [])
    own = second.http.put("/settings", json={"set": {"keep_alive_s": 62}})
    assert own.status_code == 200, own.text
    assert value(first, "keep_alive_s") == (61, [62])
    refused = first.http.put("/config", json={"set": {"node_name": "mini"}})
    assert refused.status_code == 400, refused.text
    assert first.http.put("/config", json={"unset": ["keep_alive_s"]}).status_code == 200
    assert value(second, "keep_alive_s")[0] == 300


@pytest.mark.proof
def test_a_copy_goes_to_the_nodes_that_are_named_or_split_as_it_is_said(pair: Cluster) -> None:
    first, second = pair.nodes
    pair.clear()

    def shards(**sent: Any) -> list[tuple[str, int]]:
        """Where the layers of a copy lie, the first ones first, and how many each has."""

        def asked() -> httpx.Response:
            return first.http.post("/instance", json={"model": MODEL, **sent})

        # a process that has not yet heard that the last copy is gone counts its memory
        answer = answered(asked, lambda one: one.status_code == 200, "it is placed", 60)
        name = answer.json()["instance"]

        def made() -> Any:
            found = first.state()["instances"].get(name)
            return found if found and found["status"] == "ready" else None

        ready = eventually(made, 120, "it is ready")
        found = sorted(ready["shards"], key=lambda one: one["first_layer"])
        return [(one["node"], one["last_layer"] - one["first_layer"]) for one in found]

    (where, layers) = shards(nodes=[second.node_id()])[0]
    assert where == second.node_id()
    pair.clear()
    split = {second.node_id(): 1, first.node_id(): layers - 1}
    assert shards(layers=split) == list(split.items())
    answer = first.chat("Name a fish.", max_tokens=4)
    assert answer.status_code == 200, answer.text
    pair.clear()
    both = shards(nodes=[first.node_id(), second.node_id()])
    assert {node for node, _ in both} == {first.node_id(), second.node_id()}
    pair.clear()
    wrong = first.http.post(
        "/instance", json={"model": MODEL, "layers": {first.node_id(): layers + 1}}
    )
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "layers", wrong.text


@pytest.mark.proof  # test_traces_of_nodes.py asks another node for a trace
def test_a_trace_and_a_capture_come_from_whichever_node_has_them(pair: Cluster) -> None:
    first, second = pair.nodes
    pair.place()
    name = trace_of(first)
    for kind in ("", "/raw", "/stats"):
        mine = first.http.get(f"/v1/traces/cluster/{name}{kind}")
        others = second.http.get(f"/v1/traces/cluster/{name}{kind}", timeout=30)
        assert mine.status_code == others.status_code == 200 and mine.json() == others.json()
    stats = second.http.get(f"/v1/traces/cluster/{name}/stats").json()
    assert stats["node"] == first.node_id() and "lead.decode" in stats["parts"]
    gone = second.http.post("/v1/traces/delete", json={"requests": [name]}, timeout=30)
    assert len(gone.json()["removed"]) == 1
    assert first.http.get(f"/v1/traces/{name}").status_code == 404
    capture = first.http.post(
        f"/v1/diagnostics/cluster/{second.node_id()}/capture", timeout=CAPTURE_S
    )
    with tarfile.open(fileobj=io.BytesIO(capture.content)) as tar:
        folders = {one.name.split("/")[1] for one in tar if one.name.count("/") > 1}
    assert len(folders) == 1


def test_a_bench_tells_of_the_runners_memory(pair: Cluster) -> None:
    node = pair.nodes[0]
    pair.place()

    def asked() -> Any:
        sent = {**CHAT, "max_tokens": 60, "ignore_eos": True}
        return node.http.post("/bench/chat/completions", json=sent).json()["generation_stats"]

    stats = answered(asked, lambda one: one["peak_memory_usage"] is not None, "the memory is told")
    assert stats["peak_memory_usage"]["inBytes"] > 1_000_000
    assert stats["generation_tokens"] == 60 and stats["generation_tps"] > 0
    assert stats["prompt_tps"] > 0 or stats["cached_tokens"] == stats["prompt_tokens"]
    assert stats["ttft_s"] > 0


def services(node: Node) -> dict[str, int]:
    return {name: pid for name, pid in node.processes().items() if name in SERVICES}


def test_one_process_of_another_node_begins_anew_and_nothing_else(pair: Cluster) -> None:
    first, second = pair.nodes
    here, there = services(first), services(second)
    answer = first.http.post(f"/admin/restart?node_id={second.node_id()}&process=worker")
    assert answer.status_code == 200, answer.text
    assert answer.json()["processes"] == ["worker"] and answer.json()["node"] == second.node_id()
    eventually(lambda: second.processes().get("worker") not in (None, there["worker"]), 60, "anew")
    del there["worker"]
    assert there.items() <= services(second).items() and services(first) == here


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("process=runner:00", 400, "invalid_value"),
        ("process=nonsense", 400, "invalid_value"),
        ("node_id=nowhere", 404, "node_not_found"),
    ],
)
def test_what_cannot_be_restarted_is_said(
    pair: Cluster, query: str, status: int, code: str
) -> None:
    first, second = pair.nodes
    queries = [query] if "node_id" in query else [query, f"{query}&node_id={second.node_id()}"]
    for asked in queries:
        answer = first.http.post(f"/admin/restart?{asked}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


@pytest.mark.proof
def test_a_node_begins_anew_and_its_runner_goes_on_with_its_model(pair: Cluster) -> None:
    node = pair.nodes[0]
    pair.clear()
    placed = pair.place(excluded_nodes=[pair.nodes[1].node_id()])
    before, runner = services(node), node.runner()
    whole, _one = printed("http-api.md", "/admin/restart")
    answer = node.http.request(whole.method, whole.path)
    assert answer.status_code == 200, answer.text
    assert sorted(answer.json()["processes"]) == sorted(SERVICES)
    assert answer.json()["processes"][-1] == "gateway"

    def anew() -> bool:
        now = services(node)
        return set(now) == set(SERVICES) and not set(now.items()) & set(before.items())

    eventually(anew, 90, "every service is another process")

    def answers() -> bool:
        try:
            return node.chat("Name a fish.", max_tokens=4).status_code == 200
        except httpx.HTTPError:
            return False

    eventually(answers, 90, "it answers again")
    eventually(pair.formed, 90, "one cluster")
    assert node.runner() == runner
    after = node.state()["instances"][placed["instance"]]
    assert (after["status"], after["generation"]) == ("ready", placed["generation"])
