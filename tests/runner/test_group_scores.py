"""What a runner tells of prompts is what one plain forward of mlx-lm says: one rank, and groups.

Every rank is a process on loopback, in float32. Prompts come in a crowd, some with nothing made
after them, some twice, some beside requests that do not ask; one is computed in many chunks.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model
from numpy.typing import NDArray

from bus.wire.messages.requests import TokensPrompt
from bus.wire.messages.tokens import Finished, PromptTokens, TokenDelta, TokenLogprob
from tests.harness.families import MODELS, write_model
from tests.harness.group_requests import NOISE, ROUGH_NOISE
from tests.harness.ranks import LAYERS, TINY, one_gateway, ready_group, stages
from tests.harness.slot import FakeGateway, Stream, request
from tests.harness.variants import mostly_proof

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BUNDLED = "bundled"
SHAPES = mostly_proof(["alone", "pipeline", "tensor"], ["pipeline"])
FAMILIES = [
    BUNDLED,
    *(pytest.param(name, marks=pytest.mark.proof) for name in ("llama", "qwen3_moe", "gpt_oss")),
]


@contextlib.contextmanager
def serving(model: Path, shape: str, depth: int) -> Iterator[FakeGateway]:
    """A gateway of a runner that serves the model, of `depth` layers, in this shape."""
    layers = [(0, depth)] * 2 if shape == "tensor" else stages(depth, 2)
    if shape == "alone":
        with one_gateway(TINY) if model == TINY else one_gateway(model) as gateway:
            yield gateway
    elif model == TINY:
        with ready_group(TINY, shape, layers) as (_, gateway):
            yield gateway
    else:
        with ready_group(model, shape, layers) as (_, gateway):
            yield gateway


def told(stream: Stream) -> list[TokenLogprob]:
    """All that was told of a stream's prompt; its pieces come first and have no gaps."""
    stream.check()
    assert isinstance(stream.end, Finished), stream.end
    found: list[TokenLogprob] = []
    for entry in stream.entries:
        if isinstance(entry, PromptTokens):
            assert entry.start == len(found)
            found += entry.logprobs
        elif isinstance(entry, TokenDelta):
            assert len(found) in (0, stream.end.usage.prompt_tokens)
    return found


def crowd() -> dict[str, tuple[list[int], dict[str, Any]]]:
    """Prompts by name, with what is asked of them: scores alone, scores and text, text alone."""
    chance = random.Random(7)
    beginning = [chance.randrange(3, 259) for _ in range(70)]
    prompts = [
        [*beginning[: chance.choice((0, 70))], *(chance.randrange(3, 259) for _ in range(length))]
        for length in (1, 30, 65, 90, 400)
    ]
    asked: dict[str, tuple[list[int], dict[str, Any]]] = {}
    for number, tokens in enumerate([*prompts, prompts[2]]):
        for most in (0, 2):
            asks = {"prompt_logprobs": 2, "top_logprobs": 2, "max_tokens": most}
            asked[f"{number}-{most}"] = (tokens, asks)
        asked[f"{number}-plain"] = (tokens, {"max_tokens": 4})
    return asked


def check(stream: Stream, tokens: list[int], wanted: NDArray[np.float32], close: float) -> None:
    """Hold what a stream told of its prompt, and of its first token, to a plain forward's."""
    found = told(stream)
    assert [one.token_id for one in found] == tokens
    assert (found[0].logprob, found[0].top) == (0.0, ())
    for at, one in enumerate(found[1:]):
        assert one.logprob == pytest.approx(wanted[at][one.token_id], abs=close)
        likeliest = np.sort(wanted[at])[:-3:-1].tolist()
        assert [number for _, _, number in one.top] == pytest.approx(likeliest, abs=close)
    made = [each for delta in stream.deltas for each in delta.logprobs]
    if made:
        assert made[0].logprob == pytest.approx(wanted[-1][made[0].token_id], abs=close)
    assert isinstance(stream.end, Finished)
    assert stream.end.usage.completion_tokens == len(made), "every sampled token is told of"
    assert stream.end.usage.cached_tokens == 0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_token_has_the_log_probability_of_a_plain_forward(
    tmp_path: Path, family: str, shape: str
) -> None:
    folder, depth, close = TINY, LAYERS, NOISE
    if family != BUNDLED:
        folder, depth, close = write_model(tmp_path / "model", MODELS[family]), 4, ROUGH_NOISE
    asked = crowd()
    streams: dict[str, Stream] = {}
    with serving(folder, shape, depth) as gateway:
        for begin in range(0, len(asked), 8):
            for name in list(asked)[begin : begin + 8]:
                tokens, asks = asked[name]
                prompt = TokensPrompt(token_ids=tuple(tokens))
                streams[name] = gateway.submit(request(name, prompt=prompt, **asks))
            gateway.ended(*streams.values(), seconds=200.0)
    model, _ = load_model(folder)
    model.set_dtype(mx.float32)

    @cache
    def plain(tokens: tuple[int, ...]) -> NDArray[np.float32]:
        """The log-probabilities of all tokens after each of these."""
        logits = model(mx.array([tokens]))[0].astype(mx.float32)
        return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))

    for name, (tokens, asks) in asked.items():
        if "prompt_logprobs" in asks:
            check(streams[name], tokens, plain(tuple(tokens)), close)
            assert streams[name].tokens == asks["max_tokens"]
        else:
            assert told(streams[name]) == []
