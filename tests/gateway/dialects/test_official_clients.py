"""The official clients against the dialects' own bytes, cut into awkward pieces.

The transport stands where HTTP would; the entries are what a runner would have sent.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import ollama
import openai
import pytest

from bus.wire.errors import BadRequest
from bus.wire.ids import RequestId
from bus.wire.messages.tokens import (
    ChoiceEnd,
    Entry,
    Failed,
    Finished,
    PrefillProgress,
    TokenDelta,
    TokenLogprob,
    ToolCallDelta,
)
from gateway.dialects import faults
from gateway.dialects.collect import Collector
from gateway.dialects.dialect import Dialect, LoadedCopy, ModelListing, ParseContext, Parsed
from gateway.dialects.ollama.api import render_ps, render_show, render_tags
from gateway.dialects.ollama.dialect import OllamaChat, OllamaGenerate
from gateway.dialects.openai.api import render_model, render_models
from gateway.dialects.openai.chat import OpenAIChat
from gateway.dialects.openai.completions import OpenAICompletions
from gateway.dialects.registry import envelope_of

NOW_S = 1_763_640_000.0
TINY = ModelListing("shoal-tiny", 1, NOW_S, loaded=(LoadedCopy(1, 1, 4096),))
DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": OpenAIChat(),
    "/v1/completions": OpenAICompletions(),
    "/api/chat": OllamaChat(),
    "/api/generate": OllamaGenerate(),
}
Answer = tuple[int, dict[str, str], Iterator[bytes]]
Script = Callable[[Parsed], list[Entry]]


def say(*texts: str, reason: Any = "stop", thinking: str = "") -> Script:
    """Each choice of each request says all of this."""

    def entries(parsed: Parsed) -> list[Entry]:
        made: list[Entry] = []
        for one in parsed.requests:
            ours = one.request_id
            made.append(PrefillProgress(ours, 0, 1, 2))
            for choice in range(one.n):
                if thinking:
                    made.append(TokenDelta(ours, 0, choice, "reasoning", thinking, 1))
                for text in texts:
                    logprob = TokenLogprob(7, text, -0.5, ((7, text, -0.5), (8, "x", -2.0)))
                    wanted = one.top_logprobs is not None
                    shown = (logprob,) if wanted else ()
                    made.append(TokenDelta(ours, 0, choice, "text", text, 1, shown))
                made.append(ChoiceEnd(ours, 0, choice, reason, None))
            made.append(Finished(ours, 0, USAGE))
        return made

    return entries


def call(*names: str) -> Script:
    """One answer that calls these tools, arguments in two pieces."""

    def entries(parsed: Parsed) -> list[Entry]:
        ours = parsed.requests[0].request_id
        made: list[Entry] = []
        for index, name in enumerate(names):
            made.append(ToolCallDelta(ours, 0, 0, index, f"call_{index}", name, "", 0))
            made.append(ToolCallDelta(ours, 0, 0, index, None, None, '{"city": ', 0))
            made.append(ToolCallDelta(ours, 0, 0, index, None, None, '"Paris"}', 0))
        return [*made, ChoiceEnd(ours, 0, 0, "tool_calls", None), Finished(ours, 0, USAGE)]

    return entries


def fail(parsed: Parsed) -> list[Entry]:
    """A word, and then the runner is lost."""
    ours = parsed.requests[0].request_id
    said = TokenDelta(ours, 0, 0, "text", "half", 1)
    return [said, Failed(ours, 1, "runner_lost", "the runner was lost", USAGE, {})]


def _usage() -> Any:
    from bus.wire.messages.requests import Usage

    return Usage(prompt_tokens=3, completion_tokens=2, prefill_s=0.5, decode_s=1.0)


USAGE = _usage()


class Door:
    """What HTTP would do with a request, without HTTP."""

    def __init__(self) -> None:
        self.script: Script = say("Hello", " wörld\u2028!")
        self.parsed: Parsed | None = None
        self._ids = (RequestId(f"req-n-0-b-{count}") for count in itertools.count())

    def answer(self, path: str, body: bytes) -> Answer:
        if path in DIALECTS:
            return self._generated(DIALECTS[path], body)
        listings = {
            "/v1/models": lambda: render_models([TINY], NOW_S),
            "/v1/models/shoal-tiny": lambda: render_model(TINY),
            "/api/tags": lambda: render_tags([TINY], NOW_S),
            "/api/ps": lambda: render_ps([TINY], NOW_S),
            "/api/show": lambda: render_show(TINY),
        }
        return 200, {"content-type": "application/json"}, iter([listings[path]()])

    def _generated(self, dialect: Dialect, body: bytes) -> Answer:
        try:
            parsed = dialect.parse(body, ParseContext(ids=self._ids, now_s=NOW_S))
        except BadRequest as error:
            return self._error(dialect, faults.of_bad_request(error))
        self.parsed = parsed
        if parsed.model != "shoal-tiny":
            return self._error(dialect, faults.unknown_model(parsed.model, ["shoal-tiny"]))
        entries = self.script(parsed)
        if parsed.stream:
            stream = self._streamed(dialect, parsed, entries)
            return 200, {"content-type": dialect.stream_content_type}, stream
        collector = Collector(parsed.requests)
        collector.add(entries)
        if collector.failed is not None:
            return self._error(dialect, faults.of_failed(collector.failed))
        whole = dialect.render_whole(parsed, collector.collected)
        return 200, {"content-type": "application/json"}, iter([whole])

    def _streamed(self, dialect: Dialect, parsed: Parsed, entries: list[Entry]) -> Iterator[bytes]:
        renderer = dialect.stream(parsed)
        stream = renderer.open() + renderer.comment("loading") + renderer.render(entries)
        stream += renderer.close()
        # seven bytes at a time: no frame and no character arrives in one piece
        return (stream[at : at + 7] for at in range(0, len(stream), 7))

    def _error(self, dialect: Dialect, fault: faults.HttpFault) -> Answer:
        path = "/api/" if dialect.name.startswith("ollama") else "/v1/"
        answer = envelope_of(path).answer(fault)
        return answer.status, dict(answer.headers), iter([answer.body])


class _OpenAIPieces(httpx2.SyncByteStream):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces


class _OllamaPieces(httpx.SyncByteStream):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.fixture
def openai_client(door: Door) -> Iterator[openai.OpenAI]:
    def respond(request: httpx2.Request) -> httpx2.Response:
        status, headers, pieces = door.answer(request.url.path, request.read())
        return httpx2.Response(status, headers=headers, stream=_OpenAIPieces(pieces))

    with httpx2.Client(transport=httpx2.MockTransport(respond)) as http:
        client = openai.OpenAI(
            base_url="http://shoal/v1", api_key="none", http_client=http, max_retries=0
        )
        yield client


@pytest.fixture
def ollama_client(door: Door) -> ollama.Client:
    def respond(request: httpx.Request) -> httpx.Response:
        status, headers, pieces = door.answer(request.url.path, request.read())
        return httpx.Response(status, headers=headers, stream=_OllamaPieces(pieces))

    return ollama.Client(host="http://shoal", transport=httpx.MockTransport(respond))


ASK: dict[str, Any] = {"model": "shoal-tiny", "messages": [{"role": "user", "content": "hi"}]}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TEXT = "Hello wörld\u2028!"


def test_openai_reads_a_stream(openai_client: Any) -> None:
    options = {"include_usage": True}
    chunks = list(openai_client.chat.completions.create(**ASK, stream=True, stream_options=options))
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == TEXT
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.total_tokens == 5
    assert chunks[-1].timing["tokens_per_sec"] == 1.333


def test_openai_reads_a_whole_answer(openai_client: Any) -> None:
    answer = openai_client.chat.completions.create(**ASK)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_openais_stream_helper_folds_three_choices(openai_client: Any) -> None:
    with openai_client.chat.completions.stream(**ASK, n=3) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion()
    assert [one.message.content for one in answer.choices] == [TEXT] * 3
    assert {"chunk", "content.delta", "content.done"} <= kinds


def test_openais_stream_helper_folds_parallel_calls(door: Door, openai_client: Any) -> None:
    door.script = call("get_weather", "get_weather")
    strict = json.loads(json.dumps(TOOL))
    strict["function"]["strict"] = True
    strict["function"]["parameters"] |= {"required": ["city"], "additionalProperties": False}
    with openai_client.chat.completions.stream(**ASK, tools=[strict]) as stream:
        done = [one for one in stream if one.type == "tool_calls.function.arguments.done"]
        answer = stream.get_final_completion()
    assert [one.arguments for one in done] == ['{"city": "Paris"}'] * 2
    calls = answer.choices[0].message.tool_calls
    assert [one.id for one in calls] == ["call_0", "call_1"]
    assert calls[0].function.parsed_arguments == {"city": "Paris"}
    assert answer.choices[0].message.content is None


def test_openais_own_messages_make_a_round_trip(door: Door, openai_client: Any) -> None:
    door.script = call("get_weather")
    first = openai_client.chat.completions.create(**ASK, tools=[TOOL])
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    door.script = say("sunny")
    turns = [
        *ASK["messages"],
        message,
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"},
    ]
    openai_client.chat.completions.create(model="shoal-tiny", messages=turns, tools=[TOOL])
    assert door.parsed is not None
    prompt: Any = door.parsed.requests[0].prompt
    assert prompt.messages[1].tool_calls[0].call_id == prompt.messages[2].tool_call_id == "call_0"


def test_openai_shows_reasoning_and_logprobs(door: Door, openai_client: Any) -> None:
    door.script = say("a", "b", thinking="hm")
    answer = openai_client.chat.completions.create(**ASK, logprobs=True, top_logprobs=2)
    assert answer.choices[0].message.reasoning_content == "hm"
    assert [one.token for one in answer.choices[0].logprobs.content] == ["a", "b"]
    assert answer.choices[0].logprobs.content[0].top_logprobs[1].logprob == -2.0


def test_openai_raises_its_own_errors(door: Door, openai_client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        openai_client.chat.completions.create(**ASK, extra_body={"temprature": 1})
    assert (bad.value.param, bad.value.code) == ("temprature", "invalid_value")
    with pytest.raises(openai.NotFoundError, match="shoal pull nothing-here"):
        openai_client.chat.completions.create(**{**ASK, "model": "nothing-here"})
    door.script = fail
    with pytest.raises(openai.InternalServerError) as lost:
        openai_client.chat.completions.create(**ASK)
    assert lost.value.status_code == 503
    assert lost.value.response.headers["retry-after"] == "5"


def test_openai_raises_in_the_middle_of_a_stream(door: Door, openai_client: Any) -> None:
    door.script = fail
    stream = openai_client.chat.completions.create(**ASK, stream=True)
    seen = ""
    with pytest.raises(openai.APIError, match="the runner was lost"):
        for chunk in stream:
            seen += chunk.choices[0].delta.content or ""
    assert seen == "half"


def test_openai_completions_answer_several_prompts(openai_client: Any) -> None:
    asked = {"model": "shoal-tiny", "prompt": ["One", "Two"], "echo": True, "n": 2}
    answer = openai_client.completions.create(**asked)
    wanted = ["One" + TEXT, "One" + TEXT, "Two" + TEXT, "Two" + TEXT]
    assert [one.text for one in answer.choices] == wanted
    folded = ["", "", "", ""]
    for chunk in openai_client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            folded[choice.index] += choice.text
    assert folded == wanted


def test_openai_lists_models(openai_client: Any) -> None:
    assert [one.id for one in openai_client.models.list()] == ["shoal-tiny"]
    assert openai_client.models.retrieve("shoal-tiny").owned_by == "shoal"


def test_ollama_reads_a_stream_that_holds_odd_line_ends(ollama_client: Any) -> None:
    lines = list(ollama_client.chat(**ASK, stream=True))
    assert "".join(one.message.content for one in lines) == TEXT
    assert [one.done for one in lines] == [False, False, True]
    assert lines[-1].eval_duration == 1_000_000_000


def test_ollama_reads_a_whole_answer(door: Door, ollama_client: Any) -> None:
    door.script = say("a", thinking="hm", reason="length")
    options = {"num_predict": 2, "temperature": 0, "num_ctx": 512}
    answer = ollama_client.chat(**ASK, think=True, options=options, keep_alive="5m")
    assert (answer.message.content, answer.message.thinking) == ("a", "hm")
    assert answer.done_reason == "length"
    assert door.parsed is not None
    assert door.parsed.extras.keep_alive_s == 300.0


def test_ollamas_own_messages_make_a_round_trip(door: Door, ollama_client: Any) -> None:
    door.script = call("get_weather", "get_weather")
    answer = ollama_client.chat(**ASK, tools=[TOOL])
    arguments = [one.function.arguments for one in answer.message.tool_calls]
    assert arguments == [{"city": "Paris"}, {"city": "Paris"}]
    door.script = say("sunny")
    result = {"role": "tool", "tool_name": "get_weather", "content": "sunny"}
    turns = [*ASK["messages"], answer.message, result]
    ollama_client.chat(model="shoal-tiny", messages=turns, tools=[TOOL])
    assert door.parsed is not None
    prompt: Any = door.parsed.requests[0].prompt
    assert prompt.messages[2].tool_call_id == prompt.messages[1].tool_calls[0].call_id


def test_ollama_accepts_a_python_function_as_a_tool(door: Door, ollama_client: Any) -> None:
    def get_weather(city: str, days: int = 1) -> str:
        """Get the weather.

        Args:
            city: the city
            days: how many days
        """
        return city * days

    ollama_client.chat(**ASK, tools=[get_weather])
    assert door.parsed is not None
    prompt: Any = door.parsed.requests[0].prompt
    assert prompt.tools[0].name == "get_weather"
    assert "city" in prompt.tools[0].parameters["properties"]


def test_ollama_generates(ollama_client: Any) -> None:
    answer = ollama_client.generate(model="shoal-tiny", prompt="hi", format="json")
    assert answer.response == TEXT
    pieces = ollama_client.generate(model="shoal-tiny", prompt="hi", raw=True, stream=True)
    assert "".join(one.response for one in pieces) == TEXT
    shown = ollama_client.generate(model="shoal-tiny", prompt="hi", logprobs=True, top_logprobs=1)
    assert shown.logprobs[0].top_logprobs[0].token == "Hello"


def test_ollama_raises_its_own_errors(door: Door, ollama_client: Any) -> None:
    with pytest.raises(ollama.ResponseError) as bad:
        ollama_client.chat(**ASK, options={"vocab_only": True})
    assert bad.value.status_code == 400
    assert "options.vocab_only" in bad.value.error
    with pytest.raises(ollama.ResponseError) as unknown:
        ollama_client.generate(model="nothing-here", prompt="hi")
    assert unknown.value.status_code == 404
    door.script = fail
    with pytest.raises(ollama.ResponseError, match="the runner was lost"):
        list(ollama_client.chat(**ASK, stream=True))


def test_ollama_lists_models(ollama_client: Any) -> None:
    assert ollama_client.list().models[0].model == "shoal-tiny"
    assert ollama_client.ps().models[0].context_length == 4096
    assert ollama_client.show("shoal-tiny").capabilities == ["completion"]
