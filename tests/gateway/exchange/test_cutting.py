"""What is dropped of a conversation that is too long, and what never is."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.messages.requests import ChatMessage, ChatPrompt
from gateway.dialects.dialect import Parsed
from gateway.dialects.faults import HttpFault
from gateway.dialects.openai.responses import OpenAIResponses
from gateway.exchange.features import shortened
from tests.gateway.dialects.conftest import Desk

RESPONSES = OpenAIResponses()
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "look"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "x" * 400},
    {"role": "assistant", "content": "so"},
]
LAST = {"role": "user", "content": "and now?"}


def asked(*items: dict[str, Any], **more: Any) -> Parsed:
    body = {"model": "m", "instructions": "Be kind.", "input": list(items), "truncation": "auto"}
    return Desk().parse(RESPONSES, {**body, **more})


def turns(parsed: Parsed | None) -> tuple[ChatMessage, ...]:
    assert parsed is not None
    prompt = parsed.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def too_long(prompt_tokens: int, limit_tokens: int) -> HttpFault:
    facts = {"prompt_tokens": prompt_tokens, "limit_tokens": limit_tokens}
    return HttpFault(400, "context_length_exceeded", "too long", facts=facts)


def test_whole_exchanges_go_and_the_instructions_stay() -> None:
    parsed = asked(*CALLED, *CALLED, LAST)
    left = turns(shortened(parsed, too_long(1000, 800)))
    assert left == (turns(parsed)[0], *turns(parsed)[5:])
    assert [turn.role for turn in left[:3]] == ["system", "user", "assistant"]
    alone = turns(shortened(parsed, too_long(1000, 100)))
    assert alone == (turns(parsed)[0], turns(parsed)[-1])


def test_what_is_left_leaves_room_for_the_answer() -> None:
    parsed = asked(*CALLED, *CALLED, LAST, max_output_tokens=390)
    assert len(turns(shortened(parsed, too_long(1000, 800)))) == 2


def test_nothing_is_dropped_unasked_of_one_turn_or_after_another_failure() -> None:
    fault = too_long(1000, 100)
    assert shortened(asked(*CALLED, LAST, truncation="disabled"), fault) is None
    assert shortened(asked(LAST), fault) is None
    parsed = asked(*CALLED, LAST)
    assert shortened(parsed, HttpFault(429, "queue_full", "full", facts=dict(fault.facts))) is None


@given(
    st.lists(st.sampled_from([CALLED, [LAST], [{"role": "developer", "content": "d"}]])),
    st.integers(1, 1000),
)
def test_what_is_left_is_shorter_ends_alike_and_answers_no_call_that_is_gone(
    pieces: list[list[dict[str, Any]]], limit: int
) -> None:
    parsed = asked(*(item for piece in pieces for item in piece), LAST)
    before, fault = turns(parsed), too_long(1001, limit)
    while (shorter := shortened(parsed, fault)) is not None:
        left = turns(shorter)
        assert len(left) < len(turns(parsed)) and left[-1] == before[-1]
        system = [turn for turn in before if turn.role == "system"]
        assert [turn for turn in left if turn.role == "system"] == system
        calls = {call.call_id for turn in left for call in turn.tool_calls}
        assert {turn.tool_call_id for turn in left if turn.role == "tool"} <= calls
        parsed = shorter
    assert [turn.role for turn in turns(parsed)].count("user") == 1
