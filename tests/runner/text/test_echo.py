"""A request that asks about its prompt is told of each token of prompt and output."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, RequestId, TokenId
from bus.wire.messages.requests import GenerationRequest, TextPrompt, TokensPrompt
from runner.engine import PromptScores, RowId, SampledToken
from runner.text.echo import PIECE_TOKENS
from runner.text.prepared import PreparedRequest, PromptPiece, TextPiece
from runner.text.text import Text
from tests.harness.toy_tokenizer import toy_tokenizer

TOKENIZER = toy_tokenizer()
TEXT = Text(TOKENIZER)
EOS = 2


def request(prompt: Any, **fields: Any) -> GenerationRequest:
    fields = {"prompt_logprobs": 1, "top_logprobs": 1, **fields}
    return GenerationRequest(
        request_id=RequestId("req-1"), model=ModelId("toy"), prompt=prompt, **fields
    )


def ready(asked: GenerationRequest, context: int = 4096) -> PreparedRequest:
    prepared = TEXT.prepare(asked, context)
    assert isinstance(prepared, PreparedRequest), prepared
    return prepared


def scores(start: int, stop: int) -> PromptScores:
    numbers = tuple(-float(at) for at in range(start, stop))
    return PromptScores(RowId(1), start, numbers, tuple(((TokenId(9), -0.5),) for _ in numbers))


@settings(deadline=None, max_examples=50)
@given(st.text(min_size=1, max_size=150), st.data())
def test_pieces_have_every_token_once_and_the_text_whole(text: str, data: Any) -> None:
    prepared = ready(request(TextPrompt(text=text)))
    reader = TEXT.prompt(prepared)
    assert reader is not None
    pieces: list[PromptPiece] = []
    at, count = 0, len(prepared.tokens)
    while at < count:
        stop = data.draw(st.integers(at + 1, count))
        pieces += reader.read(scores(at, stop))
        at = stop
    assert "".join(piece.text for piece in pieces) == text
    told = [one for piece in pieces for one in piece.logprobs]
    assert [one.token_id for one in told] == list(prepared.tokens)
    assert [one.logprob for one in told] == [-float(at) for at in range(count)]
    assert all(one.top == ((9, TOKENIZER.token_text(9), -0.5),) for one in told)
    starts = [piece.start for piece in pieces]
    assert starts == [
        sum(len(piece.logprobs) for piece in pieces[:at]) for at in range(len(pieces))
    ]
    assert all(0 < len(piece.logprobs) <= PIECE_TOKENS for piece in pieces)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from([*TOKENIZER.encode("ab é🐟\n"), EOS, 0, 1]), max_size=12),
    st.sampled_from(["", "b", "é"]),
)
def test_every_sampled_token_is_told_of_once_also_one_without_text(
    tokens: list[int], stop: str
) -> None:
    stops = (stop,) if stop else ()
    plain = request(TextPrompt(text="x"), stop=stops, prompt_logprobs=None, top_logprobs=None)
    prepared = ready(request(TextPrompt(text="x"), stop=stops))
    reader, same = TEXT.choice(prepared, 0), TEXT.choice(ready(plain), 0)
    pieces: list[Any] = []
    said, pushed = "", []
    for number in tokens:
        sampled = SampledToken(RowId(1), TokenId(number), -0.5, ())
        output, other = reader.push(sampled), same.push(sampled)
        pieces += output.pieces
        said += "".join(piece.text for piece in other.pieces if isinstance(piece, TextPiece))
        pushed.append(number)
        assert output.ended == other.ended
        if output.ended:
            assert reader.push(SampledToken(RowId(1), TokenId(5), -0.5)).pieces == ()
            break
    finish, other_finish = reader.finish("length"), same.finish("length")
    pieces += finish.pieces
    said += "".join(piece.text for piece in other_finish.pieces if isinstance(piece, TextPiece))
    assert "".join(piece.text for piece in pieces) == said
    assert [one.token_id for piece in pieces for one in piece.logprobs] == pushed
    assert (finish.finish_reason, finish.stop) == (other_finish.finish_reason, other_finish.stop)


def test_a_prompt_alone_may_fill_the_context_and_no_more() -> None:
    tokens = TokensPrompt(token_ids=(5,) * 32)
    assert ready(request(tokens, max_tokens=0), context=32).max_tokens == 0
    assert ready(request(tokens, max_tokens=1), context=33).max_tokens == 1
    for most, context in ((0, 31), (1, 32)):
        refusal = TEXT.prepare(request(tokens, max_tokens=most), context)
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "context_length"
        assert refusal.facts["limit"] == 31


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt_logprobs": None, "max_tokens": 0}, "max_tokens"),
        ({"n": 2}, "n"),
    ],
)
def test_what_cannot_be_told_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    refusal = TEXT.prepare(request(TextPrompt(text="a"), **fields), 64)
    assert isinstance(refusal, Refusal)
    assert refusal.field == field
