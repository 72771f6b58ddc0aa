"""Routes of the reference, over a gateway: what each asks for and says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bus.process.clock import wall
from bus.process.identity import new_boot
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.codec import Envelope, encode
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.commands import PlaceModel
from bus.wire.messages.readings import CardReading
from tests.harness.fleets import card
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import body, chat, ready
from tests.harness.node_server import instance, reading
from tests.harness.printed_requests import printed
from tests.harness.typed_lines import examples, typed


@pytest.fixture(scope="module")
def made() -> Iterator[GatewayTestbed]:
    with gateway_testbed(processes=2) as found:
        found.runner()
        eventually(lambda: ready(found), 10, "the instance is ready")
        yield found


def ask(made: GatewayTestbed, method: str, path: str, **more: Any) -> httpx.Response:
    return httpx.request(method, made.url + path, timeout=20, **more)


def refused(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


def test_a_benchs_answer_is_a_chat_completion_with_how_fast_it_was(made: GatewayTestbed) -> None:
    sent = body("tokens=20 every_ms=10", n=2)
    answer = ask(made, "POST", "/bench/chat/completions", json=sent)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    stats = found.pop("generation_stats")
    assert set(found) == set(chat(made, "tokens=2").json())
    assert [len(one["message"]["content"].split()) for one in found["choices"]] == [20, 20]
    assert (stats["prompt_tokens"], stats["generation_tokens"]) == (7, 40)
    assert stats["generation_tps"] == found["timing"]["decode_tokens_per_sec"] > 0
    assert 0 < stats["ttft_s"] < answer.elapsed.total_seconds()
    # the runner here tells nothing of its memory, and no prefill
    assert stats["peak_memory_usage"] is None and stats["prompt_tps"] == 0


def test_a_bench_is_refused_as_a_chat_completion_is_and_as_a_stream(made: GatewayTestbed) -> None:
    for more, field in (({"stream": True}, "stream"), ({"temperature": 9}, "temperature")):
        answer = ask(made, "POST", "/bench/chat/completions", json=body("tokens=2", **more))
        assert refused(answer) == (400, "invalid_value", field)
    failed = ask(made, "POST", "/bench/chat/completions", json=body("fail=runner_lost"))
    assert failed.status_code == 503 and failed.json()["error"]["code"] == "runner_lost"


def trace_of(made: GatewayTestbed) -> dict[str, Any]:
    """The trace of a request that was just made, as it is kept."""
    name = chat(made, "tokens=20 every_ms=2 ranks=2", x_trace=True).json()["id"]

    def found() -> dict[str, Any] | None:
        answer = ask(made, "GET", f"/v1/traces/{name}/raw")
        return answer.json() if answer.status_code == 200 else None

    return eventually(found, 5, f"a trace of {name}")


def test_the_parts_of_one_trace_add_up_to_its_sums(made: GatewayTestbed) -> None:
    raw = trace_of(made)
    for path in ("/v1/traces", "/v1/traces/cluster"):
        told = ask(made, "GET", f"{path}/chatcmpl-{raw['request']}/stats").json()
        assert (told["request"], told["node"]) == (raw["request"], "n1")
        assert told["seconds"] == raw["seconds"]
        parts = told["parts"]
        sums = {name: one["seconds"] for name, one in parts.items()}
        assert sums == pytest.approx(raw["sums"], abs=1e-5)
        assert {"gateway.read", "lead.decode"} <= set(parts)
        for one in parts.values():
            assert one["least_s"] <= one["mean_s"] <= one["most_s"] <= one["seconds"] + 1e-6
            assert one["share"] == pytest.approx(one["seconds"] / raw["seconds"], abs=1e-3)
        assert ask(made, "GET", f"{path}/{raw['request']}/raw").json() == raw


def test_several_traces_are_removed_at_once_and_those_that_were_not_there_named(
    made: GatewayTestbed,
) -> None:
    first, second = trace_of(made)["request"], trace_of(made)["request"]
    names = [f"chatcmpl-{first}", second, "nonsense", first]
    answer = ask(made, "POST", "/v1/traces/delete", json={"requests": names})
    assert answer.json() == {"removed": [first, second], "not_found": ["nonsense"]}
    for name in (first, second):
        for path in ("/v1/traces", "/v1/traces/cluster"):
            assert ask(made, "GET", f"{path}/{name}").status_code == 404
    for sent in ({}, {"requests": []}, {"requests": [1]}, {"requests": ["x"], "all": True}):
        assert ask(made, "POST", "/v1/traces/delete", json=sent).status_code == 400


@pytest.fixture(scope="module")
def second_node(made: GatewayTestbed) -> str:
    """Another node of the cluster, of which each process has heard."""
    card = NodeCard(
        node=NodeId("n2"), name="studio", platform="linux", cores=2, memory_bytes=10**9,
        backends=("mlx-cpu",), mlx_version="0", shoal_version="0", slots=1, announced_at_s=wall(),
    )  # fmt: skip
    made.do(lambda: made.holder.bus.publish("card.n2", CardReading(card=card)))

    def is_known() -> bool:
        return all(
            "studio" in ask(made, "GET", "/state").text for _ in range(12)
        )  # each on a connection of its own, which either process may take

    eventually(is_known, 10, "the other node is known")
    return "n2"


def placed(made: GatewayTestbed, **sent: Any) -> PlaceModel:
    """What the holder was asked to place."""
    before = len(made.holder.commands)
    answer = ask(made, "POST", "/instance", json={"model": MODEL, **sent})
    assert answer.status_code == 200 and answer.json()["instance"] == "inst-1", answer.text
    (command,) = [one for one in made.holder.commands[before:] if isinstance(one, PlaceModel)]
    return command


def test_an_instance_goes_where_it_is_put_by_hand(made: GatewayTestbed, second_node: str) -> None:
    split = placed(made, layers={"studio": 1, "n1": 1}, context_tokens=512)
    assert list(split.layers.items()) == [("studio", 1), ("n1", 1)]
    assert (split.excluded_nodes, split.context_tokens, split.if_absent) == ((), 512, False)
    alone = placed(made, nodes=["studio"], sharding="pipeline")
    assert (alone.excluded_nodes, alone.min_nodes, alone.layers) == (("n1",), 1, {})
    both = placed(made, nodes=["n1", second_node], sharding="tensor", if_absent=True)
    assert (both.excluded_nodes, both.min_nodes, both.sharding) == ((), 2, "tensor")
    assert both.if_absent


ANSWERED = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/api/chat",
    "/v1/conversations", "/v1/jobs", "/api/create", "/api/v1/config", "/bench/chat/completions",
    "/events?limit=5", "/fleet", "/memory", "/metrics/snapshot", "/requests/recent",
    "/requests/stats",
)  # fmt: skip
"""The paths of those printed requests that this gateway answers."""
ENDLESS = "/memory/live"


def test_the_requests_of_the_pages_are_answered_as_printed(
    made: GatewayTestbed, second_node: str
) -> None:
    by_hand = printed("placement.md", "/instance")
    assert len(by_hand) == 2
    whole = printed("http-api.md", "/")
    requests = [one for one in whole if one.path.startswith(ANSWERED)]
    requests = [one for one in requests if one.path != ENDLESS]
    found = {path for path in ANSWERED if any(one.path.startswith(path) for one in requests)}
    assert found == set(ANSWERED)
    for one in (*requests, *by_hand):
        answer = ask(made, one.method, one.path, content=one.body)
        assert answer.status_code in (200, 202), (one, answer.text)


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({}, "layers"),
        ({"layers": {"n1": 2}, "nodes": ["n1"]}, "layers"),
        ({"nodes": ["nowhere"]}, "nodes"),
        ({"nodes": ["n1", "testbed"]}, "nodes"),
        ({"nodes": ["n1"], "min_nodes": 2}, "min_nodes"),
        ({"nodes": ["n1"], "kv": "7bit"}, "kv"),
    ],
)
def test_a_place_that_is_none_is_refused_by_its_field(
    made: GatewayTestbed, sent: dict[str, Any], field: str
) -> None:
    answer = ask(made, "POST", "/instance", json={"model": MODEL, **sent})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field, answer.text


def test_a_node_without_supervisord_restarts_nothing_and_says_so(made: GatewayTestbed) -> None:
    answer = ask(made, "POST", "/admin/restart")
    assert refused(answer) == (503, "supervisor_silent", None)
    unknown = ask(made, "POST", "/admin/restart?node_id=nowhere")
    assert refused(unknown) == (404, "node_not_found", None)


def test_who_is_asked_and_what_is_here_is_told_under_the_other_names(made: GatewayTestbed) -> None:
    assert ask(made, "GET", "/node_id").json() == "n1"
    assert ask(made, "GET", "/models").json() == ask(made, "GET", "/v1/models").json()
    turn = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    for path, sent in (
        ("chat/completions", turn | {"n": 0}),
        ("completions", {"model": MODEL, "prompt": ""}),
        ("responses", {"model": MODEL, "input": []}),
        ("embeddings", {"model": MODEL, "input": []}),
    ):
        answers = [ask(made, "POST", f"/{at}{path}", json=sent) for at in ("", "v1/")]
        assert refused(answers[0]) == refused(answers[1]) and refused(answers[0])[0] == 400
    for path in ("/bench/images/generations", "/v1/images/edits"):
        answer = ask(made, "POST", path, json={"prompt": "a fish"})
        assert refused(answer) == (404, "no_such_engine", None)


def test_a_model_that_is_not_there_is_no_custom_one(made: GatewayTestbed) -> None:
    answer = ask(made, "DELETE", "/models/custom/some/thing")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"
    for sent in ({}, {"model_id": ""}, {"model_id": "nonsense"}):
        answer = ask(made, "POST", "/models/add", json=sent)
        assert refused(answer) == (400, "invalid_value", "model_id")
    here = ask(made, "POST", "/models/add", json={"model_id": MODEL})
    assert refused(here) == (409, "conflict", "model_id")
    assert ask(made, "POST", "/models/add", json={"model": "some/thing"}).status_code == 400


@pytest.fixture(scope="module")
def far_node(made: GatewayTestbed, second_node: str) -> str:
    """A node whose card another node has passed on."""
    draft = ModelCard(
        model=ModelId("draft"), path="/m", family="qwen3", layers=4, weights_bytes=1,
        size_bytes=1, kv_bytes_per_token=1, context_tokens=4096, vocabulary=2048,
        quantization="4bit", tokens_per_s=55.0,
    )  # fmt: skip
    far = card(wall(), "far", "n3", models=(draft,), memory_bytes=10**9)
    passed_on = encode(Envelope(far.node, "worker", new_boot(), 1, CardReading(card=far)))
    frames = [b"relayed.n3", passed_on]
    verifies = reading(instance(MODEL)).model_copy(update={"node": NodeId("n2")})
    counts = {**verifies.drafters, "block": (2, 8, 5)}
    more = {"drafters": counts, "proposals": {"block": (2, 4096)}}
    verifies = verifies.model_copy(update=more)
    reads = encode(Envelope(NodeId("n2"), "worker", new_boot(), 2, verifies))
    topic = b"reading.runner.n2.runner:00"
    made.do(lambda: made.board.planes["telemetry"].from_peer(NodeId("n2"), frames))
    made.do(lambda: made.board.planes["telemetry"].from_peer(NodeId("n2"), [topic, reads]))
    ask_fleet = lambda: ask(made, "GET", "/fleet").json()  # noqa: E731
    eventually(
        lambda: all("n3" in str(a) and a["drafters"] for a in (ask_fleet() for _ in range(12))),
        10,
        "it is known",
    )
    return "n3"


def test_the_fleet_lists_all_nodes_with_roles_and_measured_speeds(
    made: GatewayTestbed, far_node: str
) -> None:
    answer = ask(made, "GET", f"/fleet?model={MODEL}").json()
    nodes = {node["node"]: node for node in answer["nodes"]}
    assert [*nodes] == [answer["node"], "n2", far_node], "this node is first"
    assert [node["linked"] for node in nodes.values()] == [True, True, False]
    draft, ngrams = nodes[far_node]["models"]
    assert draft == {
        "model": "draft", "roles": ["verifier", "proposer"], "quantization": "4bit",
        "tokens_per_s": 55.0,
    }  # fmt: skip
    assert ngrams["roles"] == ["proposer"] and ngrams["tokens_per_s"] is None
    mine = {model["model"]: model for model in nodes[answer["node"]]["models"]}
    assert mine[MODEL]["tokens_per_s"] is None, "never measured here"
    assert {
        "verifier_node": "n2", "verifier": MODEL, "drafter": "ngram", "drafts": 5,
        "drafted_tokens": 40, "accepted_tokens": 30, "passes": None, "peak_bytes": None,
    } in answer["drafters"]  # fmt: skip
    assert {
        "verifier_node": "n2", "verifier": MODEL, "drafter": "block", "drafts": 2,
        "drafted_tokens": 8, "accepted_tokens": 5, "passes": 2, "peak_bytes": 4096,
    } in answer["drafters"]  # fmt: skip
    plan = answer["plan"]
    assert plan["verifier"]["model"] == MODEL and plan["proposer"]["model"] == "ngram"
    assert plan["colocated"] and "is not measured" in plan["why"]
    state = ask(made, "GET", "/state").json()
    cards = {each["node"] for each in state["telemetry"]["cards"]}
    assert far_node not in cards and "draft" not in ask(made, "GET", "/v1/models").text, (
        "only the fleet view knows of nodes that this one cannot reach"
    )


def test_a_role_that_nobody_can_take_is_refused_by_its_name(made: GatewayTestbed) -> None:
    answer = ask(made, "GET", "/fleet?model=none").json()
    assert answer["plan"] is None
    assert (answer["refused"]["role"], answer["refused"]["model"]) == ("verifier", "none")
    answer = ask(made, "GET", f"/fleet?model={MODEL}&proposer=none").json()
    assert (answer["refused"]["role"], answer["refused"]["model"]) == ("proposer", "none")


def test_each_line_about_the_fleet_runs_as_printed(
    made: GatewayTestbed, far_node: str, tmp_path: Path
) -> None:
    lines = [line.replace("shoal-tiny", MODEL) for line in examples("fleet")]
    assert len(lines) == 4
    for line in lines:
        done = typed(made, tmp_path, line)
        assert done.returncode == 0, done.stderr
        if "--json" in line:
            assert json.loads(done.stdout)["plan"]["colocated"]
        else:
            assert "through other nodes" in done.stdout and "55" in done.stdout
            assert "can propose n-grams" in done.stdout
    refused = typed(made, tmp_path, "shoal fleet none")
    assert (
        refused.returncode != 0
        and "no verifier: no node has the text model 'none'" in refused.stderr
    )
