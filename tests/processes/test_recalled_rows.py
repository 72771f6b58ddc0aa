"""A row that is recalled goes on at another runner as if it had never been elsewhere.

Real runners of the bundled model: what a gateway gets of a request that is cut again and again, by
two runners in turn, is what one runner says of it undisturbed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from bus.wire.errors import FinishReason
from bus.wire.ids import Boot
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    OutputFormat,
    Sampling,
    TextPart,
    ToolSpec,
)
from bus.wire.messages.tokens import (
    AnswerSoFar,
    ChoiceEnd,
    Credit,
    Failed,
    Finished,
    Ping,
    Pong,
    Recall,
    Refused,
    TokenDelta,
    ToolCallDelta,
)
from tests.harness.slot import ROOT, FakeGateway, Slot, Stream, request, started_slot

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Gateways = tuple[FakeGateway, FakeGateway]
BUNDLED = ROOT / "conf" / "tiny"
GREEDY = Sampling(temperature=0.0)
SEEDED = Sampling(temperature=1.3, top_p=0.95, seed=11)
PENALISED = Sampling(
    temperature=1.0,
    seed=2**64 - 7,
    frequency_penalty=0.7,
    presence_penalty=0.4,
    repetition_penalty=1.2,
    logit_bias={300: 4.0},
)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 9},
    },
    "required": ["name", "numbers"],
}
WEATHER = ToolSpec(
    name="weather",
    description="tells the weather",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)


def chat(text: str, **more: Any) -> ChatPrompt:
    turn = ChatMessage(role="user", parts=(TextPart(text=text),))
    return ChatPrompt(messages=(turn,), **more)


ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": GREEDY, "max_tokens": 90},
    "seeded": {"sampling": SEEDED, "max_tokens": 90},
    "penalised": {"sampling": PENALISED, "max_tokens": 90, "top_logprobs": 3},
    "stops": {"sampling": SEEDED, "max_tokens": 200, "stop": ("zzzz", "qq"), "top_logprobs": 0},
    "choices": {"sampling": SEEDED, "max_tokens": 60, "n": 3},
    "least": {"sampling": SEEDED, "max_tokens": 90, "min_tokens": 50, "ignore_eos": False},
    "history": {"prompt": chat("hello"), "sampling": SEEDED, "max_tokens": 50, "history": ()},
    "schema": {
        "prompt": chat("say something in JSON"),
        "sampling": SEEDED,
        "max_tokens": 200,
        "ignore_eos": False,
        "output": OutputFormat(kind="json_schema", json_schema=SCHEMA),
    },
    "thinking": {
        "prompt": chat("think about shoal"),
        "sampling": SEEDED,
        "max_tokens": 80,
        "thinking": True,
        "thinking_budget": 17,
    },
    "calls": {
        "prompt": chat("What is the weather in Paris?", tools=(WEATHER,)),
        "sampling": GREEDY,
        "max_tokens": 120,
        "ignore_eos": False,
    },
}


@pytest.fixture(scope="module")
def slots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Slot]]:
    with contextlib.ExitStack() as stack:
        homes = [tmp_path_factory.mktemp("home") for _ in range(2)]
        yield [stack.enter_context(started_slot(home, BUNDLED)).ready() for home in homes]


@pytest.fixture
def gateways(slots: list[Slot], request: pytest.FixtureRequest) -> Iterator[Gateways]:
    first, second = (FakeGateway(slot, name=request.node.name[-60:]) for slot in slots)
    yield first, second
    first.close()
    second.close()


Told = tuple[list[object], dict[int, tuple[FinishReason, str | None]], object]


def told(streams: list[Stream], choices: int) -> Told:
    """What was told of a request by one runner after the other: the pieces of each choice, their
    ends, and what it used. Log-probabilities are left to `logprobs`."""
    pieces: list[list[object]] = [[] for _ in range(choices)]
    ends: dict[int, tuple[FinishReason, str | None]] = {}
    used: object = None
    for entry in itertools.chain.from_iterable(one.entries for one in streams):
        if isinstance(entry, TokenDelta):
            tokens = [(one.token_id, one.text) for one in entry.logprobs]
            pieces[entry.choice].append((entry.channel, entry.text, entry.tokens, tokens))
        elif isinstance(entry, ToolCallDelta):
            begins = entry.call_id is not None
            call = (entry.call, begins, entry.name, entry.arguments, entry.tokens)
            pieces[entry.choice].append(call)
        elif isinstance(entry, ChoiceEnd):
            assert entry.choice not in ends
            ends[entry.choice] = (entry.finish_reason, entry.stop)
        elif isinstance(entry, Finished):
            usage = entry.usage
            counts = (usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens)
            used = (*counts, entry.prompt)
        else:
            assert not isinstance(entry, Failed), entry
    return [*pieces], ends, used


def logprobs(streams: list[Stream]) -> list[float]:
    found: list[float] = []
    for entry in itertools.chain.from_iterable(one.entries for one in streams):
        if isinstance(entry, TokenDelta):
            for one in entry.logprobs:
                found += [one.logprob, *(number for _, _, number in one.top)]
    return found


def whole(gateways: Gateways, asked: GenerationRequest) -> Stream:
    stream = gateways[0].submit(asked)
    ended(stream, *gateways)
    return stream


def ended(stream: Stream, gateway: FakeGateway, other: FakeGateway) -> None:
    """Wait for the end of a stream; the other gateway says meanwhile that it is there."""
    gateway.until(lambda: other.listen(1) or stream.end, "its end")
    stream.check()


def cut(gateways: Gateways, asked: GenerationRequest, credit: int) -> list[Stream]:
    """The streams of a request that is recalled whenever so many entries of a choice came."""
    streams: list[Stream] = []
    so_far: AnswerSoFar | None = None
    for gateway, other in itertools.cycle((gateways, gateways[::-1])):
        streams.append(recalled(gateway, other, asked, credit, so_far))
        so_far = streams[-1].so_far
        if so_far is None:  # it ends here, for a choice of it has ended
            for choice in range(asked.n):
                gateway.send(Credit(asked.request_id, choice, 10_000))
            ended(streams[-1], gateway, other)
            break
    return streams


def recalled(
    gateway: FakeGateway,
    other: FakeGateway,
    asked: GenerationRequest,
    credit: int,
    so_far: AnswerSoFar | None,
) -> Stream:
    """The stream of a request, asked back when its credit was used; `other` listens on."""
    gateway.streams.pop(asked.request_id, None)
    stream = gateway.submit(asked, credit=credit, so_far=so_far)
    gateway.until(lambda: other.listen(1) or is_full(stream, credit), "its credit is used")
    gateway.send(Recall(asked.request_id, begun=True))
    gateway.send(Ping(Boot("gw")))
    pings = gateway.pinged
    gateway.until(
        lambda: other.listen(1) or count_of(Pong, gateway) >= pings, "what was asked before is done"
    )
    return stream


def is_full(stream: Stream, credit: int) -> bool:
    assert not isinstance(stream.answer, Refused), stream.answer
    costing = [one for one in stream.entries if isinstance(one, TokenDelta | ToolCallDelta)]
    counts = Counter(one.choice for one in costing)
    return bool(stream.end) or max(counts.values(), default=0) >= credit


def count_of(kind: type[object], gateway: FakeGateway) -> int:
    return sum(isinstance(one, kind) for one in gateway.heard)


@pytest.mark.proof
@pytest.mark.parametrize("name", ASKED)
def test_a_row_that_is_cut_again_and_again_says_what_it_says_undisturbed(
    gateways: Gateways, name: str
) -> None:
    fields = ASKED[name]
    choices = fields.get("n", 1)
    undisturbed = whole(gateways, request(f"{name}-whole", "hello world, tell", **fields))
    expected = told([undisturbed], choices)
    for credit in (1, 2, 7, 23):
        asked = request(f"{name}-{credit}", "hello world, tell", **fields)
        streams = cut(gateways, asked, credit)
        assert told(streams, choices) == expected
        assert logprobs(streams) == pytest.approx(logprobs([undisturbed]), abs=2e-3)
        assert len(streams) > 2 or credit > 2, "it was cut"
