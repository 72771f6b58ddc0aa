"""What the dialects' tests share: a context to parse in, and entries as a runner sends them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from msgspec import structs

from bus.wire.errors import BadRequest
from bus.wire.ids import RequestId
from bus.wire.messages.requests import GenerationRequest, Usage
from bus.wire.messages.tokens import (
    ChoiceEnd,
    Entry,
    Finished,
    TokenDelta,
    TokenLogprob,
    ToolCallDelta,
)
from gateway.dialects.collect import Collected, Collector
from gateway.dialects.dialect import Dialect, ParseContext, Parsed

USAGE = Usage(
    prompt_tokens=11,
    completion_tokens=7,
    cached_tokens=4,
    reasoning_tokens=2,
    queue_s=0.5,
    prefill_s=0.25,
    decode_s=1.25,
)


class Desk:
    """Parses, plays entries through both renderers, and says what came out."""

    usage = USAGE

    def context(self, **more: Any) -> ParseContext:
        ids = (RequestId(f"req-n1-0-boot-{count:x}") for count in itertools.count())
        return ParseContext(ids=ids, now_s=1_763_640_000.5, fingerprint="shoal-test", **more)

    def parse(self, dialect: Dialect, body: dict[str, Any], **more: Any) -> Parsed:
        return dialect.parse(json.dumps(body).encode(), self.context(**more))

    def refusal(self, dialect: Dialect, body: dict[str, Any], **more: Any) -> BadRequest:
        with pytest.raises(BadRequest) as caught:
            self.parse(dialect, body, **more)
        return caught.value

    def number(self, entries: Sequence[Entry]) -> list[Entry]:
        """`entries` with their sequence numbers, per request."""
        counts: dict[RequestId, int] = {}
        made: list[Entry] = []
        for entry in entries:
            seq = counts.get(entry.request_id, 0)
            counts[entry.request_id] = seq + 1
            made.append(structs.replace(entry, seq=seq))
        return made

    def text(self, parsed: Parsed, *pieces: str, choice: int = 0, request: int = 0) -> list[Entry]:
        ours = parsed.requests[request].request_id
        return [TokenDelta(ours, 0, choice, "text", piece, 1) for piece in pieces]

    def reasoning(self, parsed: Parsed, *pieces: str, choice: int = 0) -> list[Entry]:
        ours = parsed.requests[0].request_id
        return [TokenDelta(ours, 0, choice, "reasoning", piece, 1) for piece in pieces]

    def with_logprob(self, parsed: Parsed, token: TokenLogprob, choice: int = 0) -> Entry:
        ours = parsed.requests[0].request_id
        return TokenDelta(ours, 0, choice, "text", token.text, 1, (token,))

    def call(
        self, parsed: Parsed, index: int, name: str, *fragments: str, choice: int = 0
    ) -> list[Entry]:
        ours = parsed.requests[0].request_id
        made: list[Entry] = [ToolCallDelta(ours, 0, choice, index, f"call_{index}", name, "", 1)]
        made += [ToolCallDelta(ours, 0, choice, index, None, None, one, 1) for one in fragments]
        return made

    def end(
        self, parsed: Parsed, reason: Any = "stop", *, request: int = 0, stop: str | None = None
    ) -> list[Entry]:
        one = parsed.requests[request]
        ends: list[Entry] = [
            ChoiceEnd(one.request_id, 0, choice, reason, stop) for choice in range(one.n)
        ]
        return [*ends, Finished(one.request_id, 0, USAGE)]

    def play(
        self,
        dialect: Dialect,
        parsed: Parsed,
        entries: Sequence[Entry],
        *,
        batch: int = 1,
        load_s: float = 0.0,
    ) -> bytes:
        """The whole stream, rendered `batch` entries at a time."""
        renderer = dialect.stream(parsed, load_s=load_s)
        numbered = self.number(entries)
        stream = renderer.open()
        for start in range(0, len(numbered), batch):
            stream += renderer.render(numbered[start : start + batch])
        assert renderer.ended
        return stream + renderer.close()

    def collect(self, parsed: Parsed, entries: Sequence[Entry]) -> tuple[Collected, ...]:
        collector = Collector(parsed.requests)
        collector.add(self.number(entries))
        assert collector.ended
        return collector.collected

    def whole(self, dialect: Dialect, parsed: Parsed, entries: Sequence[Entry]) -> dict[str, Any]:
        return json.loads(dialect.render_whole(parsed, self.collect(parsed, entries)))


@pytest.fixture(scope="session")
def desk() -> Desk:
    return Desk()


_TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
_ARGUMENTS = st.dictionaries(
    st.sampled_from("abc"), st.integers() | _TEXTS | st.lists(st.booleans(), max_size=2), max_size=3
)


@st.composite
def _choice_entries(
    draw: st.DrawFn, ours: RequestId, choice: int, reasoning: bool, tools: bool
) -> list[Entry]:
    made: list[Entry] = []
    thoughts = draw(st.lists(_TEXTS, max_size=3)) if reasoning else []
    said = draw(st.lists(_TEXTS, max_size=5))
    made += [TokenDelta(ours, 0, choice, "reasoning", piece, 1) for piece in thoughts]
    made += [TokenDelta(ours, 0, choice, "text", piece, 1) for piece in said]
    reason = draw(st.sampled_from(["stop", "length", "cancelled", "memory_pressure"]))
    count = draw(st.integers(0, 3)) if tools else 0
    for call in range(count):
        reason = "tool_calls"
        arguments = json.dumps(draw(_ARGUMENTS))
        cut = draw(st.integers(0, len(arguments)))
        made.append(ToolCallDelta(ours, 0, choice, call, f"call_{choice}_{call}", "f", "", 1))
        made += [
            ToolCallDelta(ours, 0, choice, call, None, None, piece, 1)
            for piece in (arguments[:cut], arguments[cut:])
            if piece
        ]
    made.append(ChoiceEnd(ours, 0, choice, reason, None))
    return made


@st.composite
def _entries(
    draw: st.DrawFn, request: GenerationRequest, reasoning: bool, tools: bool
) -> list[Entry]:
    waiting = [
        draw(_choice_entries(request.request_id, choice, reasoning, tools))
        for choice in range(request.n)
    ]
    made: list[Entry] = []
    while any(waiting):
        chosen = draw(st.sampled_from([one for one in waiting if one]))
        made.append(chosen.pop(0))
    made.append(Finished(request.request_id, 0, USAGE))
    return made


@pytest.fixture(scope="session")
def answers() -> Callable[..., st.SearchStrategy[list[Entry]]]:
    """Any order in which a runner may send the choices of one request."""

    def strategy(
        request: GenerationRequest, *, reasoning: bool = True, tools: bool = True
    ) -> st.SearchStrategy[list[Entry]]:
        return _entries(request, reasoning, tools)

    return strategy
