from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion

from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Entry, Failed, PrefillProgress, PromptTokens, TokenLogprob
from gateway.dialects import faults
from gateway.dialects.openai.completions import OpenAICompletions
from gateway.dialects.openai.completions_render import logprobs_object
from tests.harness.sse_frames import FrameReader

COMPLETIONS = OpenAICompletions()
BODY: dict[str, Any] = {"model": "m", "prompt": ["One", "Two"], "stream": True}


def _chunks(stream: bytes) -> list[dict[str, Any]]:
    *frames, last = [frame.data for frame in FrameReader().feed(stream)]
    assert last == "[DONE]"
    return [json.loads(frame) for frame in frames]


@given(st.data())
def test_stream_and_whole_say_the_same(desk: Any, answers: Callable[..., Any], data: Any) -> None:
    body = {
        **BODY,
        "n": data.draw(st.integers(1, 2)),
        "echo": data.draw(st.booleans()),
        "stream_options": {"include_usage": data.draw(st.booleans())},
    }
    parsed = desk.parse(COMPLETIONS, body)
    waiting: list[list[Entry]] = [
        data.draw(answers(request, tools=False)) for request in parsed.requests
    ]
    entries: list[Entry] = []
    while any(waiting):
        entries.append(data.draw(st.sampled_from([one for one in waiting if one])).pop(0))
    chunks = _chunks(desk.play(COMPLETIONS, parsed, entries, batch=3))
    told = [chunk.get("timing") for chunk in chunks]
    last = chunks.pop() if parsed.include_usage else {}
    whole = desk.whole(COMPLETIONS, parsed, entries)
    Completion.model_validate(whole, strict=True)
    assert [choice["index"] for choice in whole["choices"]] == list(range(2 * body["n"]))
    for choice in whole["choices"]:
        ours = [
            one["choices"][0] for one in chunks if one["choices"][0]["index"] == choice["index"]
        ]
        assert "".join(one["text"] for one in ours) == choice["text"]
        ends = [one["finish_reason"] for one in ours if one["finish_reason"] is not None]
        assert ends == [choice["finish_reason"]]
    assert told == [None] * (len(told) - 1) + [whole["timing"]]
    if parsed.include_usage:
        assert last["choices"] == []
        assert last["usage"] == whole["usage"]


def test_choices_are_numbered_through_the_prompts(desk: Any) -> None:
    parsed = desk.parse(COMPLETIONS, {**BODY, "n": 2, "echo": True})
    entries = [
        *desk.text(parsed, "d", choice=1, request=1),
        *desk.text(parsed, "a", choice=0, request=0),
        *desk.end(parsed, request=1),
        *desk.end(parsed, request=0),
    ]
    shown: dict[int, str] = {}
    for chunk in _chunks(desk.play(COMPLETIONS, parsed, entries)):
        assert chunk["object"] == "text_completion"
        for choice in chunk["choices"]:
            shown[choice["index"]] = shown.get(choice["index"], "") + choice["text"]
    assert shown == {0: "Onea", 1: "One", 2: "Two", 3: "Twod"}


def test_usage_of_all_prompts_is_added(desk: Any) -> None:
    parsed = desk.parse(COMPLETIONS, {**BODY, "stream_options": {"include_usage": True}})
    entries = [*desk.end(parsed, request=0), *desk.end(parsed, request=1)]
    assert _chunks(desk.play(COMPLETIONS, parsed, entries))[-1]["usage"]["total_tokens"] == 36


def test_a_stream_ends_when_every_prompt_has(desk: Any) -> None:
    parsed = desk.parse(COMPLETIONS, BODY)
    renderer = COMPLETIONS.stream(parsed)
    assert renderer.open() == b": ok\n\n"
    renderer.render(desk.end(parsed, request=1))
    assert not renderer.ended
    renderer.render(desk.end(parsed, request=0))
    assert renderer.ended
    assert renderer.close() == b"data: [DONE]\n\n"
    assert renderer.close() == b""


def test_one_prompts_failure_ends_the_stream(desk: Any) -> None:
    parsed = desk.parse(COMPLETIONS, BODY)
    renderer = COMPLETIONS.stream(parsed)
    ours = parsed.requests[1].request_id
    made = renderer.render(
        [Failed(ours, 0, "overloaded", "full", Usage(), {}), *desk.text(parsed, "late")]
    )
    assert b"late" not in made
    assert made.endswith(b"data: [DONE]\n\n")
    assert renderer.ended
    assert renderer.error(faults.internal("x")) == b""


def test_log_probabilities_have_the_older_shape(desk: Any) -> None:
    parsed = desk.parse(COMPLETIONS, {"model": "m", "prompt": "x", "logprobs": 2})
    tokens = [
        TokenLogprob(5, " hé", -0.25, ((5, " hé", -0.25), (6, "llo", float("-inf")))),
        TokenLogprob(7, "llo", -0.5, ((7, "llo", -0.5), (8, "y", -2.0))),
    ]
    entries = [*(desk.with_logprob(parsed, token) for token in tokens), *desk.end(parsed)]
    wanted = {
        "tokens": [" hé", "llo"],
        "token_logprobs": [-0.25, -0.5],
        "top_logprobs": [{"llo": -9999.0, " hé": -0.25}, {"y": -2.0, "llo": -0.5}],
        "text_offset": [0, 3],
    }
    whole = desk.whole(COMPLETIONS, parsed, entries)
    assert whole["choices"][0]["logprobs"] == wanted
    chunks = _chunks(desk.play(COMPLETIONS, parsed, entries))
    shown = [one["choices"][0]["logprobs"] for one in chunks]
    assert [one["text_offset"] for one in shown[:2]] == [[0], [3]]
    assert shown[1]["top_logprobs"] == wanted["top_logprobs"][1:]


@pytest.mark.parametrize(
    ("tokens", "text", "offsets", "end"),
    [
        (["a", "b"], "ab", [0, 1], 2),
        (
            ["hi ", "\ufffd", "\ufffd", "\ufffd", " there", "!"],
            "hi 日 there!",
            [0, 3, 3, 3, 4, 10],
            11,
        ),
        ([" \ufffd", "\ufffd", "\ufffd"], " 🐟", [0, 1, 1], 2),
        (["\ufffd"] * 6 + ["x"], "日本x", [0] * 6 + [2], 3),
    ],
)
def test_a_character_of_several_tokens_counts_once(
    tokens: list[str], text: str, offsets: list[int], end: int
) -> None:
    told = [TokenLogprob(n, one, -0.5, ()) for n, one in enumerate(tokens)]
    shown, behind = logprobs_object(told, text, 0)
    assert (shown["text_offset"], behind) == (offsets, end)


def test_of_two_tokens_that_read_alike_the_likelier_is_shown(desk: Any) -> None:
    parsed = desk.parse(COMPLETIONS, {"model": "m", "prompt": "x", "logprobs": 2})
    token = TokenLogprob(5, "a", -0.5, ((5, "a", -0.5), (9, "a", -3.0)))
    whole = desk.whole(COMPLETIONS, parsed, [desk.with_logprob(parsed, token), *desk.end(parsed)])
    assert whole["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -0.5}]


A = TokenLogprob(1, "<s>", 0.0, ())
B = TokenLogprob(5, " hé", -1.5, ((6, "llo", -0.25),))
C = TokenLogprob(7, "llo", -0.5, ((7, "llo", -0.5),))
MADE = TokenLogprob(8, "!", -0.125, ((8, "!", -0.125),))
ALL: dict[str, Any] = {
    "tokens": ["<s>", " hé", "llo", "!"],
    "token_logprobs": [None, -1.5, -0.5, -0.125],
    "top_logprobs": [None, {"llo": -0.25, " hé": -1.5}, {"llo": -0.5}, {"!": -0.125}],
    "text_offset": [0, 3, 6, 9],
}


def _told(parsed: Any, request: int = 0) -> list[Entry]:
    ours = parsed.requests[request].request_id
    return [
        PromptTokens(ours, 0, 0, 0, " h", (A,)),
        PromptTokens(ours, 0, 0, 1, "éllo", (B, C)),
    ]


@pytest.mark.parametrize(
    ("prompt", "shown"), [(" héllo as sent", " héllo as sent"), ([1, 5, 7], " héllo")]
)
def test_an_echo_with_logprobs_begins_with_the_prompts(desk: Any, prompt: Any, shown: str) -> None:
    body = {"model": "m", "prompt": prompt, "echo": True, "logprobs": 1}
    parsed = desk.parse(COMPLETIONS, body)
    entries = [*_told(parsed), desk.with_logprob(parsed, MADE), *desk.end(parsed, "length")]
    whole = desk.whole(COMPLETIONS, parsed, entries)
    [choice] = whole["choices"]
    assert choice["text"] == shown + "!"
    assert choice["logprobs"] == ALL
    chunks = [one["choices"][0] for one in _chunks(desk.play(COMPLETIONS, parsed, entries))]
    assert "".join(one["text"] for one in chunks) == shown + "!"
    joined: dict[str, list[Any]] = {name: [] for name in ALL}
    for one in chunks:
        for name, values in (one["logprobs"] or {}).items():
            joined[name] += values
    assert joined == ALL


def test_an_echo_of_tokens_without_logprobs_is_their_text(desk: Any) -> None:
    body = {"model": "m", "prompt": [[1, 5, 7], [1, 5, 7]], "echo": True, "max_tokens": 0}
    parsed = desk.parse(COMPLETIONS, body)
    entries = [*_told(parsed, 1), *_told(parsed, 0)]
    entries += [*desk.end(parsed, "length", request=1), *desk.end(parsed, "length", request=0)]
    whole = desk.whole(COMPLETIONS, parsed, entries)
    assert [one["text"] for one in whole["choices"]] == [" héllo"] * 2
    assert [one["logprobs"] for one in whole["choices"]] == [None] * 2
    chunks = [one["choices"][0] for one in _chunks(desk.play(COMPLETIONS, parsed, entries))]
    for index in (0, 1):
        ours = [one for one in chunks if one["index"] == index]
        assert "".join(one["text"] for one in ours) == " héllo"
        assert [one["logprobs"] for one in ours] == [None] * len(ours)


def test_a_chosen_token_that_is_not_among_the_likeliest_is_shown_with_them(desk: Any) -> None:
    parsed = desk.parse(COMPLETIONS, {"model": "m", "prompt": "x", "logprobs": 0})
    token = TokenLogprob(5, "a", -4.0, ())
    whole = desk.whole(COMPLETIONS, parsed, [desk.with_logprob(parsed, token), *desk.end(parsed)])
    assert whole["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -4.0}]


def test_what_a_model_thinks_on_a_raw_prompt_is_text(desk: Any) -> None:
    parsed = desk.parse(COMPLETIONS, {"model": "m", "prompt": "x"})
    entries = [*desk.reasoning(parsed, "hm"), *desk.text(parsed, "a"), *desk.end(parsed)]
    assert desk.whole(COMPLETIONS, parsed, entries)["choices"][0]["text"] == "hma"
    texts = [one["choices"][0]["text"] for one in _chunks(desk.play(COMPLETIONS, parsed, entries))]
    assert "".join(texts) == "hma"


def test_progress_and_comments_are_comments(desk: Any) -> None:
    parsed = desk.parse(COMPLETIONS, BODY)
    renderer = COMPLETIONS.stream(parsed)
    ours = parsed.requests[0].request_id
    assert renderer.render([PrefillProgress(ours, 0, 1, 2)]) == b": prefill 1/2\n\n"
    assert renderer.comment("wait") == b": wait\n\n"
