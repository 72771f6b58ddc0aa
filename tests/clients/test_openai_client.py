"""The official OpenAI client against a running node: what users of that API will do."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mood": {"enum": ["happy", "sad"]},
    },
    "required": ["name", "age", "mood"],
    "additionalProperties": False,
}
COUNT = "List the integers from 1 to 30"
Ask = Callable[..., Any]


def _checked_person(text: str) -> None:
    person = json.loads(text)
    assert set(person) == {"name", "age", "mood"}
    assert isinstance(person["name"], str)
    assert len(person["name"]) <= 12
    assert isinstance(person["age"], int)
    assert 0 <= person["age"] <= 150
    assert person["mood"] in ("happy", "sad")


# --- text ---------------------------------------------------------------------------------


def test_a_whole_answer_has_its_text_reason_and_usage(ask: Ask, model: str) -> None:
    answer = ask(COUNT)
    assert answer.object == "chat.completion"
    assert answer.model == model
    assert answer.id.startswith("chatcmpl-")
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert "1, 2, 3" in choice.message.content
    assert choice.finish_reason == "stop"
    assert answer.usage.prompt_tokens > 0
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.timing["seconds"] > 0
    assert answer.timing["tokens_per_sec"] > 0


def test_a_stream_says_the_same_as_a_whole_answer(ask: Ask) -> None:
    whole = ask(COUNT)
    chunks = list(ask(COUNT, stream=True, stream_options={"include_usage": True}))
    *before, last = chunks
    assert "".join(one.choices[0].delta.content or "" for one in before) == (
        whole.choices[0].message.content
    )
    assert before[0].choices[0].delta.role == "assistant"
    assert [one.choices[0].delta.role for one in before[1:]] == [None] * (len(before) - 1)
    assert before[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert len({one.id for one in chunks}) == 1
    assert len(before) > 5, "the text came in one piece: that is no stream"


@pytest.mark.proof
def test_usage_is_left_out_of_a_stream_unless_asked_for(ask: Ask) -> None:
    assert all(one.usage is None and one.choices for one in ask(COUNT, stream=True))


@pytest.mark.proof
def test_a_stream_tells_what_it_took_in_its_last_chunk(ask: Ask) -> None:
    *before, last = ask(COUNT, stream=True)
    assert last.choices[0].finish_reason == "stop" and last.timing["seconds"] > 0
    assert not any("timing" in one.model_extra for one in before)


def test_max_tokens_ends_an_answer_by_length(ask: Ask) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        answer = ask(COUNT, **{name: 4})
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 4


def test_a_stop_string_is_not_part_of_the_text(ask: Ask) -> None:
    text = ask(COUNT).choices[0].message.content
    stop = text[7:11]
    for stops in (stop, ["never said", stop]):
        answer = ask(COUNT, stop=stops)
        assert answer.choices[0].message.content == text[: text.index(stop)]
        assert answer.choices[0].finish_reason == "stop"
    pieces = [one.choices[0].delta.content or "" for one in ask(COUNT, stop=stop, stream=True)]
    assert "".join(pieces) == text[: text.index(stop)]


def test_three_choices_come_together_streamed_or_not(ask: Ask) -> None:
    fields: dict[str, Any] = {"n": 3, "temperature": 1.2, "seed": 7, "max_tokens": 24}
    answer = ask("Tell me a story.", **fields)
    assert [one.index for one in answer.choices] == [0, 1, 2]
    texts = [one.message.content for one in answer.choices]
    assert len(set(texts)) > 1, "three choices drawn alike"
    folded = ["", "", ""]
    ends: list[int] = []
    for chunk in ask("Tell me a story.", stream=True, **fields):
        for one in chunk.choices:
            folded[one.index] += one.delta.content or ""
            ends += [one.index] if one.finish_reason else []
    assert folded == texts
    assert sorted(ends) == [0, 1, 2]


@pytest.mark.proof
def test_greedy_choices_are_all_the_same(ask: Ask) -> None:
    answer = ask(COUNT, n=2)
    assert answer.choices[0].message.content == answer.choices[1].message.content


def test_a_seed_repeats_an_answer_and_another_changes_it(ask: Ask) -> None:
    def told(seed: int) -> str:
        answer = ask("Tell me a story.", temperature=1.3, seed=seed, max_tokens=32)
        return answer.choices[0].message.content

    first = told(11)
    assert told(11) == first
    assert {told(seed) for seed in (12, 13, 14)} != {first}


@pytest.mark.proof
def test_a_bias_decides_the_token(ask: Ask) -> None:
    answer = ask("Hello", logit_bias={"65": 100}, max_tokens=3, logprobs=True)
    tokens = [one.token for one in answer.choices[0].logprobs.content]
    assert len(tokens) == 3
    assert len(set(tokens)) == 1


def test_log_probabilities_belong_to_the_text(ask: Ask) -> None:
    answer = ask(COUNT, logprobs=True, top_logprobs=3, max_tokens=12)
    [choice] = answer.choices
    shown = choice.logprobs.content
    assert "".join(one.token for one in shown).startswith(choice.message.content)
    assert answer.usage.completion_tokens == len(shown)
    for one in shown:
        assert len(one.top_logprobs) == 3
        assert one.logprob <= 0
        likeliest = [other.logprob for other in one.top_logprobs]
        assert likeliest == sorted(likeliest, reverse=True)
        assert math.isclose(one.logprob, likeliest[0], abs_tol=1e-4), "greedy takes the likeliest"
    streamed = [
        one.token
        for chunk in ask(COUNT, logprobs=True, top_logprobs=0, max_tokens=12, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for one in choice.logprobs.content
    ]
    assert streamed == [one.token for one in shown]


def test_thinking_is_asked_for_and_kept_apart(ask: Ask) -> None:
    thought = ask(COUNT, reasoning_effort="high")
    message = thought.choices[0].message
    assert message.reasoning_content
    assert "<think>" not in message.reasoning_content + message.content
    assert thought.usage.completion_tokens_details.reasoning_tokens > 0
    plain = ask(COUNT, reasoning_effort="none")
    assert not getattr(plain.choices[0].message, "reasoning_content", None)
    streamed = "".join(
        getattr(one.choices[0].delta, "reasoning_content", None) or ""
        for one in ask(COUNT, reasoning_effort="high", stream=True)
    )
    assert streamed == message.reasoning_content


@pytest.mark.proof
def test_a_system_message_and_parts_are_read(client: OpenAI, model: str) -> None:
    messages: Any = [
        {"role": "developer", "content": [{"type": "text", "text": "You are helpful."}]},
        {"role": "user", "content": [{"type": "text", "text": "List the integers"},
                                     {"type": "text", "text": " from 1 to 30"}]},
    ]  # fmt: skip
    answer = client.chat.completions.create(
        model=model, messages=messages, temperature=0, reasoning_effort="none", max_tokens=300
    )
    assert "1, 2, 3" in (answer.choices[0].message.content or "")


def test_the_same_prompt_again_comes_from_the_prefix_cache(ask: Ask) -> None:
    question = "Repeat after me: " + " ".join(f"word{index}" for index in range(120))
    ask(question, max_tokens=1)
    again = ask(question, max_tokens=1)
    assert again.usage.prompt_tokens_details.cached_tokens > 0


# --- structure ----------------------------------------------------------------------------


@pytest.mark.proof
def test_json_object_is_enforced(ask: Ask) -> None:
    for seed in range(3):
        answer = ask(
            "Write a JSON object with the keys name and age.",
            response_format={"type": "json_object"},
            temperature=1.0,
            seed=seed,
            max_tokens=200,
        )
        if answer.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(answer.choices[0].message.content), dict)
        else:
            assert answer.choices[0].message.content.lstrip().startswith("{")


def test_json_schema_is_enforced_whatever_the_question(ask: Ask) -> None:
    wanted: dict[str, Any] = {
        "type": "json_schema",
        "json_schema": {"name": "person", "schema": PERSON, "strict": True},
    }
    for seed, question in enumerate(("Who are you?", COUNT, "Tell me a story.")):
        fields: dict[str, Any] = {"response_format": wanted, "temperature": 1.0, "seed": seed}
        answer = ask(question, max_tokens=256, **fields)
        assert answer.choices[0].finish_reason == "stop"
        _checked_person(answer.choices[0].message.content)
        pieces = [
            one.choices[0].delta.content or ""
            for one in ask(question, max_tokens=256, stream=True, **fields)
        ]
        assert "".join(pieces) == answer.choices[0].message.content


# --- completions and models -----------------------------------------------------------------


def test_completions_answer_several_prompts_streamed_or_not(client: OpenAI, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "prompt": ["One", "Two"], "temperature": 0, "n": 2}
    answer = client.completions.create(**asked, echo=True, max_tokens=8)
    texts = [one.text for one in answer.choices]
    assert [one.index for one in answer.choices] == [0, 1, 2, 3]
    assert [text[:3] for text in texts] == ["One", "One", "Two", "Two"]
    assert texts[0] == texts[1]
    folded = ["", "", "", ""]
    for chunk in client.completions.create(**asked, echo=True, max_tokens=8, stream=True):
        for choice in chunk.choices:
            folded[choice.index] += choice.text
    assert folded == texts
    assert client.completions.create(**asked).choices[0].finish_reason in ("stop", "length")


@pytest.mark.proof
def test_completions_show_log_probabilities_in_the_older_shape(client: OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt="Once upon", logprobs=2, max_tokens=5, temperature=0
    )
    shown = answer.choices[0].logprobs
    assert shown is not None
    assert shown.tokens is not None
    assert shown.token_logprobs is not None
    assert shown.text_offset is not None
    # The model may end its text before its five tokens are used up.
    assert 1 < len(shown.tokens) == len(shown.token_logprobs) == len(shown.text_offset) <= 5
    assert shown.text_offset[0] == 0
    assert "".join(shown.tokens) == answer.choices[0].text


@pytest.mark.proof
def test_completions_take_tokens(client: OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt=[65, 66, 67], max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3


def test_models_are_listed_and_found(client: OpenAI, model: str) -> None:
    assert model in [one.id for one in client.models.list()]
    assert client.models.retrieve(model).object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing-here")


# --- errors -------------------------------------------------------------------------------


def test_an_unknown_model_is_404_and_names_the_remedy(ask: Ask, client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(
            model="nothing-here", messages=[{"role": "user", "content": "x"}]
        )
    assert caught.value.code == "model_not_found"
    assert "shoal pull nothing-here" in caught.value.message


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"temperature": 9}, "temperature"),
        *(
            pytest.param(*more, marks=pytest.mark.proof)
            for more in (
                ({"n": 0}, "n"),
                ({"extra_body": {"temprature": 1}}, "temprature"),
                ({"tool_choice": "required"}, "tool_choice"),
                ({"extra_body": {"functions": [{}]}}, "functions[0].name"),
            )
        ),
    ],
)
def test_a_bad_field_is_400_and_named(ask: Ask, sent: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            ask("x", stream=stream, **sent)
        assert caught.value.param == param
        assert caught.value.type == "invalid_request_error"


def test_an_unknown_field_is_named_in_the_answer_and_counted(
    client: OpenAI, model: str, node_url: str
) -> None:
    def counted() -> float:
        label = 'shoal_ignored_fields_total{dialect="openai_chat",field="other"} '
        rows = httpx.get(f"{node_url}/metrics").text.splitlines()
        return sum(float(row.removeprefix(label)) for row in rows if row.startswith(label))

    turn: Any = {"role": "user", "content": "Hello", "mood": "glad"}
    before = counted()
    for stream in (False, True):
        raw = client.chat.completions.with_raw_response.create(
            model=model, messages=[turn], max_tokens=2, stream=stream, extra_body={"colour": "red"}
        )
        assert raw.headers["x-shoal-ignored"] == "colour, messages[0].mood"
        raw.http_response.read()
    assert counted() - before == 4


def test_a_prompt_that_does_not_fit_is_400_with_its_own_code(ask: Ask) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            ask("word " * 5_000, stream=stream)
        assert caught.value.code == "context_length_exceeded"


@pytest.mark.proof
def test_an_image_is_refused_by_a_model_that_cannot_see(client: OpenAI, model: str) -> None:
    content: Any = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    ]
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": content}])


# --- many at once -------------------------------------------------------------------------


def test_eight_at_once_get_the_same_answer_as_one_alone(
    node_url: str, ask: Ask, model: str
) -> None:
    alone = ask(COUNT).choices[0].message.content

    async def together() -> list[str]:
        async with AsyncOpenAI(base_url=f"{node_url}/v1", api_key="none", timeout=90) as many:

            async def one() -> str:
                stream = await many.chat.completions.create(
                    model=model,
                    messages=[{"role": "user", "content": COUNT}],
                    temperature=0,
                    reasoning_effort="none",
                    stream=True,
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*(one() for _ in range(8)))

    assert asyncio.run(together()) == [alone] * 8


def test_a_client_that_leaves_does_not_disturb_the_next(ask: Ask) -> None:
    whole = ask(COUNT).choices[0].message.content
    stream = ask("Tell me a story.", stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    assert ask(COUNT).choices[0].message.content == whole
