from __future__ import annotations

from typing import Any

import pytest

from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Failed, PrefillProgress, TokenDelta, TokenLogprob
from gateway.dialects.collect import Collector, total
from gateway.dialects.openai.chat import OpenAIChat
from gateway.dialects.openai.completions import OpenAICompletions

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_pieces_are_joined_per_choice_and_channel(desk: Any) -> None:
    parsed = desk.parse(OpenAIChat(), {**CHAT, "n": 2})
    [one] = desk.collect(
        parsed,
        [
            *desk.reasoning(parsed, "hm", "m", choice=1),
            *desk.text(parsed, "a", choice=0),
            *desk.text(parsed, "b", "c", choice=1),
            *desk.text(parsed, "d", choice=0),
            *desk.end(parsed, "length"),
        ],
    )
    assert [choice.text for choice in one.choices] == ["ad", "bc"]
    assert [choice.reasoning for choice in one.choices] == ["", "hmm"]
    assert {choice.finish_reason for choice in one.choices} == {"length"}
    assert one.usage == desk.usage


def test_two_calls_are_kept_apart(desk: Any) -> None:
    parsed = desk.parse(OpenAIChat(), CHAT)
    [one] = desk.collect(
        parsed,
        [
            *desk.call(parsed, 0, "f", '{"a"', ": 1}"),
            *desk.call(parsed, 1, "g", "{}"),
            *desk.end(parsed, "tool_calls"),
        ],
    )
    calls = one.choices[0].calls
    assert [(call.call_id, call.name, call.arguments) for call in calls] == [
        ("call_0", "f", '{"a": 1}'),
        ("call_1", "g", "{}"),
    ]


def test_a_failure_ends_the_request_and_keeps_what_it_cost(desk: Any) -> None:
    parsed = desk.parse(OpenAIChat(), CHAT)
    collector = Collector(parsed.requests)
    failed = Failed(parsed.requests[0].request_id, 2, "deadline", "too late", desk.usage, {})
    collector.add([*desk.text(parsed, "a"), failed])
    assert collector.ended
    assert collector.failed is failed
    assert collector.collected[0].usage == desk.usage


def test_entries_after_the_end_are_refused(desk: Any) -> None:
    parsed = desk.parse(OpenAIChat(), CHAT)
    collector = Collector(parsed.requests)
    collector.add(desk.end(parsed))
    with pytest.raises(KeyError):
        collector.add(desk.text(parsed, "late"))


def test_it_ends_when_the_last_of_several_requests_has(desk: Any) -> None:
    parsed = desk.parse(OpenAICompletions(), {"model": "m", "prompt": ["a", "b"]})
    collector = Collector(parsed.requests)
    collector.add([*desk.text(parsed, "B", request=1), *desk.end(parsed, request=1)])
    assert not collector.ended
    collector.add([*desk.text(parsed, "A", request=0), *desk.end(parsed, request=0)])
    assert collector.ended
    assert [one.choices[0].text for one in collector.collected] == ["A", "B"]


def test_progress_and_the_logprobs_of_reasoning_are_no_content(desk: Any) -> None:
    parsed = desk.parse(OpenAIChat(), {**CHAT, "logprobs": True})
    ours = parsed.requests[0].request_id
    token = TokenLogprob(5, "x", -0.5, ())
    thought = TokenDelta(ours, 0, 0, "reasoning", "x", 1, (token,))
    said = TokenDelta(ours, 0, 0, "text", "x", 1, (token,))
    [one] = desk.collect(
        parsed, [PrefillProgress(ours, 0, 5, 10), thought, said, *desk.end(parsed)]
    )
    assert one.choices[0].logprobs == [token]


def test_totals_add_counts_and_take_the_longest_time() -> None:
    one = Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1, decode_s=2.0)
    other = Usage(prompt_tokens=4, completion_tokens=5, reasoning_tokens=1, decode_s=1.0)
    assert total([one, other]) == Usage(
        prompt_tokens=7,
        completion_tokens=7,
        cached_tokens=1,
        reasoning_tokens=1,
        decode_s=2.0,
    )
