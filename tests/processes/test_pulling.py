"""A model from a hub, through every process of a node: asked for on the command line and over HTTP,
killed, gone on with, answered with; and over two nodes, counted at the hub."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.harness.hub import Faults, HubServer, files_of
from tests.harness.llama_site import needs_program, tiny_gguf_repository
from tests.harness.nodes import MODEL, Node, answered, eventually, typed
from tests.harness.pulling import REPOSITORY, is_whole, tiny
from tests.harness.terminals import Terminal
from tests.harness.typed_lines import examples
from worker.models.files import ORIGIN_FILE

pytestmark = pytest.mark.nodes
OTHER = "mlx-community/Qwen3-0.6B-4bit"
IN_GGUF = "Qwen/Qwen3-0.6B-GGUF"
MB = 1 << 20


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    server = HubServer({REPOSITORY: tiny(), OTHER: tiny(), "someone/gguf": {"a.gguf": b"GGUF"}})
    server.repositories[IN_GGUF] = tiny_gguf_repository(tmp_path_factory.mktemp("gguf"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def node(hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    found = Node(
        HF_ENDPOINT=hub.url,
        HF_HOME=str(tmp_path_factory.mktemp("hf")),
        HF_TOKEN="",
        SHOAL_PULL_ON_DEMAND="wanted/*",
        SHOAL_PRELOAD="",
        SHOAL_RUNNER__SPARE="false",
    )
    try:
        found.up()
        yield found
    finally:
        found.close()


@pytest.fixture(autouse=True)
def well(hub: HubServer) -> None:
    hub.faults = Faults()
    hub.forget()


def total_of(hub: HubServer, repository: str = REPOSITORY) -> int:
    return sum(map(len, hub.repositories[repository].values()))


def lines(node: Node, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with node.http.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200, answer.read()
        return [json.loads(line) for line in answer.iter_lines()]


def listed(node: Node) -> dict[str, Any]:
    """What `shoal ls` tells of each model, by name."""
    models = json.loads(node.shoal("ls", "--json").stdout)["models"]
    return {one["model"]: one for one in models}


def wide() -> dict[str, bytes]:
    """The bundled model, as if each token took so much KV that no machine holds its context."""
    files = tiny()
    config = json.loads(files["config.json"])
    files["config.json"] = json.dumps({**config, "num_key_value_heads": 10**7}).encode()
    return files


def weights_sent(hub: HubServer) -> int:
    """Bytes of weights that the hub was asked for."""
    return sum(count for path, count in hub.sent.of.items() if path.endswith(".safetensors"))


def pulling(node: Node) -> list[psutil.Process]:
    """The processes of the node that pull."""
    found: list[psutil.Process] = []
    for process in node.all_processes():
        with contextlib.suppress(psutil.Error):
            if "worker.pulling" in process.cmdline():
                found.append(process)
    return found


def test_a_pull_whose_worker_is_killed_goes_on_by_itself_from_the_bytes_on_disk(
    node: Node, hub: HubServer
) -> None:
    before = node.http.post(
        "/v1/chat/completions",
        json={"model": REPOSITORY, "messages": [{"role": "user", "content": "hi"}]},
    )
    assert before.status_code == 404 and f"shoal pull {REPOSITORY}" in before.text
    hub.faults.bytes_per_s = 1.5 * MB
    body = {"model": REPOSITORY, "background": True}
    with node.http.stream("POST", "/models/pull", json=body) as answer:
        assert any(json.loads(line)["background"] for line in answer.iter_lines())
    eventually(lambda: hub.sent.body_bytes > 0.4 * total_of(hub), 60, "0.4 of it came")
    (process,) = pulling(node)
    worker = process.parent()
    assert worker is not None
    for one in (process, worker):
        os.kill(one.pid, signal.SIGKILL)
    assert not (node.home / "data" / "models" / REPOSITORY).exists()
    hub.faults.bytes_per_s = 0.0
    eventually(lambda: has(node, REPOSITORY), 60, "it came")
    # what was under way came again: at most a piece of each connection, and what sockets held
    assert total_of(hub) <= hub.sent.body_bytes < total_of(hub) + 8 * MB
    assert hub.sent.lists == 2 and is_whole(node)
    eventually(lambda: not recorded(node), 20, "the record has no pull")


@pytest.mark.proof
def test_pulls_of_a_node_that_is_killed_go_on_once_it_is_up_and_paused_ones_do_not(
    node: Node, hub: HubServer
) -> None:
    hub.repositories |= {"someone/long": tiny(), "someone/paused": tiny(), "someone/gone": tiny()}
    size = total_of(hub, "someone/long")
    hub.faults.bytes_per_s = 0.2 * MB
    for name in ("someone/paused", "someone/gone"):
        assert node.shoal("pull", name, "--detach").returncode == 0
        assert node.shoal("pulls", "pause", name).returncode == 0
    assert node.shoal("pulls", "cancel", "someone/gone").returncode == 0
    hub.faults.bytes_per_s = 1.0 * MB
    hub.forget()
    assert node.shoal("pull", "someone/long", "--detach").returncode == 0
    eventually(lambda: hub.sent.body_bytes > 0.4 * size, 60, "0.4 of it came")
    node.kill()
    time.sleep(1.0)
    came = hub.sent.body_bytes
    hub.forget()
    hub.faults.bytes_per_s = 0.0
    node.up()
    eventually(lambda: has(node, "someone/long"), 60, "it came")
    assert hub.sent.body_bytes < size - came + 8 * MB and hub.sent.body_bytes < size
    rows = json.loads(node.shoal("pulls", "--json").stdout)["pulls"]
    states = {row["model"]: row["state"] for row in rows}
    assert states.pop("someone/long") in ("publishing", "done")
    assert states == {"someone/paused": "paused"}
    assert node.shoal("pulls", "resume", "someone/paused").returncode == 0
    eventually(lambda: has(node, "someone/paused"), 60, "it came")
    answer = node.shoal("run", "someone/long", "What is shoal?", "--temperature", "0")
    assert answer.returncode == 0 and answer.stdout.strip(), answer.stderr


def has(node: Node, model: str) -> bool:
    """Return whether the disk has the whole model, and no process pulls it."""
    return (node.home / "data" / "models" / model).exists() and not pulling(node)


def recorded(node: Node) -> str:
    """Return the models in the node's record of background pulls."""
    return (node.home / "state" / "pulls").read_text().partition(" crc32:")[0].strip("[]")


def test_run_offers_a_model_that_no_node_has_pulls_it_and_answers(
    node: Node, hub: HubServer
) -> None:
    hub.repositories["someone/offered"] = tiny()
    with Terminal(node, "run", "someone/offered", "hi", "--temperature", "0") as terminal:
        shown = terminal.read_to("[y/n]")
        assert "no node has someone/offered" in shown and "it fits now" in shown
        assert "tokens/s, a prediction" in shown and weights_sent(hub) == 0
        terminal.write("y\n")
        terminal.read_to("pulled someone/offered")
        assert terminal.wait() == 0
    answer = terminal.shown.rpartition("pulled someone/offered")[2]
    assert len(answer.splitlines()) > 1, terminal.shown


@pytest.mark.proof
def test_ollama_pulls_a_name_that_people_know_and_asks_by_it(node: Node, hub: HubServer) -> None:
    hub.faults.bytes_per_s = 6.0 * MB
    said = lines(node, "/api/pull", {"model": "qwen3:0.6b"})
    assert said[0] == {"status": "pulling manifest"} and said[-1] == {"status": "success"}
    bars = [line for line in said if "completed" in line]
    assert len({line["digest"] for line in bars}) == 1 and len(bars[0]["digest"]) == 71
    assert all(line["total"] == total_of(hub, OTHER) for line in bars)
    assert [line["completed"] for line in bars] == sorted(line["completed"] for line in bars)
    assert lines(node, "/api/pull", {"model": OTHER, "stream": False}) == [{"status": "success"}]
    body = {"model": "qwen3:0.6b", "prompt": "hi", "stream": False, "options": {"num_predict": 4}}
    answer = node.http.post("/api/generate", json=body)
    assert answer.status_code == 200, answer.text


def test_a_dry_run_fetches_no_weights_and_says_where_a_model_would_fit(
    node: Node, hub: HubServer
) -> None:
    hub.repositories["someone/fits"] = tiny()
    shown = node.shoal("pull", "someone/fits", "--dry-run", "--json")
    assert shown.returncode == 0, shown.stderr
    plan = json.loads(shown.stdout)
    assert set(hub.sent.of) == {"config.json"} and weights_sent(hub) == 0
    assert (plan["fits"], plan["revision"], plan["note"]) == ("now", hub.commit, "")
    assert plan["fetch_bytes"] == plan["total_bytes"] == total_of(hub, "someone/fits")
    assert plan["disk"]["free_bytes"] > 0 == plan["disk"]["missing_bytes"]
    eventually(lambda: not pulling(node), 20, "nothing pulls any more")
    assert "someone/fits" not in listed(node)
    assert not list((node.home / "data" / "models").glob(".pulling/someone--fits*"))
    told = node.shoal("pull", "someone/fits", "--dry-run").stdout
    assert "tokens/s, a prediction" in told and plan["bill"]["arithmetic"] in told
    # once it is here, placement says the same of it, but for the headers of its files
    assert node.shoal("pull", "someone/fits").returncode == 0
    here = json.loads(node.shoal("pull", "someone/fits", "--dry-run", "--json").stdout)
    placed = json.loads(node.shoal("place", "someone/fits", "--dry-run", "--json").stdout)
    assert here["note"] == "the model is already on this node" and here["fetch_bytes"] == 0
    assert here["bill"]["need_bytes"] == placed["chosen"]["need_bytes"]
    assert here["bill"]["kv_bytes"] == plan["bill"]["kv_bytes"] > 0
    assert abs(here["bill"]["need_bytes"] / plan["bill"]["need_bytes"] - 1) < 0.01
    assert abs(here["tokens_per_s"] / plan["tokens_per_s"] - 1) < 0.05


@pytest.mark.proof
def test_what_no_nodes_could_hold_is_refused_before_its_weights_come_and_pulled_anyway(
    node: Node, hub: HubServer
) -> None:
    hub.repositories["someone/wide"] = hub.repositories["wanted/wide"] = wide()
    plan = node.http.post("/models/pull", json={"model": "someone/wide", "dry_run": True}).json()
    (alone,) = plan["nodes"]
    assert plan["fits"] == "never" and plan["tokens_per_s"] is None and plan["placement"] is None
    assert alone["never_bytes"] == alone["need_bytes"] - alone["ceiling_bytes"] > 0
    refused = node.shoal("pull", "someone/wide")
    assert refused.returncode == 5 and plan["bill"]["arithmetic"] in refused.stderr, refused
    assert "--anyway" in refused.stderr
    # a stream begins after 5 s, and would tell it in a line
    whole = {"model": "someone/wide", "stream": False}
    refused = node.http.post("/models/pull", json=whole)
    assert refused.status_code == 507
    assert refused.json()["error"]["code"] == "model_too_large"
    ollama = node.http.post("/api/pull", json=whole)
    assert ollama.status_code == 507 and plan["bill"]["arithmetic"] in ollama.json()["error"]
    asked = {"model": "wanted/wide", "messages": [{"role": "user", "content": "Hi"}]}
    waited = node.http.post("/v1/chat/completions", json=asked)
    assert waited.status_code == 507 and waited.json()["error"]["code"] == "model_too_large"
    eventually(lambda: not pulling(node), 20, "nothing pulls any more")
    assert weights_sent(hub) == 0
    done = node.shoal("pull", "someone/wide", "--anyway")
    assert done.returncode == 0, done.stderr
    eventually(lambda: "someone/wide" in listed(node), 20, "it is listed")
    assert weights_sent(hub) > 0
    answered(
        lambda: node.shoal("rm", "someone/wide"), lambda done: not done.returncode, "it is deleted"
    )


@pytest.mark.proof
def test_a_dry_run_waits_for_no_turn_and_a_pull_does(node: Node, hub: HubServer) -> None:
    names = ("someone/one", "someone/two", "someone/three")
    hub.repositories |= {name: tiny() for name in names}
    hub.faults.bytes_per_s = 0.1 * MB
    first, second = (typed(node, "pull", name) for name in names[:2])
    third = None
    try:
        eventually(lambda: len(coming(node)) == 2, 60, "two come")
        planned = node.shoal("pull", names[2], "--dry-run", "--json")
        assert planned.returncode == 0 and json.loads(planned.stdout)["fits"] == "now", planned
        third = typed(node, "pull", names[2])
        eventually(lambda: names[2] in pulls(node), 20, "the third is asked for")
        eventually(lambda: pulls(node).get(names[2]) == "waiting", 20, "it waits for its turn")
        eventually(lambda: coming(node) == set(names[:2]), 20, "the two before it come still")
        assert node.shoal("pulls", "cancel", names[0]).returncode == 0
        assert first.wait(20) == 5
        eventually(lambda: names[2] in coming(node), 30, "its turn came")
        hub.faults.bytes_per_s = 0.0
        assert third.wait(60) == 0
    finally:
        for process in (first, second, third):
            if process is not None:
                process.kill()
                process.communicate()
    eventually(lambda: not pulling(node), 20, "nothing pulls any more")


def pulls(node: Node) -> dict[str, str]:
    """How far each pull of the node is that has not ended, by model."""
    told = node.http.get("/state").json()["telemetry"]["pulls"]
    found = [one for reading in told for one in reading["pulls"]]
    return {one["model"]: one["phase"] for one in found if one["phase"] not in ("done", "failed")}


def coming(node: Node) -> set[str]:
    """The models of which bytes come."""
    return {model for model, phase in pulls(node).items() if phase == "fetching"}


@pytest.mark.proof
def test_what_cannot_be_reckoned_is_said_and_pulled(node: Node, hub: HubServer) -> None:
    files = {**tiny(), "config.json": b'{"model_type": "unheard_of"}'}
    hub.repositories["someone/strange"] = files
    plan = node.shoal("pull", "someone/strange", "--dry-run")
    assert plan.returncode == 0 and "no memory estimate" in plan.stdout, plan
    assert "unheard_of" in plan.stdout and weights_sent(hub) == 0
    pulled = node.shoal("pull", "someone/strange")
    assert "without a memory estimate: mlx-lm" in pulled.stderr
    assert weights_sent(hub) == len(files["model.safetensors"])
    assert "but this node cannot run it" in pulled.stderr


def test_each_line_of_the_page_runs_as_printed(node: Node) -> None:
    said = [node.shoal(*shlex.split(line)[1:]) for line in examples("pull")]
    assert said and all(one.returncode == 0 for one in said), said
    assert f"stands for {OTHER}" in said[0].stderr and "already on this node" in said[1].stdout


def test_each_line_about_pulls_runs_as_printed(node: Node, hub: HubServer) -> None:
    hub.repositories["someone/model"] = tiny()
    hub.faults.bytes_per_s = 0.1 * MB
    said = [node.shoal(*shlex.split(line)[1:]) for line in examples("pulls")]
    assert said and all(one.returncode == 0 for one in said), said
    assert "someone/model" in said[1].stdout and "deleted" in said[-1].stdout
    assert not list((node.home / "data" / "models").glob(".pulling/someone--model@*"))


@needs_program
def test_quantisations_of_a_gguf_repository_are_pulled_by_name_and_answer(
    node: Node, hub: HubServer
) -> None:
    plan = node.http.post("/models/pull", json={"model": IN_GGUF, "dry_run": True}).json()
    assert plan["choice"].startswith("Q4_K_M (13.4 MB): the largest of at most 8 bits"), plan
    assert plan["fits"] == "now" and plan["bill"]["weights_bytes"] == 13_384_448, plan
    assert hub.sent.body_bytes < 6 * MB, "only the headers came"
    model = f"{IN_GGUF}:Q4_K_M"
    last = lines(node, "/api/pull", {"model": f"hf.co/{IN_GGUF}:q4_k_m"})[-1]
    assert last == {"status": "success"} and model in listed(node)
    verified = node.shoal("verify", model)
    assert verified.returncode == 0 and "all hashes match" in verified.stdout, verified
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    answer = node.http.post(
        "/api/chat", json={**body, "model": f"hf.co/{model}", "stream": False}, timeout=120
    )
    assert answer.status_code == 200 and answer.json()["message"]["content"], answer.text
    assert node.shoal("stop", model).returncode == 0
    assert node.shoal("rm", model, "--yes").returncode == 0


def test_failures_have_the_status_and_the_words_of_each_dialect(node: Node, hub: HubServer) -> None:
    missing = {"model": "someone/nothing"}
    ollama = node.http.post("/api/pull", json=missing)
    assert ollama.status_code == 404 and "has no model someone/nothing" in ollama.json()["error"]
    ours = node.http.post("/models/pull", json={**missing, "stream": False})
    assert ours.status_code == 404 and ours.json()["error"]["code"] == "hub_model_not_found"
    gguf = node.http.post("/models/pull", json={"model": "someone/gguf", "stream": False})
    assert gguf.status_code == 400 and "a.gguf: the file is truncated" in gguf.text
    unknown = node.http.post("/api/pull", json={"model": f"hf.co/{IN_GGUF}:q2_k", "stream": False})
    assert unknown.status_code == 404
    assert (
        "no quantisation Q2_K; it has Q8_0 (13.4 MB), Q4_K_M (13.4 MB)" in unknown.json()["error"]
    )
    bad = node.http.post("/models/pull", json={"model": "no such name"})
    assert bad.status_code == 400 and "qwen3:4b" in bad.json()["error"]["message"]
    known = node.http.get("/v1/models").json()["data"]
    own = next(one["id"] for one in known if "/" not in one["id"])
    here = node.http.post("/models/pull", json={"model": own})
    assert here.status_code == 409
    assert f"already has the model {own}" in here.json()["error"]["message"]
    away = node.http.post("/models/pull", json={**missing, "to": "nowhere"})
    assert away.status_code == 404 and away.json()["error"]["code"] == "node_not_found"
    hub.faults = Faults(status=403, code="GatedRepo")
    shown = node.shoal("pull", "someone/nothing")
    assert shown.returncode == 1 and "accept its license" in shown.stderr
    hub.faults = Faults(status=429, retry_after="900")
    busy = node.http.post("/models/pull", json=missing)
    assert busy.status_code == 429 and busy.headers["retry-after"] == "900"


@pytest.mark.proof
def test_two_who_ask_are_one_work_which_outlives_both_and_can_be_paused(
    node: Node, hub: HubServer
) -> None:
    hub.repositories["someone/slow"] = tiny()
    hub.faults.bytes_per_s = 0.1 * MB
    first = typed(node, "pull", "someone/slow")
    second = typed(node, "pull", "someone/slow", "-v")
    try:
        eventually(lambda: hub.sent.body_bytes > MB, 60, "it comes")
        hub.faults.bytes_per_s = 0.02 * MB  # so that the rest outlasts what is asked meanwhile
        state = eventually(lambda: _asked_by_two(node), 20, "two wait for it")
        assert state["phase"] == "fetching" and len(pulling(node)) == 1
        assert hub.sent.lists == 1
        answered(
            lambda: node.shoal("ps"),
            lambda shown: "someone/slow" in shown.stdout + shown.stderr,
            "`ps` tells of it",
        )
        eventually(
            lambda: "the model is being downloaded" in node.shoal("ls").stderr, 20, "that it comes"
        )
        for words in (("rm", "someone/slow"), ("rm", "someone/slow", "--everywhere")):
            kept = answered(
                lambda words=words: node.shoal(*words),
                lambda kept: "is downloading someone/slow" in kept.stderr,
                "it is kept",
            )
            assert kept.returncode
        first.send_signal(signal.SIGINT)
        assert first.wait(20) == 130
        assert "`shoal pulls cancel someone/slow`" in first.communicate()[1]
        second.send_signal(signal.SIGHUP)  # as a terminal that is closed
        second.wait(20)
        time.sleep(2.0)
        assert len(pulling(node)) == 1
        assert "paused someone/slow" in node.shoal("pulls", "pause", "someone/slow").stdout
        eventually(lambda: not pulling(node), 20, "nothing pulls any more")
    finally:
        for one in (first, second):
            one.kill()
            one.communicate()
    models = node.home / "data" / "models"
    assert not (models / "someone" / "slow").exists()
    eventually(
        lambda: "the download is incomplete" in node.shoal("ls").stderr,
        20,
        "what came is told with why",
    )
    eventually(
        lambda: "`shoal pull someone/slow` resumes it" in node.shoal("show", "someone/slow").stderr,
        20,
        "each process of the gateway tells of what came",
    )
    eventually(
        lambda: "deleted someone/slow" in node.shoal("rm", "someone/slow").stdout,
        20,
        "each process of the gateway can have it deleted",
    )
    assert not list(models.glob(".pulling/someone--slow@*"))
    assert node.shoal("pulls", "cancel", "someone/slow").returncode == 0


def _asked_by_two(node: Node) -> Any:
    told = node.http.get("/state").json()["telemetry"]["pulls"]
    found = [one for reading in told for one in reading["pulls"] if len(one["questions"]) == 2]
    return found[0] if found else None


@pytest.mark.proof
def test_a_second_node_copies_what_the_first_pulled(node: Node, hub: HubServer) -> None:
    assert node.shoal("pull", REPOSITORY).returncode == 0
    hub.forget()
    other = Node(
        HF_ENDPOINT=hub.url,
        HF_HOME=str(node.home / "hf"),
        SHOAL_PRELOAD="",
        SHOAL_RUNNER__SPARE="false",
        SHOAL_NODE_NAME="second",
        SHOAL_CLUSTER__PEERS=f"127.0.0.1:{node.base_port + 4}",
    )
    other.move(node.base_port + 20)
    try:
        other.up()
        eventually(lambda: "second" in node.shoal("nodes").stdout, 60, "two nodes")
        assert_copy_is_foretold(node, other)
        done = node.shoal("pull", REPOSITORY, "--to", "second", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        last = json.loads(done.stdout)
        assert last["node"] == other.node_id() and last["sources"] == [node.node_id()]
        copied = files_of(other.home / "data" / "models" / REPOSITORY)
        assert copied.pop(ORIGIN_FILE) and copied == tiny()
        assert hub.sent.lists == hub.sent.body_bytes == 0
        source = f"{REPOSITORY}@{hub.commit[:12]}"
        mine = listed(node)[REPOSITORY]
        assert (mine["origin"], mine["sources"]) == ("pulled", [source])
        assert f"pulled from {source}" in node.shoal("show", REPOSITORY).stdout
        there = eventually(lambda: own_card(other, REPOSITORY), 20, "it knows what it has")
        assert (there["origin"], there["sources"]) == ("copied", [node.node_id()])
        hub.repositories["someone/both"] = tiny()
        hub.forget()
        both = node.shoal("pull", "someone/both", "--to", "all", "--json")
        assert both.returncode == 0, both.stdout + both.stderr
        first, second = json.loads(both.stdout)
        assert (first["node"], first["sources"]) == (node.node_id(), [])
        assert (second["node"], second["sources"]) == (other.node_id(), [node.node_id()])
        assert hub.sent.body_bytes == total_of(hub, "someone/both")
        none = node.shoal("pull", "someone/none", "--to", "all")
        assert none.returncode != 0 and "someone/none" in none.stderr
        hub.forget()
        far = node.shoal("pull", f"{OTHER}@main", "--to", "second", "--json")
        assert far.returncode == 0 and json.loads(far.stdout)["node"] == other.node_id()
        assert hub.sent.body_bytes == total_of(hub, OTHER)
    finally:
        other.close()


def assert_copy_is_foretold(node: Node, other: Node) -> None:
    """A dry run says that the second node would copy the model, and copies nothing."""

    def planned() -> dict[str, Any]:
        return json.loads(
            node.shoal("pull", REPOSITORY, "--to", "second", "--dry-run", "--json").stdout
        )

    # the second node may hear of what the first has after it was heard of itself
    right = {"sources": [node.node_id()], "fits": "now"}
    plan = answered(planned, lambda plan: right.items() <= plan.items(), "it would be copied", 60)
    assert plan["fetch_bytes"] == listed(node)[REPOSITORY]["size_bytes"]
    assert not (other.home / "data" / "models" / REPOSITORY).exists()


def own_card(node: Node, model: str) -> dict[str, Any] | None:
    """What a node's gateway knows of a model on its own disk."""
    cards = node.http.get("/state").json()["telemetry"]["cards"]
    mine = [one for card in cards if card["node"] == node.node_id() for one in card["models"]]
    return next((one for one in mine if one["model"] == model), None)


@pytest.mark.proof
def test_an_offline_node_asks_no_hub(hub: HubServer, tmp_path: Path) -> None:
    offline = Node(
        HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path), SHOAL_OFFLINE="true", SHOAL_PRELOAD="",
        SHOAL_RUNNER__SPARE="false",
    )  # fmt: skip
    try:
        offline.up()
        refused = offline.http.post("/api/pull", json={"model": REPOSITORY})
        assert refused.status_code == 409 and "offline = true" in refused.json()["error"]
        assert hub.sent.lists == 0
    finally:
        offline.close()


def test_a_client_that_hangs_up_stops_its_pull(node: Node, hub: HubServer) -> None:
    hub.repositories["someone/left"] = tiny()
    hub.faults.bytes_per_s = 0.3 * MB
    heard = False
    with (
        httpx.Client(base_url=node.url, timeout=30) as client,
        client.stream("POST", "/api/pull", json={"model": "someone/left"}) as answer,
    ):
        for line in answer.iter_lines():
            if "completed" in line:
                heard = True
                break
    assert heard
    eventually(lambda: not pulling(node), 20, "nothing pulls any more")


def test_a_request_pulls_the_model_that_it_names_where_that_is_allowed(
    node: Node, hub: HubServer
) -> None:
    hub.repositories["wanted/tiny"] = tiny()
    hub.faults.bytes_per_s = 2 * MB
    ask = {"messages": [{"role": "user", "content": "Count to three."}], "temperature": 0}
    asked = {**ask, "model": "wanted/tiny", "stream": True}
    with (
        httpx.Client(base_url=node.url, timeout=120) as client,
        client.stream("POST", "/v1/chat/completions", json=asked) as answer,
    ):
        assert answer.status_code == 200
        told = list(answer.iter_lines())
    said = [line for line in told if line.startswith(": ")]
    assert any(" pulling " in line and " % (" in line for line in said), said
    assert told[-2:] == ["data: [DONE]", ""] or told[-1] == "data: [DONE]", told[-3:]
    text = "".join(
        json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
        for line in told
        if line.startswith("data: {") and json.loads(line[6:])["choices"]
    )
    known = node.http.post("/v1/chat/completions", json={**ask, "model": MODEL}).json()
    assert text == known["choices"][0]["message"]["content"] != ""
    assert "wanted/tiny" in [one["id"] for one in node.http.get("/v1/models").json()["data"]]


def test_a_request_that_may_not_pull_or_cannot_says_why(node: Node, hub: HubServer) -> None:
    ask = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    hub.repositories["unwanted/tiny"] = tiny()
    refused = node.http.post("/v1/chat/completions", json={**ask, "model": "unwanted/tiny"})
    assert refused.status_code == 404
    assert "shoal pull unwanted/tiny" in refused.json()["error"]["message"]
    missing = node.http.post("/v1/chat/completions", json={**ask, "model": "wanted/none"})
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "hub_model_not_found"
    eventually(lambda: not pulling(node), 20, "the process that was refused has ended")
    lists = hub.sent.lists
    shown = node.http.post("/api/show", json={"model": "wanted/none"})
    assert shown.status_code == 404, "only what is to answer pulls"
    assert not pulling(node) and hub.sent.lists == lists


def test_a_request_whose_client_is_gone_pulls_no_more(node: Node, hub: HubServer) -> None:
    hub.repositories["wanted/slow"] = tiny()
    hub.faults.bytes_per_s = 0.2 * MB
    asked = {"model": "wanted/slow", "stream": True, "messages": [{"role": "user", "content": "H"}]}
    with (
        httpx.Client(base_url=node.url, timeout=30) as client,
        client.stream("POST", "/v1/chat/completions", json=asked) as answer,
    ):
        assert any(" pulling " in line for line in answer.iter_lines())
    eventually(lambda: not pulling(node), 20, "nothing pulls any more")
