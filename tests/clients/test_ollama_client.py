"""The official Ollama client against a running node: its calls, streamed and not."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import httpx
import ollama
import pytest

from conf.settings import load_settings
from tests.harness.nodes import ROOT, Node, eventually

BUNDLED = ROOT / "conf" / "tiny"
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


@pytest.fixture(
    scope="module",
    params=["", pytest.param("/ollama", marks=pytest.mark.proof)],
    ids=["at the root", "under /ollama"],
)
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


def test_all_of_it_is_there_under_ollama_too(node_url: str, chat: Ask, model: str) -> None:
    with ollama.Client(host=f"{node_url}/ollama", timeout=90) as below:
        assert model in listed(below)
        options = {"temperature": 0, "num_predict": 300}
        messages = [{"role": "user", "content": COUNT}]
        lines = below.chat(model, messages, think=False, options=options, stream=True)
        said = "".join(line.message.content or "" for line in lines)
    assert said == chat(COUNT).message.content


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


@pytest.mark.proof
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


@pytest.mark.proof
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
    family = shown.modelinfo["general.architecture"]
    assert shown.modelinfo["general.parameter_count"] > 1_000_000
    assert shown.modelinfo[f"{family}.context_length"] > 0
    assert shown.modelinfo[f"{family}.block_count"] > 0
    assert shown.modelinfo[f"{family}.embedding_length"] > 0
    assert "messages" in shown.template
    assert client.show(f"{model}:latest") == shown
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


@pytest.mark.proof
def test_what_other_programs_send_by_default_is_taken(chat: Ask) -> None:
    options = {"num_ctx": 10_000_000, "repeat_last_n": 64, "typical_p": 0.7, "mirostat": 2}
    assert chat("Hello!", options={**options, "num_predict": 4}).eval_count == 4


@pytest.mark.parametrize(
    ("more", "field"),
    [
        *(
            pytest.param(*more, marks=pytest.mark.proof)
            for more in (
                ({"options": {"vocab_only": True}}, "options.vocab_only"),
                ({"options": {"top_k": "many"}}, "options.top_k"),
                ({"keep_alive": "soon"}, "keep_alive"),
            )
        ),
        ({"options": {"temprature": 1}}, "options.temprature"),
    ],
)
def test_what_cannot_be_honoured_is_400_and_named(
    chat: Ask, more: dict[str, Any], field: str
) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        chat("x", **more)
    assert caught.value.status_code == 400
    assert field in caught.value.error


@pytest.mark.proof
def test_lines_of_a_stream_are_dated_when_they_were_made(chat: Ask) -> None:
    dates = [line.created_at for line in chat(COUNT, stream=True)]
    assert dates == sorted(dates) and len(set(dates)) > 1
    assert all(len(one.partition(".")[2]) == len("123456789Z") for one in dates)


@pytest.mark.proof
def test_an_asynchronous_client_streams_as_well(node_url: str, model: str) -> None:
    async def said() -> tuple[str, str]:
        fields: dict[str, Any] = {"model": model, "think": False, "options": {"temperature": 0}}
        messages = [{"role": "user", "content": COUNT}]
        client = ollama.AsyncClient(host=node_url, timeout=90)
        try:
            lines = await client.chat(messages=messages, stream=True, **fields)
            talked = "".join([line.message.content or "" async for line in lines])
            pieces = await client.generate(prompt=COUNT, stream=True, **fields)
            return talked, "".join([piece.response async for piece in pieces])
        finally:
            await client.close()

    talked, generated = asyncio.run(said())
    assert "1, 2, 3" in talked and talked == generated


def test_a_model_that_is_here_is_pulled_at_once_and_no_other(
    client: ollama.Client, model: str
) -> None:
    assert client.pull(model).status == "success"
    assert [line.status for line in client.pull(f"{model}:latest", stream=True)] == ["success"]
    for absent in ("nothing-here", "hf.co/model:Q4_K_M"):
        for stream in (False, True):
            with pytest.raises(ollama.ResponseError) as caught:
                list(client.pull(absent, stream=stream))
            assert caught.value.status_code == 404
            assert absent in caught.value.error and "OWNER/NAME" in caught.value.error


def test_what_is_not_offered_says_what_to_do(client: ollama.Client, model: str) -> None:
    refusals = [
        lambda: client.push(model),
        lambda: client.create_blob(__file__),
    ]
    for refused in refusals:
        with pytest.raises(ollama.ResponseError) as caught:
            refused()
        assert caught.value.status_code == 404
        assert "is not supported" in caught.value.error or "not available yet" in caught.value.error
    with pytest.raises(ollama.ResponseError) as caught:
        client.embed(model, "text")
    assert caught.value.status_code == 400 and "is a text model" in caught.value.error


def test_the_model_that_comes_with_shoal_and_one_that_is_not_here_are_not_deleted(
    client: ollama.Client,
) -> None:
    with pytest.raises(ollama.ResponseError) as kept:
        client.delete("shoal-tiny")
    assert (kept.value.status_code, "part of shoal" in kept.value.error) == (409, True)
    for absent in ("nothing-here", "llama3.2:1b"):
        with pytest.raises(ollama.ResponseError) as unknown:
            client.delete(absent)
        assert unknown.value.status_code == 404


def test_a_model_is_deleted_from_the_disk_once_it_is_unloaded(
    client: ollama.Client, node: Node | None
) -> None:
    if node is None:
        pytest.skip("the folders of a node that was given are its operator's")
    folder = load_settings(home=node.home).paths.models / "copied"
    shutil.copytree(BUNDLED, folder, ignore=shutil.ignore_patterns("make", "*.py"))
    eventually(lambda: "copied" in listed(client), 30, "the node lists the copy")
    client.generate(model="copied", prompt="", keep_alive="5m")
    with pytest.raises(ollama.ResponseError) as loaded:
        client.delete("copied")
    assert (loaded.value.status_code, "is loaded" in loaded.value.error) == (409, True)
    assert folder.is_dir()
    # what `ollama rm` does: it unloads, and deletes at once
    assert client.generate(model="copied", prompt="", keep_alive=0).done_reason == "unload"
    assert client.delete("copied:latest").status == "success"
    assert not folder.exists()
    assert "copied" not in listed(client)


def listed(client: ollama.Client) -> set[str]:
    return {one.model or "" for one in client.list().models}
