"""A reranker in a GGUF file, served by a real llama-server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bus.wire.messages.requests import InputsPrompt
from bus.wire.messages.tokens import Failed, Finished, Vectors
from runner.__main__ import load_inputs
from runner.llama.vectors import log_odds
from runner.roles.embedding import EmbeddingRole
from tests.harness.gguf_files import from_qwen3
from tests.harness.llama_site import PROGRAM, TINY, needs_program
from tests.harness.rerankers import naive_logit, reranker_gguf, write_reranker
from tests.harness.role_site import Site

QUERY = "where is the cat?"
DOCUMENTS = ("the cat sings", "a river of birds", "dog", "x y z 1 2 3", "[SEP] [CLS] the", " ")
APART = 0.1
"""llama.cpp looks up some functions in tables of 16 bits; these weights make large numbers."""


class RankSite(Site[EmbeddingRole]):
    """A reranker's role with a llama-server."""

    def __init__(self, folder: Path, model: Path) -> None:
        factories = {"load_inputs": load_inputs, "llama_server": PROGRAM}
        spec = {"context_tokens": 64, "makes": "reranker", "path": str(model), "dtype": "gguf"}
        super().__init__(folder, EmbeddingRole, factories, **spec)

    def ask(self, name: str, prompt: InputsPrompt) -> list[float]:
        """Return the scores of documents; none if the request failed."""
        self.gateway.submit(name, prompt)
        return self.scores(name)

    def scores(self, name: str) -> list[float]:
        """Return the scores of a request when it has ended."""
        self.ended(name)
        entries = [entry for entry in self.gateway.entries[name] if isinstance(entry, Vectors)]
        data = [vector for entry in entries for vector in entry.vectors]
        return [float(np.frombuffer(score, "<f4")[0]) for score in data]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reranker(
        tmp_path_factory.mktemp("rank") / "model", doubled=True, type_vocab_size=1
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[RankSite]:
    made = tmp_path_factory.mktemp("site")
    target = reranker_gguf(folder, made / "gguf" / "r.gguf")
    site = RankSite(made, target.parent)
    try:
        yield site
    finally:
        site.close()


@needs_program
def test_scores_are_those_of_the_original_weights(site: RankSite, folder: Path) -> None:
    scores = site.ask("a", InputsPrompt(query=QUERY, inputs=DOCUMENTS))
    naive = [naive_logit(folder, QUERY, document) for document in DOCUMENTS[:4]]
    assert np.abs(np.array(scores[:4]) - naive).max() < APART
    assert len(scores) == len(DOCUMENTS)
    end = site.gateway.entries["a"][-1]
    assert isinstance(end, Finished) and end.usage.prompt_tokens > 0


@needs_program
def test_long_documents_are_refused_or_cut_and_the_runner_stays(site: RankSite) -> None:
    longest, long = "x " * 55, "x " * 400
    assert site.ask("long", InputsPrompt(query=QUERY, inputs=("a", long))) == []
    end = site.gateway.entries["long"][-1]
    assert isinstance(end, Failed)
    assert (end.reason, end.details["field"]) == ("context_length", "documents[1]")
    scores = site.ask("cut", InputsPrompt(query=QUERY, inputs=(longest, long, "dog"), cut=True))
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    assert site.host.left is None


@needs_program
def test_batches_with_several_queries_are_told_apart(site: RankSite, folder: Path) -> None:
    queries = {f"q{number}": f"what sings {number}" for number in range(6)}
    for name, query in queries.items():
        site.gateway.submit(name, InputsPrompt(query=query, inputs=DOCUMENTS[:2]))
    for name, query in queries.items():
        scores = site.scores(name)
        naive = [naive_logit(folder, query, document) for document in DOCUMENTS[:2]]
        assert np.abs(np.array(scores) - naive).max() < APART


@needs_program
def test_a_decoder_that_answers_yes_or_no_ranks(tmp_path: Path) -> None:
    """llama-server gives the chance of yes. With the two labels exchanged it is that of no."""
    head = np.random.default_rng(5).standard_normal((2, 192)) * 0.05
    scores: list[list[float]] = []
    for number, rows in enumerate((head, head[::-1])):
        target = from_qwen3(TINY, tmp_path / f"gguf{number}" / "q.gguf", head=rows)
        (tmp_path / f"site{number}").mkdir()
        site = RankSite(tmp_path / f"site{number}", target.parent)
        try:
            scores.append(site.ask("a", InputsPrompt(query=QUERY, inputs=DOCUMENTS)))
            site.ask("long", InputsPrompt(query=QUERY, inputs=("x " * 400,)))
            assert isinstance(site.gateway.entries["long"][-1], Failed)
            cut = InputsPrompt(query=QUERY, inputs=("x " * 400,), cut=True)
            assert len(site.ask("cut", cut)) == 1
        finally:
            site.close()
    yes, no = np.array(scores)
    assert np.abs(yes + no).max() < 1e-2 and np.ptp(yes) > 1e-2


def test_the_odds_of_a_chance() -> None:
    assert log_odds(0.5) == 0.0
    assert log_odds(0.0) == pytest.approx(-log_odds(1.0)) and log_odds(0.0) < -20
