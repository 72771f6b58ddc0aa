"""Mixed requests with every kind of draft, beside requests without drafts: each ends once, equal
requests get equal answers, and memory and KV return to where they were (`make prove-soak`)."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.harness.nodes import ROOT, Node, eventually, running_node
from tests.processes.conftest import PROVING, results_folder
from tests.processes.test_soak import idle, settled
from tests.runner.mlx.test_draft_model import cut_down

REQUESTS = int(os.environ.get("SHOAL_TEST_SOAK", "2000" if PROVING else "60"))
SEED = int(os.environ.get("SHOAL_TEST_DAY", "20261130"))
TARGET, DRAFT = "writer", "guesser"
WORDS = ["fish", "sea", "shoal", "node", "token", "count", "seven", "blue", "story", "moves"]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["fish", "bird"]},
        "count": {"type": "integer"},
    },
    "required": ["name", "kind", "count"],
    "additionalProperties": False,
}
JSON_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "a", "schema": SCHEMA, "strict": True},
}
TOOL = {"type": "function", "function": {"name": "count", "parameters": SCHEMA}}
FEATURES: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0, "logprobs": True, "top_logprobs": 2},
    {"temperature": 1, "seed": 7},
    {"temperature": 1, "seed": 11, "n": 2},
    {"temperature": 0.8, "seed": 3, "top_p": 0.9, "frequency_penalty": 0.5},
    {"temperature": 0, "stop": ["sea", "7"]},
    {"temperature": 0, "response_format": JSON_FORMAT},
    {"temperature": 1, "seed": 5, "response_format": JSON_FORMAT},
    {"temperature": 0, "tools": [TOOL], "tool_choice": "required"},
    {"temperature": 0, "min_tokens": 8},
)
BLOCK = 20
PHASES = (
    (16, ("off", "auto", "ngram", "draft_model", "grammar")),
    (6, ("ngram", "ngram", "draft_model", "grammar")),
    (1, ("auto", "ngram", "draft_model", "draft_model", "grammar")),
)
"""How many requests run at once, and with which drafters: one phase for each block of requests.
Beside a request with `off` or `auto`, other requests get no drafts."""
MOST_GROWTH = 2048
"""The most bytes per request by which a process may grow in the second half."""
Outcome = tuple[Any, ...]


def variant(number: int) -> dict[str, Any]:
    """Return the body of one of the different requests."""
    chance = random.Random(f"{SEED} {number}")
    words = " ".join(chance.choice(WORDS) for _ in range(chance.choice([4, 20, 80])))
    content = chance.choice([f"Repeat this: {words} {words}", f"Tell me about {words}."])
    messages = [{"role": "user", "content": content}]
    features = FEATURES[number % len(FEATURES)]
    return {"messages": messages, "max_tokens": chance.choice([8, 24, 64]), **features}


VARIANTS = [variant(number) for number in range(4 * len(FEATURES))]


def outcome_of(answer: dict[str, Any]) -> Outcome:
    """Return what must be equal in the answers to equal requests."""
    usage = answer["usage"]
    choices = [
        (choice["message"].get("content"), _calls(choice["message"]), choice["finish_reason"])
        for choice in answer["choices"]
    ]
    return (*choices, usage["prompt_tokens"], usage["completion_tokens"])


def _calls(message: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the names and arguments of the calls in a message."""
    calls: list[dict[str, Any]] = message.get("tool_calls") or []
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


class DraftedDay:
    """The requests of the day, their outcomes, and the counts of drafts."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.outcomes: dict[int, Counter[str]] = defaultdict(Counter)
        self.texts: dict[int, str] = {}
        """An answer in plain text to each kind of request, for predictions of it."""
        self.ends: Counter[str] = Counter()
        self.drafted: Counter[str] = Counter()
        self.open_ended: list[str] = []

    def ask(self, number: int) -> None:
        """Send one request, and note how it ended."""
        chance = random.Random(f"{SEED} request {number}")
        at = chance.randrange(len(VARIANTS))
        body = {"model": TARGET, **VARIANTS[at]}
        forced = "response_format" in body or "tools" in body
        modes = PHASES[number // BLOCK % len(PHASES)][1]
        mode = chance.choice(modes if forced else modes[:-1])
        body["x_speculate"] = mode
        text = self.texts.get(at)
        if text and mode in ("auto", "ngram") and chance.random() < 0.8:
            words = text.split()
            words[len(words) // 2 :] = words[len(words) // 2 :][:: chance.choice([1, -1])]
            body["prediction"] = {
                "type": "content",
                "content": chance.choice([text, " ".join(words)]),
            }
        way = chance.choices(["whole", "stream", "hang up", "cancel"], [60, 20, 12, 8])[0]
        if way != "whole":
            self._stream(body, way)
            return
        answer = self._answer(body)
        if not forced and not body.keys() & {"n", "logprobs"}:
            self.texts[at] = answer["choices"][0]["message"]["content"]
        self.outcomes[at][json.dumps(outcome_of(answer))] += 1
        self.drafted[f"{mode} drafted"] += answer["timing"].get("drafted_tokens", 0)
        self.drafted[f"{mode} accepted"] += answer["timing"].get("accepted_draft_tokens", 0)
        self.ends["finished"] += 1

    def ask_all(self, numbers: range) -> None:
        """Send these requests, block by block."""
        for first in range(numbers.start, numbers.stop, BLOCK):
            with ThreadPoolExecutor(PHASES[first // BLOCK % len(PHASES)][0]) as pool:
                list(pool.map(self.ask, range(first, min(first + BLOCK, numbers.stop))))

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        for _ in range(400):
            reply = self.node.http.post("/v1/chat/completions", json=body, timeout=180)
            if reply.status_code != 429:
                assert reply.status_code == 200, (body, reply.text)
                return reply.json()
            time.sleep(0.1)
        raise AssertionError("refused 400 times")

    def _stream(self, body: dict[str, Any], way: str) -> None:
        pieces = ends = 0
        path = "/v1/chat/completions"
        with self.node.http.stream(
            "POST", path, json={**body, "stream": True}, timeout=180
        ) as reply:
            if reply.status_code == 429:
                self.ends["429"] += 1
                return
            assert reply.status_code == 200, reply.read()
            for line in reply.iter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    ends += 1
                    continue
                data = json.loads(line[6:])
                assert "error" not in data, data
                pieces += 1
                if pieces == 3 and way == "hang up":
                    self.ends["hung up"] += 1
                    return
                if pieces == 3 and way == "cancel":
                    self.node.http.post(f"/v1/cancel/{data['id']}", timeout=30)
        if ends != 1:
            self.open_ended.append(f"{way}: {ends} ends")
        self.ends[way] += 1


@pytest.fixture(scope="module")
def drafting_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("models")
    left_out = shutil.ignore_patterns("make", "*.py")
    shutil.copytree(ROOT / "conf" / "tiny", folder / TARGET, ignore=left_out)
    card = folder / TARGET / "card.toml"
    card.write_text(f'draft_model = "{DRAFT}"\n{card.read_text()}')
    cut_down(folder / DRAFT, 6)
    with running_node(SHOAL_MODEL_FOLDERS=str(folder), SHOAL_RUNNER__SPECULATE="auto") as node:
        assert node.http.post("/place_instance", json={"model": TARGET}).status_code < 300
        yield node


def kv_bytes(node: Node) -> dict[str, Any]:
    """Return the KV that the runners of the writer use."""
    lines = node.http.get("/metrics").text.splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if "kv" in line and TARGET in line and not line.startswith("#") and "_total" not in line
    }


@pytest.mark.proof
@pytest.mark.timeout(7200)
def test_a_day_with_drafts_ends_each_request_once(drafting_node: Node) -> None:
    node, quarter = drafting_node, max(REQUESTS // 4 // BLOCK, 1) * BLOCK
    day = DraftedDay(node)
    eventually(lambda: idle(node), 60, "the writer is there")
    sizes: list[dict[str, int]] = []
    for first in range(0, REQUESTS, quarter):
        day.ask_all(range(first, min(first + quarter, REQUESTS)))
        sizes.append(settled(node))
    kv_after = kv_bytes(node)
    middle, before, after = len(sizes) // 2 - 1, sizes[0], sizes[-1]
    grown = {  # in the first half, caches fill
        name: (after[name] - sizes[middle].get(name, 0)) / (REQUESTS - (middle + 1) * quarter)
        for name in after
        if name in before
    }
    unlike = {at: count for at, count in day.outcomes.items() if len(count) > 1}
    odd = sum(sum(count.values()) - max(count.values()) for count in unlike.values())
    row = {
        "seed": SEED,
        "requests": REQUESTS,
        "ends": dict(day.ends),
        "without one end": day.open_ended,
        "drafts": dict(day.drafted),
        "answers that differ": odd,
        "which": {str(VARIANTS[at])[:300]: dict(count) for at, count in unlike.items()},
        "bytes per request, by process": {name: round(value) for name, value in grown.items()},
        "MiB, by process": {
            name: [round(each.get(name, 0) / 2**20, 1) for each in sizes] for name in before
        },
        "kv": kv_after,
    }
    (results_folder() / "drafted_day.json").write_text(json.dumps(row, indent=1))
    print(json.dumps(row, indent=1))
    assert not day.open_ended
    assert set(before) <= set(after), "a process was replaced"
    assert odd == 0
    assert not any(kv_after.values()), "KV is in use by no request"
    assert all(day.drafted[f"{mode} accepted"] for mode in ("ngram", "draft_model"))
    if PROVING:
        assert max(grown.values()) <= MOST_GROWTH, grown
