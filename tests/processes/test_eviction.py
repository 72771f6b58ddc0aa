"""What real nodes let go: at an unloading, by a purge, and two of them at the same moment. Whatever
they do, one of them still has the model whole."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.nodes import MODEL, Node, answered, eventually, free_base_port
from tests.harness.pulling import REPOSITORY, is_whole
from tests.harness.shared_nodes import Stores
from tests.harness.typed_lines import examples
from tests.processes.conftest import PROVING

pytestmark = pytest.mark.nodes


@pytest.fixture(scope="module")
def nodes(shared_stores: Stores) -> Iterator[tuple[Node, Node]]:
    """Two nodes of one cluster; the second has no room for what it fetches."""
    first, second = shared_stores.nodes
    yield first, second
    shared_stores.remove(REPOSITORY)


def get_both(first: Node, second: Node) -> None:
    """Have the model on both nodes, and known there."""
    for name, node in (("first", first), ("second", second)):
        pulled(first, name, node)
    answered(
        lambda: [stored(node) for node in (first, second)],
        lambda seen: [len(one) for one in seen] == [2, 2],
        "two copies are known",
    )


def pulled(asked: Node, name: str, node: Node) -> None:
    """Pull the model to a node, where it may have just been deleted."""
    pull = asked.shoal("pull", REPOSITORY, "--to", name)
    assert pull.returncode == 0, pull.stdout + pull.stderr
    assert is_whole(node), pull.stdout


def stored(node: Node) -> list[Any]:
    """What is told of each copy of the model, as this node hears it."""
    told = node.http.get("/store/storage").json()["nodes"]
    return [one for each in told for one in each["models"] if one["model"] == REPOSITORY]


def having(node: Node) -> int:
    """How many copies of the model are told of, as this node hears it."""
    return len(stored(node))


def purged(asked: Node, **body: Any) -> dict[str, Any]:
    answer = asked.http.post("/store/purge-staging", json=body, timeout=90)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_what_is_unloaded_goes_where_there_is_no_room_and_the_last_copy_stays(
    nodes: tuple[Node, Node],
) -> None:
    first, second = nodes
    get_both(first, second)
    eventually(lambda: _would_go(second) == [REPOSITORY], 30, "the copy is made, and may go")
    assert first.shoal("load", REPOSITORY).returncode == 0
    eventually(lambda: _would_go(second) == [], 30, "the second node's worker knows of the copy")
    (kept,) = purged(second)["nodes"][0]["stays"]
    assert "is loaded or loading" in kept["why"] and is_whole(second)
    assert first.shoal("stop", REPOSITORY).returncode == 0
    eventually(lambda: not is_whole(second), 60, "the second node let it go")
    assert is_whole(first)
    eventually(lambda: having(first) == 1, 30, "one copy is known")
    shown = eventually(lambda: _let_go(first), 30, "the page of models says so")
    assert "a model was unloaded, and store_bytes is 0" in shown
    logged = second.shoal("logs", "worker").stdout
    assert "deleted a fetched model" in logged and f"kept_by={first.node_id()}" in logged
    (last,) = purged(first)["nodes"][0]["stays"]
    assert last["why"] == "no other connected node has all of its files" and is_whole(first)


def _would_go(node: Node) -> list[str]:
    told = json.loads(node.shoal("store", "purge", "--dry-run", "--json").stdout)
    assert is_whole(node), "a dry run deletes nothing"
    return [one["model"] for one in told["nodes"][0]["would_go"]]


def _let_go(node: Node) -> str:
    said = node.shoal("ls").stderr
    return said if f"second deleted {REPOSITORY}" in said else ""


@pytest.mark.proof
def test_what_comes_with_shoal_and_what_a_person_added_to_stays(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    get_both(first, second)
    models = second.home / "data" / "models"
    mine = models / REPOSITORY / "card.toml"
    eventually(lambda: _would_go(second) == [REPOSITORY], 30, "the copy is made, and may go")
    mine.write_text('aliases = ["mine"]\n')
    try:
        (kept,) = purged(first, node="second")["nodes"][0]["stays"]
        assert "first refused: the node's copy has no card.toml" in kept["why"]
        assert mine.exists()
    finally:
        mine.unlink()
    notes = models / REPOSITORY / "notes.txt"
    notes.write_text("mine")
    try:
        (kept,) = purged(first, node="second")["nodes"][0]["stays"]
        assert kept["why"] == "notes.txt in its folder was added by a person"
    finally:
        notes.unlink()
    told = first.http.get("/store/storage").json()["nodes"]
    what = {one["model"]: one["what"] for one in told[0]["models"]}
    assert what == {MODEL: "bundled", REPOSITORY: "fetched"}


@pytest.mark.proof
def test_what_has_a_card_goes_once_another_copy_has_the_same(
    nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    first, second = nodes
    ours = tmp_path / "card.toml"
    ours.write_text('summary = "ours"\n')
    get_both(first, second)
    eventually(lambda: _would_go(second) == [REPOSITORY], 30, "the copy is made, and may go")
    folders = [node.home / "data" / "models" / REPOSITORY for node in nodes]
    cards = [folder / "card.toml" for folder in folders]

    def both() -> list[str]:
        """Write the card; a process that has not heard of the second copy writes none there."""
        first.shoal("card", "add", REPOSITORY, "--from", str(ours), "--replace")
        return [card.read_text() if card.exists() else "" for card in cards]

    answered(both, lambda texts: texts == [ours.read_text()] * 2, "both copies have the card")
    (folders[1] / "card.toml").write_text('summary = "of the second alone"')
    (kept,) = purged(first, node="second")["nodes"][0]["stays"]
    assert "first refused: the node's copy has a different card.toml" in kept["why"]
    assert (folders[1] / "card.toml").exists()
    answered(both, lambda texts: texts == [ours.read_text()] * 2, "the card by hand gives way")
    went = purged(first, node="second")["nodes"][0]["let_go"]
    assert [one["model"] for one in went] == [REPOSITORY]
    assert not folders[1].exists() and "ours" in (folders[0] / "card.toml").read_text()
    answered(
        lambda: first.shoal("card", "rm", REPOSITORY, "--yes"),
        lambda _: not cards[0].exists(),
        "the copy that is gone is known, and the card goes",
    )


@pytest.mark.proof
def test_each_line_of_the_page_runs_as_printed(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    get_both(first, second)
    eventually(lambda: _would_go(second) == [REPOSITORY], 30, "the copy is made, and may go")
    may_go = f"{REPOSITORY} (6.7 MB) on second: can be deleted"
    eventually(
        lambda: may_go in first.shoal("store", "show").stdout, 30, "the first node knows it too"
    )
    shown, dry, done = [first.shoal(*shlex.split(line)[1:]) for line in examples("store")]
    assert shown.returncode == dry.returncode == done.returncode == 0, (shown, dry, done)
    assert may_go in shown.stdout
    assert f"would delete {REPOSITORY}" in dry.stdout
    assert done.stdout.count(f"deleted {REPOSITORY}") == 1
    assert "no other connected node has all of its files" in done.stdout
    assert sorted(map(is_whole, nodes)) == [False, True]


@pytest.mark.proof
@pytest.mark.parametrize("turn", range(3 if PROVING else 1))
def test_of_two_nodes_that_purge_at_one_moment_one_keeps_the_model(
    nodes: tuple[Node, Node], turn: int
) -> None:
    first, second = nodes
    get_both(first, second)
    eventually(lambda: _would_go(second) == [REPOSITORY], 30, "the copy is made, and may go")
    answers: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda node=node: answers.append(purged(node))) for node in nodes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(answers) == 2
    gone = [one for answer in answers for one in answer["nodes"][0]["let_go"]]
    assert len(gone) == 1 and sorted(map(is_whole, nodes)) == [False, True], answers


@pytest.mark.proof
def test_a_store_keeps_everything_and_others_let_theirs_go_for_it(
    nodes: tuple[Node, Node], shared_stores: Stores
) -> None:
    first, second = nodes
    pulled(first, "first", first)
    third = Node(**shared_stores.of_third(), SHOAL_NODE_NAME="third", SHOAL_STORE="true")
    third.move(free_base_port())
    try:
        third.up(240)
        eventually(lambda: "third" in first.shoal("nodes").stdout, 240, "three nodes")
        pulled(first, "third", third)
        pulled(first, "second", second)
        three = (first, second, third)
        eventually(lambda: all(having(node) == 3 for node in three), 30, "three copies are known")
        eventually(lambda: _would_go(second) == [REPOSITORY], 30, "the copy is made, and may go")
        told = {one["name"]: one for one in purged(first, node="all")["nodes"]}
        assert [one["kept_by"] for one in told["first"]["let_go"]] == [third.node_id()]
        assert [one["kept_by"] for one in told["second"]["let_go"]] == [third.node_id()]
        (kept,) = told["third"]["stays"]
        assert kept["why"] == "this node keeps all models (store = true)"
        assert [is_whole(node) for node in three] == [False, False, True]
        first.shoal("rm", REPOSITORY, "--everywhere", "--yes")
        eventually(lambda: not listed(first) | listed(second), 60, "the model is gone everywhere")
    finally:
        name = third.node_id()
        third.close()
        eventually(
            lambda: first.http.post(f"/node/{name}/forget").status_code == 200,
            60,
            "it is forgotten",
        )


def listed(node: Node) -> set[str]:
    """Return the models that a node lists, but for the bundled one."""
    return {one["id"] for one in node.http.get("/v1/models").json()["data"]} - {MODEL}
