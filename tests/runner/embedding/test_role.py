"""The role of an embedding model, with a made-up engine, over real sockets and threads."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.wire.errors import BadRequest
from bus.wire.ids import Boot, RequestId
from bus.wire.messages.requests import InputsPrompt, PromptQuestion, TextPrompt
from bus.wire.messages.tokens import (
    Cancel,
    Credit,
    Failed,
    Finished,
    Ping,
    Vectors,
)
from runner import lifecycle
from runner.embedding.loop import BATCH_DEADLINE_S
from runner.roles.embedding import EmbeddingRole
from runner.text import RankedPair
from tests.harness.embedder import LIMIT, Facts, FakeEmbedder, WordReader, vector
from tests.harness.role_site import Site


class EmbeddingSite(Site[EmbeddingRole]):
    """An embedding role with a made-up engine."""

    def __init__(self, folder: Path, *, ranks: bool = False, **spec: Any) -> None:
        facts = Facts(1, width=1, ranks=True) if ranks else Facts()
        self.engine = FakeEmbedder(facts)
        factories = {
            "load_embedder": lambda _spec, _progress: self.engine,
            "load_inputs": lambda _spec, _tokenizer: PairedWords() if ranks else WordReader(),
        }
        makes = "reranker" if ranks else "embedding"
        super().__init__(
            folder, EmbeddingRole, factories, context_tokens=LIMIT, makes=makes, **spec
        )

    def submit(self, name: str, *inputs: str, **fields: Any) -> None:
        more = {key: fields.pop(key) for key in ("cut", "dimensions") if key in fields}
        prompt = fields.pop("prompt", None) or InputsPrompt(inputs=inputs, **more)
        self.gateway.submit(name, prompt, **fields)

    def send(self, message: Any) -> None:
        self.gateway.send(message)

    def has_read(self, name: str) -> bool:
        """Whether the first inputs of a request are ready to be computed."""
        return self.noted("prompt_build", name)

    def vectors(self, name: str) -> list[bytes]:
        mine = [one for one in self.gateway.entries[name] if isinstance(one, Vectors)]
        return [one for entry in mine for one in entry.vectors]

    def close(self) -> None:
        if self.engine.let is not None:
            self.engine.let.release(1000)
        super().close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[EmbeddingSite]:
    made = EmbeddingSite(tmp_path, max_rows=2, max_waiting=1, drop_idle_s=0.2)
    try:
        yield made
    finally:
        made.close()


def held(site: EmbeddingSite) -> threading.Semaphore:
    """Let no further batch be computed by itself."""
    site.engine.let = threading.Semaphore(0)
    return site.engine.let


def test_vectors_come_in_the_order_of_their_inputs_and_the_end_says_what_was_read(
    site: EmbeddingSite,
) -> None:
    texts = [("word " * (1 + number % 5)).strip() for number in range(200)]
    site.submit("a", *texts)
    end = site.ended("a")
    assert isinstance(end, Finished)
    assert site.vectors("a") == [vector((4,) * len(text.split())) for text in texts]
    assert end.usage.prompt_tokens == sum(len(text.split()) for text in texts)
    assert max(site.engine.batches) > 1
    reading = site.role.reading(time.monotonic())
    assert (reading.running, reading.waiting, reading.phase) == (0, 0, "ready")
    assert reading.prompt_tokens == end.usage.prompt_tokens


def test_one_input_comes_before_the_rest_of_many(site: EmbeddingSite) -> None:
    let = held(site)
    site.submit("many", *["a b c d e f g h"] * 2000)
    site.until(lambda: site.engine.batches)
    site.submit("one", "short")
    site.until(lambda: site.has_read("one"))
    let.release(2)
    assert isinstance(site.ended("one"), Finished)
    assert len(site.vectors("many")) < 2000
    let.release(1000)
    site.ended("many")
    assert len(site.vectors("many")) == 2000


def test_what_is_too_long_is_refused_by_its_number_or_cut_and_said(site: EmbeddingSite) -> None:
    long = "w " * (LIMIT + 3)
    site.submit("refused", *["ok"] * 70, long)
    end = site.ended("refused")
    assert isinstance(end, Failed)
    assert (end.reason, end.details["field"]) == ("context_length", "input[70]")
    assert end.details["prompt_tokens"] == LIMIT + 3
    assert "maximum context length is 16 tokens" in end.message
    site.submit("cut", "ok", long, cut=True)
    assert isinstance(site.ended("cut"), Finished)
    cut = [one.cut for one in site.gateway.entries["cut"] if isinstance(one, Vectors)]
    assert [number for numbers in cut for number in numbers] == [1]
    site.submit("empty", "  ")
    end = site.ended("empty")
    assert isinstance(end, Failed)
    assert (end.reason, end.details["field"]) == ("bad_request", "input")


def test_dimensions_are_honoured_where_the_model_has_them(site: EmbeddingSite) -> None:
    site.submit("two", "a bc", dimensions=2)
    site.ended("two")
    assert site.vectors("two") == [vector((1, 2), 2)]
    site.submit("three", "a bc", dimensions=3)
    refusal = site.refused("three").refusal
    assert (refusal.reason, refusal.field) == ("bad_request", "dimensions")
    assert "2 or 4 numbers" in refusal.message


def test_a_request_for_text_is_refused(site: EmbeddingSite) -> None:
    site.submit("text", prompt=TextPrompt(text="hi"))
    assert site.refused("text").refusal.reason == "unsupported"
    site.submit("asks", "hi", question=PromptQuestion(wants="count"))
    assert "embedding model" in site.refused("asks").refusal.message


def test_a_full_runner_refuses_unless_another_has_more_than_its_share(site: EmbeddingSite) -> None:
    let = held(site)
    for number in range(3):
        site.submit(f"r{number}", "a")
    site.submit("over", "a")
    refusal = site.refused("over").refusal
    assert (refusal.reason, refusal.position) == ("queue_full", 3)
    site.submit("other", "a", sharer=("other",))
    site.accepted("other")
    let.release(1000)
    for name in ("r0", "r1", "r2", "other"):
        assert isinstance(site.ended(name), Finished)


def test_a_cancelled_request_ends_at_once_and_the_next_goes_on(site: EmbeddingSite) -> None:
    let = held(site)
    site.submit("gone", *["a"] * 500)
    site.until(lambda: site.engine.batches)
    site.send(Cancel(RequestId("gone"), "client"))
    end = site.ended("gone")
    assert isinstance(end, Finished) and site.vectors("gone") == []
    let.release(1)
    site.submit("next", "abc")
    let.release(1)
    site.ended("next")
    assert site.vectors("next") == [vector((3,))]
    assert len(site.engine.batches) == 2
    site.submit("gone", "a")
    assert site.refused("gone").refusal.reason == "conflict"


def test_vectors_wait_for_credit_and_a_reader_that_takes_nothing_is_dropped(
    site: EmbeddingSite,
) -> None:
    site.submit("slow", *["a b c d e f g h"] * 300, credit=1)
    site.until(lambda: site.gateway.entries.get("slow"))
    first = len(site.vectors("slow"))
    assert 0 < first < 300
    site.send(Credit(RequestId("slow"), 0, 1))
    site.until(lambda: len(site.vectors("slow")) > first)
    assert site.role.open_requests == 1

    def is_dropped() -> bool:
        site.role.watch(site.reactor.now())
        return site.role.open_requests == 0

    site.until(is_dropped)
    end = site.ended("slow")
    assert isinstance(end, Failed) and "read nothing" in end.message


def test_a_long_batch_counts_as_progress_until_it_is_late(site: EmbeddingSite) -> None:
    held(site)
    site.submit("long", "a")
    site.until(lambda: site.engine.batches)
    steps: list[int] = []
    for _ in range(2):
        site.gateway.pong = None
        site.send(Ping(Boot("gw")))
        site.until(lambda: site.gateway.pong)
        assert site.gateway.pong is not None
        steps.append(site.gateway.pong.step)
    assert steps[0] < steps[1]
    site.role.watch(site.reactor.now())
    assert site.host.left is None
    site.role.watch(site.reactor.now() + 10 * BATCH_DEADLINE_S)
    assert site.host.left is None, "the machine slept: nobody could have computed"
    for second in range(int(BATCH_DEADLINE_S) + 3):
        site.role.watch(site.reactor.now() + 10 * BATCH_DEADLINE_S + second)
    assert site.host.left is not None and site.host.left[0] == lifecycle.WEDGED


def test_a_deadline_ends_a_request_that_waits(site: EmbeddingSite) -> None:
    held(site)
    site.submit("first", "a")
    site.until(lambda: site.engine.batches)
    site.submit("late", "a", remaining_ms=1)
    site.accepted("late")
    site.role.watch(site.reactor.now() + 1.0)
    end = site.ended("late")
    assert isinstance(end, Failed) and end.reason == "deadline"


def test_while_it_drains_it_refuses_and_ends_what_is_open(site: EmbeddingSite) -> None:
    let = held(site)
    site.submit("open", "a")
    site.until(lambda: site.engine.batches)
    site.host.signal("drain")
    site.submit("late", "a")
    assert site.refused("late").refusal.reason == "draining"
    assert not site.role.is_empty
    let.release(1)
    assert isinstance(site.ended("open"), Finished)
    assert site.role.is_empty


def test_an_engine_that_raises_ends_the_runner_and_what_is_open_fails(site: EmbeddingSite) -> None:
    site.engine.broken = True
    site.submit("a", "a")
    site.until(lambda: site.host.left)
    assert site.host.left is not None
    code, reason, message = site.host.left
    assert (code, reason) == (lifecycle.ENGINE_ERROR, "runner_lost")
    assert "the device is lost" in message
    site.role.fail_all("runner_lost", message)
    end = site.ended("a")
    assert isinstance(end, Failed) and end.reason == "runner_lost"


class PairedWords:
    """The reader of documents beside a query: one token for each word, and one for the query."""

    def of_query(self, query: str) -> PairedWords:
        if query == "unreadable":
            raise BadRequest("the query is unreadable")
        return self

    def prepare(self, text: Any, cut: bool) -> RankedPair:
        words = WordReader().prepare(text, cut)
        return RankedPair((9, *words.tokens), 1, "q", text, words.cut_off)


def test_a_reranker_scores_documents_and_refuses_other_requests(tmp_path: Path) -> None:
    site = EmbeddingSite(tmp_path, ranks=True)
    try:
        site.submit("a", prompt=InputsPrompt(query="q", inputs=("one", "one two three", "a b")))
        site.ended("a")
        assert [struct.unpack("<f", score)[0] for score in site.vectors("a")] == [1.0, 3.0, 2.0]
        site.submit("long", prompt=InputsPrompt(query="q", inputs=("a", "w " * (LIMIT + 1))))
        end = site.ended("long")
        assert isinstance(end, Failed)
        assert (end.reason, end.details["field"]) == ("context_length", "documents[1]")
        site.submit("query", prompt=InputsPrompt(query="unreadable", inputs=("a",)))
        end = site.ended("query")
        assert isinstance(end, Failed)
        assert (end.reason, end.details["field"]) == ("bad_request", "query")
        site.submit("vector", "a")
        assert "cannot make embeddings" in site.refused("vector").refusal.message
        site.submit("text", prompt=TextPrompt(text="a"))
        assert "is a reranker; it cannot generate text" in site.refused("text").refusal.message
    finally:
        site.close()


def test_an_embedding_model_ranks_no_documents(site: EmbeddingSite) -> None:
    site.submit("rank", prompt=InputsPrompt(query="q", inputs=("a",)))
    assert "cannot rank documents" in site.refused("rank").refusal.message
