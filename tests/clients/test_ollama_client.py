"""The official Ollama client against a running node: its calls, streamed and not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import httpx
import ollama
import pytest

COUNT = "List the integers from 1 to 30"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city"}},
            "required": ["city"],
        },
    },
}
Ask = Callable[..., Any]


@pytest.fixture(scope="module", params=["", "/ollama"], ids=["at the root", "under /ollama"])
def client(node_url: str, request: pytest.FixtureRequest) -> Iterator[ollama.Client]:
    with ollama.Client(host=f"{node_url}{request.param}", timeout=90) as made:
        yield made


@pytest.fixture(scope="module")
def chat(client: ollama.Client, model: str) -> Ask:
    """One question, greedy and without thinking unless told otherwise."""

    def asked(question: str, **more: Any) -> Any:
        options = {"temperature": 0, "num_predict": 300, **more.pop("options", {})}
        messages = [{"role": "user", "content": question}]
        fields: dict[str, Any] = {"think": False, **more}
        return client.chat(model=model, messages=messages, options=options, **fields)

    return asked


def test_a_whole_answer_has_its_text_and_durations(chat: Ask, model: str) -> None:
    answer = chat(COUNT)
    assert answer.model == model
    assert (answer.done, answer.done_reason) == (True, "stop")
    assert answer.message.role == "assistant"
    assert "1, 2, 3" in answer.message.content
    assert datetime.fromisoformat(answer.created_at)
    assert answer.eval_count > 0
    assert answer.prompt_eval_count > 0
    assert 0 < answer.eval_duration <= answer.total_duration


def test_a_stream_says_the_same_and_every_line_has_a_message(chat: Ask) -> None:
    whole = chat(COUNT)
    lines = list(chat(COUNT, stream=True))
    assert all(line.message is not None for line in lines)
    assert "".join(line.message.content for line in lines) == whole.message.content
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1].eval_count == whole.eval_count
    assert len(lines) > 5, "the text came in one piece: that is no stream"


def test_options_are_honoured(chat: Ask) -> None:
    short = chat(COUNT, options={"num_predict": 4})
    assert (short.done_reason, short.eval_count) == ("length", 4)
    text = chat(COUNT).message.content
    stop = text[7:11]
    assert chat(COUNT, options={"stop": [stop]}).message.content == text[: text.index(stop)]
    drawn = {"temperature": 1.3, "num_predict": 24}
    same = [
        chat("Tell me a story.", options={**drawn, "seed": 3}).message.content for _ in range(2)
    ]
    assert same[0] == same[1]


def test_thinking_is_asked_for_and_kept_apart(chat: Ask) -> None:
    thought = chat(COUNT, think=True)
    assert thought.message.thinking
    assert "<think>" not in thought.message.thinking + thought.message.content
    streamed = "".join(line.message.thinking or "" for line in chat(COUNT, think=True, stream=True))
    assert streamed == thought.message.thinking
    assert not chat(COUNT, think=False).message.thinking


def test_a_stream_cut_off_while_thinking_is_done_all_the_same(chat: Ask) -> None:
    lines = list(chat(COUNT, think=True, stream=True, options={"num_predict": 2}))
    assert (lines[-1].done, lines[-1].done_reason) == (True, "length")


def test_json_and_schemas_are_enforced(chat: Ask) -> None:
    drawn = {"temperature": 1.0, "seed": 5, "num_predict": 256}
    answer = chat(COUNT, format=SCHEMA, options=drawn)
    assert answer.done_reason == "stop"
    found = json.loads(answer.message.content)
    assert set(found) == {"name", "age"}
    assert isinstance(found["age"], int)
    free = chat("Write a JSON object with the keys name and age.", format="json", options=drawn)
    if free.done_reason == "stop":
        assert isinstance(json.loads(free.message.content), dict)
    else:
        assert free.message.content.lstrip().startswith("{")


def test_a_tool_makes_the_round_trip(client: ollama.Client, chat: Ask, model: str) -> None:
    question = "What is the weather in Paris?"
    answer = chat(question, tools=[WEATHER])
    [call] = answer.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})
    [streamed] = [
        one
        for line in chat(question, tools=[WEATHER], stream=True)
        for one in line.message.tool_calls or ()
    ]
    assert streamed.function.arguments == {"city": "Paris"}
    told = client.chat(
        model=model,
        messages=[
            {"role": "user", "content": question},
            answer.message,
            {"role": "tool", "tool_name": "get_weather", "content": "17 degrees and sunny"},
        ],
        tools=[WEATHER],
        think=False,
        options={"temperature": 0},
    )
    assert "17 degrees and sunny" in (told.message.content or "")


def test_generate_answers_streamed_or_not(client: ollama.Client, model: str) -> None:
    fields: dict[str, Any] = {"think": False, "options": {"temperature": 0}}
    whole = client.generate(model=model, prompt=COUNT, system="You are helpful.", **fields)
    assert "1, 2, 3" in whole.response
    pieces = client.generate(
        model=model, prompt=COUNT, system="You are helpful.", stream=True, **fields
    )
    assert "".join(one.response for one in pieces) == whole.response
    raw = client.generate(model=model, prompt="Once upon", raw=True, options={"num_predict": 4})
    assert raw.eval_count is not None
    assert raw.eval_count <= 4


def test_log_probabilities_stand_beside_the_text(client: ollama.Client, model: str) -> None:
    answer = client.generate(
        model=model, prompt=COUNT, think=False, logprobs=True, top_logprobs=2,
        options={"temperature": 0, "num_predict": 5},
    )  # fmt: skip
    assert answer.logprobs is not None
    assert len(answer.logprobs) == 5
    assert all(len(one.top_logprobs or ()) == 2 for one in answer.logprobs)


def test_an_empty_prompt_loads_the_model(client: ollama.Client, model: str) -> None:
    answer = client.generate(model=model, prompt="", keep_alive="10m")
    assert (answer.done, answer.done_reason, answer.response) == (True, "load", "")
    assert model in [one.model for one in client.ps().models]


def test_models_are_listed_shown_and_running(
    client: ollama.Client, node_url: str, model: str
) -> None:
    listed = {one.model: one for one in client.list().models}
    assert listed[model].size
    assert listed[model].modified_at
    shown = client.show(model)
    assert "completion" in (shown.capabilities or [])
    assert shown.modelinfo
    client.generate(model=model, prompt="", keep_alive=300)
    running = {one.model: one for one in client.ps().models}
    assert running[model].expires_at is not None
    assert httpx.get(f"{node_url}/api/version", timeout=10).json()["version"]


def test_an_unknown_model_is_404_and_names_the_remedy(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(model="nothing-here", messages=[{"role": "user", "content": "x"}])
    assert caught.value.status_code == 404
    assert "shoal pull nothing-here" in caught.value.error
    with pytest.raises(ollama.ResponseError) as unseen:
        client.show("nothing-here")
    assert unseen.value.status_code == 404


def test_what_other_programs_send_by_default_is_taken(chat: Ask) -> None:
    options = {"num_ctx": 10_000_000, "repeat_last_n": 64, "typical_p": 0.7, "mirostat": 2}
    assert chat("Hello!", options={**options, "num_predict": 4}).eval_count == 4


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"options": {"vocab_only": True}}, "options.vocab_only"),
        ({"options": {"top_k": "many"}}, "options.top_k"),
        ({"options": {"temprature": 1}}, "options.temprature"),
        ({"keep_alive": "soon"}, "keep_alive"),
    ],
)
def test_what_cannot_be_honoured_is_400_and_named(
    chat: Ask, more: dict[str, Any], field: str
) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        chat("x", **more)
    assert caught.value.status_code == 400
    assert field in caught.value.error
