"""An embedding model in a GGUF file, served by a real llama-server: its vectors, and its end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from bus.wire.messages.requests import InputsPrompt, TextPrompt
from bus.wire.messages.tokens import Failed, Vectors
from runner import lifecycle
from runner.__main__ import load_inputs
from runner.roles.embedding import EmbeddingRole
from tests.harness.embedding_vectors import MINILM, TEXTS
from tests.harness.gguf_files import embedder, from_bert
from tests.harness.llama_site import PROGRAM, needs_program
from tests.harness.minilm import NotFetched, minilm_folder
from tests.harness.missing import missing
from tests.harness.role_site import Site

pytestmark = needs_program
FEW = 12
"""Recorded texts that are computed here, the shortest ones."""
APART = 1e-3
"""llama.cpp looks up some functions in tables of 16 bits."""


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model as a GGUF file, without its tokenizer.json."""
    try:
        folder = minilm_folder()
    except NotFetched as error:
        missing(error)
    return from_bert(folder, tmp_path_factory.mktemp("minilm") / "m" / "minilm.gguf").parent


class VectorSite(Site[EmbeddingRole]):
    """An embedding role with a llama-server."""

    def __init__(self, folder: Path, model: Path, **spec: Any) -> None:
        factories = {"load_inputs": load_inputs, "llama_server": PROGRAM}
        given = {"context_tokens": 256, "makes": "embedding", **spec}
        super().__init__(folder, EmbeddingRole, factories, path=str(model), dtype="gguf", **given)

    @property
    def child(self) -> psutil.Process:
        (child,) = [each for each in psutil.Process().children() if "--embedding" in each.cmdline()]
        return child

    def ask(self, name: str, *inputs: Any, cut: bool = False) -> np.ndarray[Any, Any]:
        """Return the vectors of inputs, (inputs, width)."""
        self.gateway.submit(name, InputsPrompt(inputs=inputs, cut=cut))
        self.ended(name)
        entries = [one for one in self.gateway.entries[name] if isinstance(one, Vectors)]
        data = [vector for entry in entries for vector in entry.vectors]
        return np.array([np.frombuffer(vector, "<f4") for vector in data])

    def fault(self, name: str) -> Failed:
        """Return the end of a request that failed."""
        end = self.ended(name)
        assert isinstance(end, Failed)
        return end

    def left(self) -> tuple[int, str]:
        """Wait until the role leaves; return the exit code and the reason."""
        self.until(lambda: self.role.watch(self.reactor.now()) or self.host.left is not None)
        assert self.host.left is not None
        return self.host.left[0], self.host.left[-1]


@pytest.fixture
def site(tmp_path: Path, minilm: Path) -> Iterator[VectorSite]:
    made = VectorSite(tmp_path, minilm)
    try:
        yield made
    finally:
        made.close()


def test_its_vectors_are_those_of_the_original_model(site: VectorSite) -> None:
    texts, recorded = json.loads(TEXTS.read_text()), np.load(MINILM)
    plain = [at for at, text in enumerate(texts) if text.isascii() and "[" not in text]
    few = sorted(plain, key=lambda at: len(texts[at]))[:FEW]
    vectors = site.ask("a", *(texts[at] for at in few))
    assert vectors.shape == (FEW, 384)
    assert np.abs(vectors - recorded[few]).max() < APART
    alone = site.ask("b", texts[few[-1]])
    assert np.abs(alone[0] - vectors[-1]).max() < 1e-6
    site.gateway.submit("c", InputsPrompt(inputs=("x",), dimensions=64))
    assert site.refused("c").refusal.field == "dimensions"
    site.gateway.submit("d", TextPrompt(text="x"))
    assert "cannot generate text" in site.refused("d").refusal.message


def test_long_inputs_are_cut_or_refused_and_token_ids_taken(site: VectorSite) -> None:
    words = "word " * 300
    vectors = site.ask("a", words, words + "more", cut=True)
    assert vectors.shape == (2, 384) and np.array_equal(vectors[0], vectors[1])
    assert site.ask("b", words).size == 0
    assert site.fault("b").reason == "context_length" and "302 tokens" in site.fault("b").message
    whole, bare = site.ask("c", (101, 2773, 102), (2773,))
    assert np.array_equal(whole, bare)
    assert np.allclose(site.ask("d", "word")[0], bare, atol=1e-6)
    assert site.ask("e", (30522,)).size == 0
    assert "ids are 0 to 30521" in site.fault("e").message


def test_a_killed_llama_server_ends_the_runner_and_no_client_is_blamed(site: VectorSite) -> None:
    os.kill(site.child.pid, signal.SIGKILL)
    site.gateway.submit("a", InputsPrompt(inputs=("x",)))
    assert site.fault("a").reason == "runner_lost"
    code, why = site.left()
    assert code == lifecycle.ENGINE_ERROR and "was killed by signal 9" in why


def test_the_tokenizer_beside_the_file_is_preferred(tmp_path: Path, minilm: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "minilm.gguf").symlink_to(minilm / "minilm.gguf")
    (folder / "tokenizer.json").write_bytes((minilm_folder() / "tokenizer.json").read_bytes())
    texts, recorded = json.loads(TEXTS.read_text()), np.load(MINILM)
    hindi = next(at for at, text in enumerate(texts) if text.startswith("नमस्ते"))
    site = VectorSite(tmp_path, folder)
    try:
        assert np.abs(site.ask("a", texts[hindi])[0] - recorded[hindi]).max() < APART
    finally:
        site.close()


def test_a_file_that_llama_server_cannot_load_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "m.gguf").write_bytes(embedder())
    site = VectorSite(tmp_path, folder, context_tokens=64)
    try:
        code, why = site.left()
        assert code == lifecycle.LOAD_FAILED and "llama-server ended" in why
    finally:
        site.close()
