"""Models that one real node has, copied to another one by a verb: no hub is asked for any of it."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.harness.hub import files_of
from tests.harness.nodes import MODEL, Node, answered, eventually, everywhere, typed
from tests.harness.pulling import tiny
from tests.harness.shared_nodes import Stores
from tests.harness.typed_lines import examples

pytestmark = pytest.mark.nodes
MB = 1 << 20
A, B = "mine/swift", "mine/brisk"


@pytest.fixture(scope="module")
def nodes(shared_stores: Stores) -> Iterator[tuple[Node, Node]]:
    """Two nodes of one cluster, whose hub sends nothing; the first gives weights slowly."""
    first, second = shared_stores.nodes
    for name in (A, B):
        put(first, name)
    known(first)
    yield first, second
    assert shared_stores.hub.sent.body_bytes == 0
    shared_stores.remove(A, B)


def folder(node: Node, model: str) -> Path:
    return node.home / "data" / "models" / model


def put(node: Node, model: str) -> None:
    """Put the bundled model there under another name, as a person would, with a card."""
    folder(node, model).mkdir(parents=True)
    for name, content in (tiny() | {"card.toml": f'summary = "{model}"\n'.encode()}).items():
        (folder(node, model) / name).write_bytes(content)


def models_at(node: Node, name: str) -> set[str]:
    """The models that an HTTP process of a node knows to lie on the disk of another."""
    cards = httpx.get(f"{node.url}/state", timeout=30).json()["telemetry"]["cards"]
    return {one["model"] for card in cards if card["name"] == name for one in card["models"]}


def known(first: Node, *there: str) -> None:
    """Wait until each HTTP process of the first node knows what both nodes have."""
    everywhere(
        lambda: [models_at(first, "first"), models_at(first, "second")],
        lambda seen: seen == [{MODEL, A, B}, {MODEL, *there}],
        "what lies where is known",
        60,
    )


def have_copies(nodes: tuple[Node, Node], *there: str) -> None:
    """Have these models, and no other of ours, on the second node, known at the first."""
    first, second = nodes
    for name in {A, B} - set(there):
        if folder(second, name).exists():
            gone = first.shoal("rm", name, "--everywhere", "--yes")
            assert gone.returncode == 0, gone.stdout + gone.stderr
            put(first, name)
    known(first, *(name for name in (A, B) if folder(second, name).exists()))
    for name in there:
        assert first.shoal("sync", name, "--to", "second").returncode == 0
    known(first, *there)


def same(first: Node, second: Node, model: str) -> bool:
    """Whether the copy is the model, byte for byte."""
    mine, theirs = files_of(folder(first, model)), files_of(folder(second, model))
    origin = theirs.pop(".shoal-origin.json", b"")
    return bool(origin) and theirs == {n: mine[n] for n in mine if not n.startswith(".")}


def test_what_this_node_has_is_copied_and_what_is_there_is_said(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    have_copies(nodes)
    one = first.shoal("sync", A, "--to", "second")
    assert one.returncode == 0, one.stdout + one.stderr
    assert f"copied {A} to second" in one.stdout and "from first" in one.stdout
    assert same(first, second, A)
    known(first, A)
    rest = first.shoal("sync", "--to", "all")
    assert rest.returncode == 0, rest.stdout + rest.stderr
    assert f"copied {B} to second" in rest.stdout and same(first, second, B)
    assert (
        f"{A} is already on second" in rest.stdout
        and f"{B}, {A} are already on first" in rest.stdout
    )
    assert MODEL not in rest.stdout, "what comes with shoal is on each node"
    known(first, A, B)
    checked = first.shoal("verify", B, "--node", "second", "--json")
    assert (
        checked.returncode == 0 and json.loads(checked.stdout)["models"][0]["against"] == "hashes"
    )
    again = first.shoal("sync", A, B, "--to", "second", "--json")
    told = json.loads(again.stdout)
    assert again.returncode == 0 and told["copied"] == []
    assert [one["model"] for one in told["there"]] == [A, B]


@pytest.mark.proof
def test_over_http_a_line_tells_how_far_each_copy_is(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    have_copies(nodes)
    with first.http.stream(
        "POST", "/models/sync", json={"models": [A, B], "to": "second"}, timeout=120
    ) as answer:
        assert answer.status_code == 200
        lines = [json.loads(line) for line in answer.iter_lines()]
    planned, *steps, end = lines
    assert planned["status"] == "planned" and planned["there"] == []
    assert planned["total"] == sum(one["bytes"] for one in planned["copies"]) > 0
    assert {one["model"] for one in steps} == {A, B}
    assert {one["node"] for one in steps} == {second.node_id()}
    moving = [one for one in steps if one["status"] == "copying" and one["bytes_per_s"]]
    assert moving and all(one["eta_s"] is not None for one in moving)
    assert any(one["sources"] == [first.node_id()] for one in moving)
    assert end["status"] == "done" and {one["model"] for one in end["copied"]} == {A, B}
    assert same(first, second, A) and same(first, second, B)
    known(first, A, B)
    whole = {"models": [A], "to": second.node_id(), "stream": False}
    told = first.http.post("/models/sync", json=whole).json()
    assert told["copied"] == [] and told["there"][0]["model"] == A


@pytest.mark.proof
def test_a_sync_that_was_stopped_keeps_what_came_and_goes_on(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    have_copies(nodes)
    stages = second.home / "data" / "models" / ".staging"
    stopped = typed(first, "sync", A, "--to", "second")
    eventually(lambda: came(stages) > MB, 60, "more than a MiB came")
    stopped.send_signal(signal.SIGINT)
    _, words = stopped.communicate(timeout=60)
    assert stopped.returncode == 130 and "the copied part is kept" in words
    answered(
        lambda: second.http.get("/state").json()["telemetry"]["weights"],
        lambda told: (
            not any(
                one["phase"] not in ("done", "failed")
                for reading in told
                for one in reading["fetches"]
            )
        ),
        "the copy has stopped",
        60,
    )
    assert not folder(second, A).exists() and came(stages) > MB
    assert first.shoal("sync", A, "--to", "second").returncode == 0
    assert same(first, second, A)


def came(stages: Path) -> int:
    """How many bytes lie in stages, of files that may go meanwhile."""
    total = 0
    for at, _, names in os.walk(stages):
        for name in names:
            try:
                total += (Path(at) / name).stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def test_what_cannot_be_is_refused_by_name_before_anything_moves(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    have_copies(nodes, B)
    for words, code, said in (
        (("sync", "nothing/here", "--to", "second"), 4, "nothing/here"),
        (("sync", A, "nothing/here", "--to", "second"), 4, "nothing/here"),
        (("sync", A, "--to", "third"), 4, "no node is named 'third'"),
        (("sync", A), 2, "--to"),
    ):
        refused = first.shoal(*words)
        assert refused.returncode == code and said in refused.stderr, refused
    none = second.http.post("/models/sync", json={"to": "first", "model": A})
    assert none.status_code == 400 and "model" in none.json()["error"]["message"]
    config = folder(second, B) / "config.json"
    right = config.read_bytes()
    changed = json.loads(right) | {"rope_theta": 12345.0}
    config.write_text(json.dumps(changed))
    try:
        other = answered(
            lambda: first.shoal("sync", B, "--to", "second"),
            lambda said: said.returncode != 0,
            "the second node's copy is another",
            60,
        )
        assert "second has different content under the name mine/brisk" in other.stderr
    finally:
        config.write_bytes(right)
    assert not folder(second, A).exists()


def test_a_post_to_a_model_of_the_store_has_a_node_get_it(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    have_copies(nodes)
    told = first.http.post(f"/store/models/{A}/download", json={"to": "second", "stream": False})
    assert told.status_code == 200, told.text
    assert told.json()["status"] == "done" and told.json()["sources"] == [first.node_id()]
    assert same(first, second, A)
    here = first.http.post(f"/store/models/{A}")
    assert here.status_code == 200 and "is already on this node" in here.text
    for name, status in (("no-repository", 400), ("no/where", 404), ("", 404)):
        refused = first.http.post(f"/store/models/{name}", json={"stream": False})
        assert refused.status_code == status, refused.text
    assert first.http.post(f"/store/models/{A}", json={"too": "second"}).status_code == 400


def test_each_line_of_the_page_runs_as_printed(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    have_copies(nodes)
    for line in examples("sync"):
        words = shlex.split(line.replace("someone/model", A).replace("attic", "second"))
        said = first.shoal(*words[1:])
        assert said.returncode == 0, said.stdout + said.stderr
    assert same(first, second, A) and same(first, second, B)
