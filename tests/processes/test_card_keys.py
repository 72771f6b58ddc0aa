"""What a model's card says is what a real node does: of memory, turns, parsers, and MLX."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.nodes import ROOT, TREE, Node, answered

pytestmark = pytest.mark.nodes
M = "org/mine"
WATCH = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "mlx.core":
            sys.meta_path.remove(self)
            with open(os.environ["SHOAL_TEST_SEEN"], "a") as file:
                file.write(os.environ.get("MLX_METAL_FAST_SYNCH", "unset") + chr(10))

sys.meta_path.insert(0, Watch())
"""
"""Notes, in every process of the node that imports MLX, what the variable was just before."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with one model of its own, whose card is to be written."""
    home = tmp_path_factory.mktemp("watched")
    (home / "sitecustomize.py").write_text(WATCH)
    shutil.copytree(
        ROOT / "conf" / "tiny",
        home / "models" / M,
        ignore=shutil.ignore_patterns("make", "*.py", "card.toml"),
    )
    node = Node(
        SHOAL_MODEL_FOLDERS=str(home / "models"),
        SHOAL_PRELOAD="",
        SHOAL_TEST_SEEN=str(home / "seen"),
        PYTHONPATH=f"{home}:{TREE}",
    )
    try:
        node.up(240)
        yield node
    finally:
        node.close()


def card(node: Node, text: str) -> None:
    """Have the model's card say this, and nothing else."""
    answer = node.http.put(f"/models/card/{M}", content=text.encode(), timeout=60)
    assert answer.status_code == 200, answer.text


def loaded_with(node: Node, text: str) -> set[str]:
    """What MLX was told when the model was loaded with this card, in each process of the runner
    that imported it."""
    node.shoal("stop", M)
    card(node, text)
    seen = Path(node.env["SHOAL_TEST_SEEN"])
    before = len(seen.read_text().split()) if seen.exists() else 0
    done = node.shoal("load", M)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(seen.read_text().split()[before:])


def told(node: Node, text: str, **fields: Any) -> dict[str, Any]:
    answer = node.chat(text, model=M, max_tokens=200, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]


@pytest.mark.proof
def test_mlx_is_told_of_fast_synchronisation_before_it_is_imported(node: Node) -> None:
    assert loaded_with(node, "metal_fast_synch = true\n") == {"1"}
    answered(
        lambda: node.shoal("show", M).stdout,
        lambda said: "True (card.toml; takes effect at the next load)" in said,
        "the card is shown as the reason",
    )
    examined = json.loads(node.shoal("doctor", "--json").stdout)
    (found,) = [one for one in examined["checks"] if one["name"] == "metal_fast_synch"]
    assert (
        found["level"] == "warn" and f"on for {M}: turned on by their card.toml" in found["found"]
    )
    assert loaded_with(node, "") == {"0"}
    examined = json.loads(node.shoal("doctor", "--json").stdout)
    assert "metal_fast_synch" not in {one["name"] for one in examined["checks"]}


@pytest.mark.proof
def test_what_a_card_says_of_memory_is_in_the_bill(node: Node) -> None:
    node.shoal("stop", M)
    card(node, "memory_bytes = 9_000_000_000_000\n")
    refused = answered(
        lambda: node.shoal("load", M, "--dry-run"),
        lambda said: said.returncode != 0,
        "the bill goes by the card",
    )
    assert "weights 9000.00 (memory_bytes of its card.toml) x 1.00" in refused.stderr
    card(node, "")
    answered(
        lambda: node.shoal("load", M, "--dry-run"),
        lambda said: said.returncode == 0,
        "the bill goes by the files",
    )


@pytest.mark.proof
def test_a_request_that_names_no_priority_has_the_cards(node: Node) -> None:
    card(node, 'priority = "low"\n')
    said: dict[str, Any] = {
        "plain": {},
        "normal": {"x_priority": "normal"},
        "tier": {"service_tier": "priority"},
    }
    for name, fields in said.items():
        told(node, "Hello", x_client_id=name, **fields)

    def priorities() -> dict[str, int]:
        found = node.http.get("/requests/recent").json()["requests"]
        return {one["client"]: one["priority"] for one in found if one["client"] in said}

    wanted = {"plain": 20, "normal": 10, "tier": 5}
    answered(priorities, lambda found: found == wanted, "the priorities are recorded")


@pytest.mark.proof
def test_a_card_says_by_which_rules_output_is_read(node: Node) -> None:
    loaded_with(node, "temperature = 0\n")
    thinks = told(node, "Hello")
    assert thinks["reasoning_content"].strip() and thinks["content"], thinks
    loaded_with(node, 'temperature = 0\nreasoning_parser = "mistral"\n')
    unread = told(node, "Hello")
    assert not unread.get("reasoning_content"), "the marks that the model writes are others"
    assert thinks["reasoning_content"].strip() in unread["content"], unread
    loaded_with(node, 'temperature = 0\nreasoning_parser = "none"\n')
    unasked = told(node, "Hello")
    assert not unasked.get("reasoning_content") and unasked["content"].strip(), unasked
    assert thinks["reasoning_content"].strip() not in unasked["content"], (
        "it was not asked to think"
    )
