"""One hand of requests that goes through everything a row can meet, and what came of it.

A crowd is many requests that come and go: some prompts begin with another one, some are longer
than a step's prefill, and who shares a batch with whom depends on the hour.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    Prompt,
    TextPart,
    TextPrompt,
    TokensPrompt,
)
from bus.wire.messages.tokens import Finished, Refused
from tests.harness.slot import FakeGateway, Stream, request

STORY = "Tell a story about a fish and a boat. " * 12
TALE = "A boat and a fish are in a tale. " * 12

WORDS = ("fish", "sea", "shoal", "node", "token", "count", "seven", "blue", "story", "moves")
AT_ONCE = 16
PATIENCE_MS = 300_000
NOISE, ROUGH_NOISE = 1e-4, 5e-4
"""Log-probabilities that differ by less are equal but for the order in which float32 is added: of
the bundled model, and of random weights, which make more of a rounding."""

Outcome = dict[str, Any]


def _sampled(**settings: Any) -> dict[str, Any]:
    return {"sampling": {"temperature": 0.0} | settings}


def text_hand() -> list[GenerationRequest]:
    """For a model with a tokenizer: a long prompt, seeds, penalties, logprobs, a grammar, two
    choices; greedy unless said otherwise."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    ask: list[tuple[str, str, dict[str, Any]]] = [
        ("greedy", "Count from one to ten:", {"max_tokens": 24}),
        ("long", STORY, {"max_tokens": 20}),
        ("seeded", "The sea is", _sampled(temperature=0.9, top_p=0.9, seed=7)),
        (
            "penalised",
            "one two one two one two",
            _sampled(frequency_penalty=0.6, presence_penalty=0.3, repetition_penalty=1.2),
        ),
        ("listed", "A shoal moves", {"top_logprobs": 2}),
        (
            "grammar",
            "A person as JSON:",
            {
                "max_tokens": 40,
                "output": {"kind": "json_schema", "json_schema": schema},
                "ignore_eos": False,
            },
        ),
        ("two", "Boats and", {"n": 2} | _sampled(temperature=1.0, seed=3)),
    ]
    return [request(name, prompt, **({"max_tokens": 16} | more)) for name, prompt, more in ask]


def token_hand(count: int = 4) -> list[GenerationRequest]:
    """For any model of 260 tokens: rows of unlike length, some of them long, with logprobs."""
    hand: list[GenerationRequest] = []
    for number in range(count):
        length = (9, 150, 33, 61)[number % 4] + number // 4
        tokens = tuple(3 + (11 * number + 7 * at) % 250 for at in range(length))
        hand.append(
            request(
                f"row-{number}",
                prompt=TokensPrompt(token_ids=tokens),
                max_tokens=14 + 5 * number % 17,
                top_logprobs=0,
            )
        )
    return hand


def said(stream: Stream) -> Outcome:
    """What a client is told."""
    chosen = [
        (choice, one)
        for choice in (0, 1)
        for delta in stream.deltas
        if delta.choice == choice
        for one in delta.logprobs
    ]
    assert isinstance(stream.end, Finished), stream.end
    return {
        "text": [stream.text(0), stream.text(1)],
        "token ids": [(choice, one.token_id) for choice, one in chosen],
        "logprobs": [one.logprob for _, one in chosen],
        "finishes": stream.finishes,
        "tokens": stream.end.usage.completion_tokens,
    }


def play(gateway: FakeGateway, hand: Sequence[GenerationRequest]) -> dict[str, Outcome]:
    """Submit the first half, the rest once the first row speaks; each request's outcome."""
    half = len(hand) // 2
    streams = [gateway.submit(one) for one in hand[:half]]
    gateway.until(lambda: streams[0].tokens > 2 or streams[0].end, "the first row's tokens")
    streams += [gateway.submit(one) for one in hand[half:]]
    gateway.ended(*streams, seconds=50)
    return {one.request_id: said(stream) for one, stream in zip(hand, streams, strict=True)}


def assert_same(found: dict[str, Outcome], wanted: dict[str, Outcome]) -> None:
    """The same to the last token; log-probabilities but for the rounding of float32."""
    assert found.keys() == wanted.keys()
    for name, outcome in wanted.items():
        logprobs = pytest.approx(outcome["logprobs"], abs=5e-3)
        assert found[name] == outcome | {"logprobs": logprobs}


def play_prefix(gateway: FakeGateway) -> tuple[str, int]:
    """A prompt that begins like one of before, which nothing else asks: its text, and the tokens
    found kept."""
    gateway.ended(gateway.submit(request("tale", TALE, max_tokens=2)))
    stream = gateway.submit(request("prefix", TALE + "Once upon", max_tokens=12))
    gateway.ended(stream)
    assert isinstance(stream.end, Finished)
    return stream.text(), stream.end.usage.cached_tokens


def endless(name: str) -> GenerationRequest:
    """Runs for as long as a test may take."""
    return request(name, prompt=TextPrompt(text="The boat goes on"), max_tokens=1500)


def text_prompt(number: int) -> Prompt:
    """For the bundled model: a question, a text that begins like others, a short or a long one."""
    chance = random.Random(number)
    words = [chance.choice(WORDS) for _ in range(chance.randint(150, 350))]
    match number % 4:
        case 0:
            asked = ("List the integers from 1 to 30.", f"Tell me a story about a {words[0]}.")
            part = TextPart(text=asked[number // 4 % 2])
            return ChatPrompt(messages=(ChatMessage(role="user", parts=(part,)),))
        case 1:
            own = "" if number < 4 else " ".join(words[: number % 30])
            return TextPrompt(text=STORY + own)
        case 2:
            return TextPrompt(text=" ".join(words[:40]))
        case _:
            return TextPrompt(text=" ".join(words))


def ids_prompt(number: int) -> Prompt:
    """For any model of 260 tokens, as `text_prompt`."""
    chance = random.Random(number)
    own = [chance.randint(3, 258) for _ in range(600)]
    shared = [3 + 7 * at % 250 for at in range(300)]
    match number % 4:
        case 0:
            ids = own[: 3 + number % 20]
        case 1:
            ids = shared if number < 4 else shared + own[: number % 40]
        case 2:
            ids = own[: 30 + number % 70]
        case _:
            ids = own[: chance.randint(150, 600)]
    return TokensPrompt(token_ids=tuple(ids))


def crowd(
    numbers: range, *, texts: bool, drawn: bool = False, silent: int = 0
) -> list[GenerationRequest]:
    """Requests with these numbers: greedy, or `drawn` with a seed at temperature 0.8 and top-p
    0.9. Every `silent`-th asks for no log-probabilities; a third end where the model does."""
    hand: list[GenerationRequest] = []
    for number in numbers:
        prompt = text_prompt(number) if texts else ids_prompt(number)
        sampling = _sampled(temperature=0.8, top_p=0.9, seed=number) if drawn else {}
        quiet = silent and number % silent == 0
        hand.append(
            request(
                f"{'drawn' if drawn else 'greedy'}-{number}",
                prompt=prompt,
                max_tokens=6 + 7 * number % 13,
                top_logprobs=None if quiet else 2,
                ignore_eos=number % 3 > 0,
                **sampling,
            )
        )
    return hand


@dataclass(frozen=True)
class Said:
    """One row's end. Where log-probabilities were asked for, `ids` are its tokens, `logprobs`
    theirs and `gaps` how much likelier each step's likeliest token was than the second."""

    text: str
    tokens: int
    finishes: tuple[str, ...]
    cached: int
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    gaps: tuple[float, ...] = ()


def play_crowd(gateway: FakeGateway, hand: Sequence[GenerationRequest]) -> dict[str, Said]:
    """At most `AT_ONCE` at a time, each joining up to four tokens after the one before."""
    waiting = deque(hand)
    streams: dict[str, Stream] = {}
    while waiting:
        if sum(stream.end is None for stream in streams.values()) >= AT_ONCE:
            gateway.listen()
            continue
        one = waiting.popleft()
        streams[one.request_id] = gateway.submit(one, remaining_ms=PATIENCE_MS)
        enough = _tokens_of(streams) + len(waiting) % 5
        gateway.until(
            lambda enough=enough: (
                _tokens_of(streams) >= enough or all(stream.end for stream in streams.values())
            ),
            "the crowd goes on",
            seconds=PATIENCE_MS / 1000,
        )
    gateway.ended(*streams.values(), seconds=PATIENCE_MS / 1000)
    return {name: last_words(stream) for name, stream in streams.items()}


def _tokens_of(streams: Mapping[str, Stream]) -> int:
    for name, stream in streams.items():
        assert not isinstance(stream.answer, Refused), (name, stream.answer)
    return sum(stream.tokens for stream in streams.values())


def last_words(stream: Stream) -> Said:
    """What a finished stream of one choice came to."""
    assert isinstance(stream.end, Finished), stream.end
    chosen = [one for delta in stream.deltas for one in delta.logprobs]
    likeliest = [sorted((logprob for _, _, logprob in one.top), reverse=True) for one in chosen]
    return Said(
        text=stream.text(),
        tokens=stream.end.usage.completion_tokens,
        finishes=tuple(stream.finishes),
        cached=stream.end.usage.cached_tokens,
        ids=tuple(one.token_id for one in chosen),
        logprobs=tuple(one.logprob for one in chosen),
        gaps=tuple(best[0] - best[1] for best in likeliest),
    )


@dataclass
class Parity:
    """How two crowds compare. `ties` part where the two likeliest tokens were within the noise
    of each other, `unequal` anywhere else: (request, token at which they part, gap there)."""

    prompts: int = 0
    equal: int = 0
    ties: list[tuple[str, int, float]] = field(default_factory=list)
    unequal: list[tuple[str, int, float]] = field(default_factory=list)
    off_by: float = 0.0
    """The most that a log-probability of equal tokens differs."""
    least_gap: float = float("inf")
    tokens: int = 0
    distinct: int = 0
    cached: int = 0


def compare(
    found: dict[str, Said], wanted: dict[str, Said], *, greedy: bool, noise: float
) -> Parity:
    """`wanted` has log-probabilities for every request; `found` may lack some. Only greedy rows
    may part at a tie: a drawn row's choice is not between its two likeliest tokens."""
    assert found.keys() == wanted.keys()
    parity = Parity(prompts=len(wanted), cached=sum(one.cached for one in found.values()))
    parity.tokens = sum(len(one.ids) for one in wanted.values())
    parity.distinct = len({token for one in wanted.values() for token in one.ids})
    parity.least_gap = min(gap for one in wanted.values() for gap in one.gaps)
    for name, truth in wanted.items():
        one = found[name]
        if (one.text, one.tokens, one.finishes) == (truth.text, truth.tokens, truth.finishes) and (
            one.ids in ((), truth.ids)
        ):
            parity.equal += 1
            pairs = zip(one.logprobs, truth.logprobs, strict=False)
            parity.off_by = max([parity.off_by, *(abs(here - there) for here, there in pairs)])
            continue
        pairs = enumerate(zip(one.ids, truth.ids, strict=False))
        at = next((at for at, (here, there) in pairs if here != there), -1)
        gap = truth.gaps[at] if at >= 0 else min(truth.gaps)
        (parity.ties if greedy and gap < noise else parity.unequal).append((name, at, gap))
    return parity
