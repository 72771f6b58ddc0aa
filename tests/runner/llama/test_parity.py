"""A GGUF model answers as the same weights in MLX do, and its tokenizer is that of llama-server."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.wire.messages.requests import Sampling, TextPrompt
from bus.wire.messages.tokens import Finished
from runner.llama import LlamaClient, differing
from runner.text import ModelTokenizer, TokenizerError
from tests.harness import mlx_lm_oracle
from tests.harness.gguf_files import from_qwen3
from tests.harness.llama_site import TINY, LlamaSite, needs_program, tiny_gguf

pytestmark = needs_program
PROMPTS = ("What is shoal?", "Once upon a time", "The fish swam", "1 2 3 4", "How do I")
TOKENS = 24
CLOSE = 0.05
"""A gap between the two likeliest tokens that 16-bit KV may close."""
LETTERS = "aZ09 .,'\n\tßéñ漢字かな한Жя😀👍\u0301\u00a0_-/(){}<|>"


def opened(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[LlamaSite]:
    made = LlamaSite(tmp_path_factory.mktemp("s"), model)
    try:
        assert made.host.phase == "ready", made.host.left
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaSite]:
    yield from opened(tmp_path_factory, tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaSite]:
    """Serve the model's file alone, whose tokenizer has to be built."""
    model = from_qwen3(TINY, tmp_path_factory.mktemp("built") / "tiny" / "tiny.gguf").parent
    yield from opened(tmp_path_factory, model)


def oracle() -> list[dict[str, Any]]:
    """Return mlx-lm's greedy answers to `PROMPTS`."""
    done = subprocess.run(
        [sys.executable, str(Path(mlx_lm_oracle.__file__)), str(TINY)],
        input=json.dumps([[prompt, TOKENS] for prompt in PROMPTS]),
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.proof  # tests/processes/test_gguf.py has one answer, on a real node
def test_greedy_answers_are_those_of_mlx(site: LlamaSite) -> None:
    for prompt, right in zip(PROMPTS, oracle(), strict=True):
        site.gateway.submit(
            prompt, TextPrompt(text=prompt), max_tokens=TOKENS, sampling=Sampling(temperature=0.0)
        )
        assert isinstance(site.ended(prompt), Finished)
        made, at = site.text(prompt), 0
        for piece, margin in zip(right["pieces"], right["margins"], strict=False):
            if made[at : at + len(piece)] != piece:
                assert margin < CLOSE, (prompt, made, right["text"])
                break
            at += len(piece)


def test_a_built_tokenizer_encodes_as_llama_server_does(built: LlamaSite) -> None:
    tokenizer = ModelTokenizer(Path(built.spec.path))
    draw = random.Random(5)
    texts = ["".join(draw.choices(LETTERS, k=draw.randint(1, 40))) for _ in range(300)]
    texts += [f"{word}<|im_end|>{word}<think>" for word in ("x", " ", "\n", "é")]
    socket = next(Path(built.folder).glob("*.llama.sock"))
    assert differing(LlamaClient(socket), tokenizer.encode, texts) == ""
    assert tokenizer.vocabulary == 2048 and tokenizer.eos_token_ids == {2041}
    for text in texts[:50]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("pre", "beside", "said"),
    [
        ("mystery", None, "put the tokenizer.json of the original model"),
        ("qwen2", '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}', "its token 0"),
        ("qwen2", '{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "its merges differ"),
    ],
)
def test_a_tokenizer_that_cannot_be_right_is_refused(
    tmp_path: Path, pre: str, beside: str | None, said: str
) -> None:
    from_qwen3(TINY, tmp_path / "tiny.gguf", pre=pre)
    if beside is not None:
        (tmp_path / "tokenizer.json").write_text(beside)
    with pytest.raises(TokenizerError, match=said):
        ModelTokenizer(tmp_path)
