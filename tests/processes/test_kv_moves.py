"""KV that moves between two real nodes: the same text sooner, and never for another API key."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bus.models.kv import KvFile, kv_files
from tests.bench.models import random_qwen3
from tests.harness.clusters import Cluster, running_cluster
from tests.harness.nodes import Node, eventually

pytestmark = [pytest.mark.proof, pytest.mark.nodes, pytest.mark.timeout(1200)]

NAME = "moves30m"
TOKENS = 2_500


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    cached: int


def prompt(salt: int) -> list[int]:
    chance = random.Random(salt)
    return [chance.randrange(300, 2000) for _ in range(TOKENS)]


def ask(node: Node, tokens: list[int], key: str | None = None) -> Answer:
    body = {"model": NAME, "prompt": tokens, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    answer = node.http.post("/v1/completions", json=body, headers=headers, timeout=300.0)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    return Answer(
        whole["choices"][0]["text"], whole["usage"]["prompt_tokens_details"]["cached_tokens"]
    )


def files(node: Node) -> list[KvFile]:
    return [file for file in kv_files(node.home / "state" / "kv", NAME) if not file.unfinished]


def counter(node: Node, name: str) -> int:
    """A counter of this node's runner, from its metrics."""
    lines = node.http.get("/metrics").text.splitlines()
    mine = [line for line in lines if line.startswith(f"shoal_{name}_total") and NAME in line]
    return max((int(float(line.split()[-1])) for line in mine if node.node_id() in line), default=0)


@dataclass(slots=True)
class Site:
    """Two nodes that have the model. It is in memory on one of them at a time."""

    cluster: Cluster
    at: str = ""

    @property
    def nodes(self) -> tuple[Node, Node]:
        first, second = self.cluster.nodes
        return first, second

    def load_on(self, number: int) -> Node:
        """Have the model in memory on this node alone."""
        if self.at:
            self.cluster.clear()
        other = self.nodes[1 - number]
        self.at = self.cluster.place(NAME, excluded_nodes=[other.node_id()], seconds=300)[
            "instance"
        ]
        hashes = self.nodes[number].home / "state" / "weights"
        eventually(lambda: len([*hashes.glob("?" * 32)]) >= 2, 60, "the model is hashed")
        return self.nodes[number]

    def written(self, number: int, count: int) -> list[Path]:
        node = self.nodes[number]
        eventually(lambda: len(files(node)) >= count, 60, f"{count} files")
        return [file.path for file in files(node)]

    def purge(self) -> None:
        for node in self.nodes:
            assert node.shoal("kv", "purge").returncode == 0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    model = random_qwen3(tmp_path_factory.mktemp("model") / NAME, context=8192)
    with running_cluster(2, SHOAL_RUNNER__KV_DISK_MIN_TOKENS="1024") as cluster:
        for node in cluster.nodes:
            shutil.copytree(model, node.home / "data" / "models" / NAME)
        eventually(
            lambda: all(NAME in node.http.get("/v1/models").text for node in cluster.nodes),
            60,
            "both nodes list the model",
        )
        yield Site(cluster)


def logged(node: Node, text: str) -> list[dict[str, Any]]:
    return [line for line in node.log_lines("worker") if text in str(line["message"])]


def test_a_prompt_that_another_node_has_computed_is_copied_and_gives_the_same_text(
    site: Site,
) -> None:
    first = site.load_on(0)
    cold = ask(first, prompt(1))
    assert cold.cached == 0
    site.written(0, 1)
    second = site.load_on(1)
    moved = ask(second, prompt(1))
    assert moved.text == cold.text and moved.cached == TOKENS - 1
    (copy,) = files(second)
    assert copy.origin == first.node_id()
    eventually(lambda: counter(second, "kv_moved_runs") == 1, 20, "the move is counted")
    (line,) = logged(second, "copied KV of a prompt")
    assert line["source"] == first.node_id() and line["size_bytes"] == copy.size_bytes
    listed = json.loads(second.shoal("kv", "ls", "--json").stdout)["models"]
    assert [(one["prompts"], one["copies"]) for one in listed] == [(1, 1)]
    assert first.shoal("kv", "purge").returncode == 0
    eventually(lambda: not files(second), 60, "the copy goes after its original")


def test_a_damaged_file_gives_the_same_text_and_is_not_kept(site: Site) -> None:
    site.purge()
    first = site.load_on(0)
    texts = {salt: ask(first, prompt(salt)).text for salt in (2, 3)}
    paths = site.written(0, 2)
    for path in paths:
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 4]))
    second = site.load_on(1)
    for salt, text in texts.items():
        damaged = ask(second, prompt(salt))
        assert damaged.text == text and damaged.cached == 0
    eventually(lambda: counter(second, "kv_moves_failed") == 2, 20, "the failures are counted")
    assert len(logged(second, "was not copied")) == 2
    assert not [file for file in files(second) if file.origin]


def test_two_api_keys_share_nothing_between_nodes(site: Site) -> None:
    site.purge()
    first = site.load_on(0)
    keys = {}
    for name in ("one", "two"):
        done = first.shoal("apikey", "add", name, "--scope", "admin", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        keys[name] = json.loads(done.stdout)["key"]
    for node in site.nodes:
        node.http.headers["Authorization"] = f"Bearer {keys['two']}"
    cold = ask(first, prompt(4), keys["one"])
    site.written(0, 1)
    second = site.load_on(1)
    other = ask(second, prompt(4), keys["two"])
    assert other.text == cold.text and other.cached == 0
    assert not [file for file in files(second) if file.origin]
    same = ask(second, prompt(4), keys["one"])
    assert same.text == cold.text and same.cached == TOKENS - 1
