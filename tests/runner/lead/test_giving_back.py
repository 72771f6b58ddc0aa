"""A request that is cut anywhere, and again, says what it says uncut: text, calls, ends, counts."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.data_frames import pack_to_gateway, unpack_to_gateway
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, RequestId, TokenId
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    TextPart,
    ToolSpec,
)
from bus.wire.messages.tokens import (
    AnswerSoFar,
    ChoiceEnd,
    ChoiceSoFar,
    Displaced,
    Entry,
    Finished,
    Suspended,
    TokenDelta,
    ToolCallDelta,
    Usage,
)
from gateway.runners.resuming import KeptMemory, Resuming
from runner.engine import RowId, SampledToken
from runner.lead.open_text import resume_request
from runner.schedule import RowCost, RowFinished, RowKey
from runner.text import ModelTokenizer, PreparedRequest, Text
from tests.harness.engine import facts
from tests.harness.open_requests import OpenedText
from tests.harness.slot import ROOT

TOKENIZER = ModelTokenizer(ROOT / "conf" / "tiny")
TEXT = Text(TOKENIZER)
COST = RowCost(5, 9, 3, 0.5, 0.25, 2.0)
PARTS = [
    "hello", " world", "<think>", "</think>", "<tool_call>", "</tool_call>", "\n",
    '{"name": "weather", "arguments": {"city": "Paris"}}', '{"name": "we', "é", "🙂", "END", "E",
]  # fmt: skip
"""What answers are made of, so that markers, stops and characters of several tokens are cut."""


def asked(*, logprobs: int | None, stops: tuple[str, ...], n: int) -> GenerationRequest:
    tools = (ToolSpec(name="weather", parameters={"type": "object"}),)
    turn = ChatMessage(role="user", parts=(TextPart(text="hello"),))
    return GenerationRequest(
        request_id=RequestId("r"),
        model=ModelId("m"),
        prompt=ChatPrompt(messages=(turn,), tools=tools),
        max_tokens=400,
        stop=stops,
        top_logprobs=logprobs,
        n=n,
        thinking=True,
        history=() if n == 1 else None,
    )


def sampled(token: int, logprobs: int | None) -> SampledToken:
    if logprobs is None:
        return SampledToken(RowId(1), TokenId(token))
    top = tuple((TokenId((token + k) % 2048), -0.5 - k) for k in range(logprobs))
    return SampledToken(RowId(1), TokenId(token), -0.1 * token, top)


def opened(
    prepared: PreparedRequest, credit: int, so_far: AnswerSoFar | None, deaths: int | None = None
) -> OpenedText:
    readers = [TEXT.choice(prepared, one.choice) for one in prepared.choices]
    seeds = [2**64 - 1 - one.choice for one in prepared.choices]
    if so_far is not None:
        assert [one.seed for one in so_far.choices] == seeds
    return OpenedText(prepared, readers, seeds=seeds, credit=credit, so_far=so_far, deaths=deaths)


def told(entries: list[Entry]) -> tuple[object, ...]:
    """What a client is told, without the numbers of entries."""
    costing = [one for one in entries if isinstance(one, TokenDelta | ToolCallDelta)]
    pieces = [
        [replaced(one) for one in costing if one.choice == choice]
        for choice in range(1 + max((one.choice for one in costing), default=0))
    ]
    ends = {
        one.choice: (one.finish_reason, one.stop) for one in entries if isinstance(one, ChoiceEnd)
    }
    (end,) = [one for one in entries if isinstance(one, Finished)]
    counts = (end.usage.completion_tokens, end.usage.prompt_tokens, end.usage.reasoning_tokens)
    return pieces, ends, counts, end.prompt


def replaced(entry: TokenDelta | ToolCallDelta) -> tuple[object, ...]:
    if isinstance(entry, TokenDelta):
        return (entry.channel, entry.text, entry.tokens, entry.logprobs)
    return (entry.call, entry.call_id, entry.name, entry.arguments, entry.tokens)


def said(
    prepared: PreparedRequest,
    tokens: list[list[int]],
    logprobs: int | None,
    cuts: list[tuple[int, int]],
) -> list[Entry]:
    """All entries of a request whose choices make these tokens, one of each in turn, by runners
    that give it back after so many tokens, each with so much credit."""
    entries: list[Entry] = []
    so_far: AnswerSoFar | None = None
    made = opened(prepared, cuts[0][1] if cuts else 10_000, None)
    made.text.started(0, 2)
    for place in range(max(map(len, tokens))):
        for cut, _ in cuts:
            if cut == place and made.text.may_move:
                keys = [RowKey(RequestId("r"), choice) for choice in range(len(tokens))]
                frame = made.text.given_back([RowFinished(key, "cancelled", COST) for key in keys])
                assert isinstance(frame, Suspended)
                so_far = unpack_to_gateway(pack_to_gateway(frame)).so_far
                again = resume_request(replace(prepared, tokens=(TokenId(9),)), so_far, facts())
                assert again == prepared, "the prompt is that which was read first"
                later = [credit for at, credit in cuts if at > place]
                entries += made.entries
                made = opened(again, later[0] if later else 10_000, so_far)
                made.text.started(0, 777)
        for choice, mine in enumerate(tokens):
            if place < len(mine):
                made.text.token(choice, sampled(mine[place], logprobs), 0.0)
    for choice in range(len(tokens)):
        made.request.grant(choice, 100_000, 0.0)
        made.text.row_finished(choice, "length", COST, 0.0)
    return [*entries, *made.entries]


@given(
    st.integers(0, 2**32),
    st.sampled_from([None, 0, 2]),
    st.sampled_from([(), ("END",), ("hello END", "</x>")]),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from([1, 2, 5, 10_000])), max_size=5),
)
@settings(max_examples=150, deadline=None)
def test_a_request_that_is_cut_anywhere_says_what_it_says_uncut(
    seed: int, logprobs: int | None, stops: tuple[str, ...], n: int, cuts: list[tuple[int, int]]
) -> None:
    prepared = TEXT.prepare(asked(logprobs=logprobs, stops=stops, n=n), 4096)
    assert isinstance(prepared, PreparedRequest)
    chance = random.Random(seed)
    tokens = [
        [one for part in chance.choices(PARTS, k=12) for one in TOKENIZER.encode(part)][:45]
        for _ in range(n)
    ]
    once = dict(cuts)
    found = said(prepared, tokens, logprobs, sorted(once.items()))
    assert told(found) == told(said(prepared, tokens, logprobs, []))
    (end,) = [one for one in found if isinstance(one, Finished)]
    assert end.usage.cached_tokens == 2, "as it was where it began"


def outliving(
    prepared: PreparedRequest,
    tokens: list[list[int]],
    logprobs: int | None,
    lives: list[tuple[int, int, int]],
) -> list[Entry]:
    """All entries of a request that come to a gateway, whose choices make these tokens, by runners
    that die after so many tokens, with so much credit, and whose last entries are lost."""
    entries: list[Entry] = []
    so_far: AnswerSoFar | None = None
    fate = Resuming(KeptMemory())
    for death, (steps, credit, lost) in enumerate([*lives, (10_000, 10_000, 0)]):
        made = opened(prepared, credit, so_far, death)
        made.text.started(0, 2)
        fate.began(made.text.begun(), 0.0)
        for choice in made.text.complete:
            made.text.row_finished(choice, "stop", COST, 0.0)
        for step in range(steps):
            choice, text = step % len(tokens), made.text
            have = len(text.choices[choice].made)
            if text.choices[choice].cost is not None:
                continue
            if have == len(tokens[choice]):
                text.row_finished(choice, "length", COST, 0.0)
            elif text.token(choice, sampled(tokens[choice][have], logprobs), 0.0):
                text.row_finished(choice, "stop", COST, 0.0)
        came = made.entries[: max(len(made.entries) - lost, 0)]
        if death < len(lives):
            came = [one for one in came if not isinstance(one, Finished)]
        for entry in came:
            if getattr(entry, "choice", None) in fate.over:
                continue
            if isinstance(entry, TokenDelta | ToolCallDelta):
                assert fate.record is not None and fate.record.add(entry)
            elif isinstance(entry, ChoiceEnd):
                fate.over.add(entry.choice)
            entries.append(entry)
        so_far = fate.so_far(logprobs=logprobs is not None)
        assert so_far is not None
        again = resume_request(replace(prepared, tokens=(TokenId(9),)), so_far, facts())
        assert again == prepared, "the prompt and the limit are those of the first runner"
    return entries


@given(
    st.integers(0, 2**32),
    st.sampled_from([None, 0, 2]),
    st.sampled_from([(), ("END",), ("hello END", "</x>")]),
    st.integers(1, 3),
    st.lists(
        st.tuples(st.integers(0, 150), st.sampled_from([1, 2, 5, 10_000]), st.integers(0, 4)),
        max_size=3,
    ),
)
@settings(max_examples=150, deadline=None)
def test_a_request_whose_runners_die_anywhere_says_what_it_says_undisturbed(
    seed: int,
    logprobs: int | None,
    stops: tuple[str, ...],
    n: int,
    lives: list[tuple[int, int, int]],
) -> None:
    chance = random.Random(seed)
    tokens = [
        [one for part in chance.choices(PARTS, k=12) for one in TOKENIZER.encode(part)][:45]
        for _ in range(n)
    ]
    longest = {"max_tokens": max(map(len, tokens))}
    request = asked(logprobs=logprobs, stops=stops, n=n).model_copy(update=longest)
    prepared = TEXT.prepare(request, 4096)
    assert isinstance(prepared, PreparedRequest)
    found = outliving(prepared, tokens, logprobs, lives)
    assert told(found) == told(outliving(prepared, tokens, logprobs, []))


def test_one_that_has_not_begun_is_given_back_without_an_answer() -> None:
    prepared = TEXT.prepare(asked(logprobs=None, stops=(), n=1), 4096)
    assert isinstance(prepared, PreparedRequest)
    assert opened(prepared, 10, None).text.given_back([]) == Displaced(RequestId("r"))


def test_what_it_cost_elsewhere_counts_on() -> None:
    prepared = TEXT.prepare(asked(logprobs=None, stops=(), n=1), 4096)
    assert isinstance(prepared, PreparedRequest)
    usage = Usage(prompt_tokens=9, completion_tokens=1, queue_s=1.0, prefill_s=2.0, decode_s=3.0)
    choice = ChoiceSoFar(2**64 - 1, (5,), 0)
    so_far = AnswerSoFar(tuple(prepared.tokens), prepared.max_tokens, (choice,), usage)
    made = opened(prepared, 10, so_far)
    made.text.row_finished(0, "length", COST, 0.0)
    (end,) = [one for one in made.entries if isinstance(one, Finished)]
    assert (end.usage.queue_s, end.usage.prefill_s, end.usage.decode_s) == (1.5, 2.25, 5.0)
    assert end.usage.completion_tokens == 1


def test_a_request_with_an_end_or_scores_of_its_prompt_stays() -> None:
    prepared = TEXT.prepare(asked(logprobs=None, stops=("END",), n=2), 4096)
    assert isinstance(prepared, PreparedRequest)
    text = opened(prepared, 10, None).text
    assert text.may_move
    for token in TOKENIZER.encode(" END"):
        text.token(1, sampled(token, None), 0.0)
    assert not text.may_move


def test_a_copy_with_less_context_gives_what_it_has_and_refuses_what_it_has_not() -> None:
    prepared = TEXT.prepare(asked(logprobs=None, stops=(), n=1), 4096)
    assert isinstance(prepared, PreparedRequest)
    made = ChoiceSoFar(1, tuple(range(20)), 0)
    so_far = AnswerSoFar(tuple(range(100)), 400, (made,), Usage())
    less = resume_request(prepared, so_far, facts(context_tokens=300))
    assert isinstance(less, PreparedRequest)
    assert less.max_tokens == 200 and len(less.tokens) == 100
    refused = resume_request(prepared, so_far, facts(context_tokens=120))
    assert isinstance(refused, Refusal) and refused.reason == "context_length"
    none = resume_request(prepared, AnswerSoFar((1,), 400, (made, made), Usage()), facts())
    assert isinstance(none, Refusal) and none.reason == "bad_request"


def test_what_reads_differently_here_is_refused() -> None:
    prepared = TEXT.prepare(asked(logprobs=None, stops=(), n=1), 4096)
    assert isinstance(prepared, PreparedRequest)
    more = ChoiceSoFar(2**64 - 1, tuple(TOKENIZER.encode("hello world")), 99)
    so_far = AnswerSoFar(tuple(prepared.tokens), prepared.max_tokens, (more,), Usage())
    with pytest.raises(ValueError, match="decodes the resumed tokens differently"):
        opened(prepared, 10, so_far)
