"""lm-eval's `local-completions` over a task of ours, held to plain forwards of the bundled model.

A dozen items; `SHOAL_PROVE=1` takes 200. On one rank, and on a group of two, each on a node of its
own. lm-eval reads the tokens with the bundled model's own tokenizer, asks for four choices a
request, and nothing of the internet.
"""

from __future__ import annotations

import functools
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import load

from tests.clients.conftest import PROVING, Tell
from tests.harness.client_stories import failed
from tests.harness.clusters import running_cluster
from tests.harness.nodes import ROOT

TINY = ROOT / "conf" / "tiny"
ITEMS = 200 if PROVING else 12
CLOSE = 1e-4
MOST_TOKENS = 16
SAID = "the a boat fish sea red list of integers from one to ten and then she said hello"
WORDS = SAID.split()


class Forward:
    """The bundled model as mlx-lm loads it, in float32: one forward, no cache of keys and values,
    nothing batched. Each answer is kept for the next one who asks."""

    def __init__(self) -> None:
        self.model: Any
        self.tokenizer: Any
        self.model, self.tokenizer, *_ = load(str(TINY))
        self.model.set_dtype(mx.float32)
        self.likelihood = functools.cache(self._likelihood)
        self.goes_on = functools.cache(self._goes_on)

    def _likelihood(self, context: str, text: str) -> tuple[float, bool]:
        """Return the log-likelihood of a text after a context, and whether greedy says the same."""
        whole: list[int] = self.tokenizer.encode(context + text)
        begun = len(self.tokenizer.encode(context))
        logits = self.model(mx.array([whole]))[0, begun - 1 : -1].astype(mx.float32)
        own = mx.array(whole[begun:])
        scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(scores, own[:, None], axis=-1)
        return chosen.sum().item(), bool((mx.argmax(scores, axis=-1) == own).all().item())

    def _goes_on(self, text: str) -> str:
        """Return what greedy makes of a text, to the end of its sentence or the most tokens."""
        tokens: list[int] = self.tokenizer.encode(text)
        made: list[int] = []
        while len(made) < MOST_TOKENS and "." not in self.tokenizer.decode(made):
            token = mx.argmax(self.model(mx.array([tokens + made]))[0, -1]).item()
            if token in self.tokenizer.eos_token_ids:
                break
            made.append(token)
        return self.tokenizer.decode(made).split(".")[0]


def an_item(chance: random.Random) -> dict[str, Any]:
    """Return a text, four continuations of it, one of them the next number, and which is right."""
    first, last = chance.randint(1, 5), chance.randint(6, 20)
    counted = ", ".join(str(number) for number in range(first, last))
    said = " ".join(chance.choice(WORDS) for _ in range(chance.randint(0, 12)))
    others = chance.sample([number for number in range(1, 30) if number != last], 3)
    choices = [f", {number}" for number in [last, *others]]
    chance.shuffle(choices)
    return {
        "text": f"{said} {counted}".strip(),
        "choices": choices,
        "answer": choices.index(f", {last}"),
    }


@pytest.fixture(scope="module")
def items() -> list[dict[str, Any]]:
    chance = random.Random(11)
    return [an_item(chance) for _ in range(ITEMS)]


@pytest.fixture(
    scope="module",
    params=[1, pytest.param(2, marks=pytest.mark.proof)],
    ids=["one rank", "a group of two"],
)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The root of a node that serves the bundled model on one rank, or on two of two nodes."""
    if os.environ.get("SHOAL_TEST_URL"):
        pytest.skip("what SHOAL_TEST_URL serves is not known to be the bundled model")
    if request.param == 1:
        yield request.getfixturevalue("node_url")
        return
    with running_cluster(2) as pair:
        placed = pair.place(min_nodes=2)
        assert len({shard["node"] for shard in placed["shards"]}) == 2
        yield pair.nodes[0].url


@pytest.fixture(scope="module")
def evaluated(
    tell: Tell, url: str, items: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder in which lm-eval has left what it made of the items."""
    folder = tmp_path_factory.mktemp("lm-eval")
    (folder / "tokenizer").symlink_to(TINY)
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    rows = tell("lm-eval", folder, url)
    assert failed(rows) == []
    assert [row["call"] for row in rows] == ["loglikelihood", "generate_until"]
    return folder


@pytest.fixture(scope="module")
def forward() -> Forward:
    return Forward()


@pytest.mark.proof
@pytest.mark.timeout(2000 if PROVING else 900)
def test_accuracy_and_each_choices_likelihood_are_a_plain_forwards(
    evaluated: Path, items: list[dict[str, Any]], forward: Forward
) -> None:
    found = json.loads((evaluated / "likelihoods.json").read_text())
    by_item: list[list[float]] = [[] for _ in items]
    for choice in found["choices"]:
        likelihood, greedy = choice["said"]
        plain, plainly_greedy = forward.likelihood(choice["context"], choice["text"])
        assert likelihood == pytest.approx(plain, abs=CLOSE), choice
        assert greedy == plainly_greedy, choice
        by_item[choice["doc"]].append(plain)
    assert [len(likelihoods) for likelihoods in by_item] == [4] * len(items)
    right = sum(
        max(range(4), key=likelihoods.__getitem__) == item["answer"]
        for item, likelihoods in zip(items, by_item, strict=True)
    )
    assert found["accuracy"] == pytest.approx(right / len(items))
    assert 0 < right < len(items), "items that are all right, or all wrong, would show little"


@pytest.mark.proof
@pytest.mark.timeout(2000 if PROVING else 900)
def test_what_is_generated_is_what_plain_forwards_choose(
    evaluated: Path, items: list[dict[str, Any]], forward: Forward
) -> None:
    made = json.loads((evaluated / "generations.json").read_text())
    assert [each["doc"] for each in made] == list(range(len(items)))
    plain = [forward.goes_on(item["text"]) for item in items]
    assert [each["text"] for each in made] == plain
    assert len(set(plain)) > min(len(plain) // 4, 15), "texts that are all alike would show little"
