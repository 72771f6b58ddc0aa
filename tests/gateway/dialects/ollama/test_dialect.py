from __future__ import annotations

import math
from typing import Any

import pytest

from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    ImagePart,
    OutputFormat,
    TextPart,
    TextPrompt,
    ToolSpec,
)
from gateway.dialects.body import EXTRAS
from gateway.dialects.ollama.bodies import (
    HARMLESS_OPTIONS,
    NEUTRAL_OPTIONS,
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaOptionsBody,
)
from gateway.dialects.ollama.dialect import OllamaChat, OllamaGenerate
from gateway.dialects.shared_fields import LEAST_REPETITION, LEAST_TOP_P

CHAT = OllamaChat()
GENERATE = OllamaGenerate()
USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
PNG = "iVBORw0KGgoAAAA="


def _chat(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [USER], **more}


def _generate(**more: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "hi", **more}


def _user(text: str) -> ChatMessage:
    return ChatMessage(role="user", parts=(TextPart(text=text),))


OPTIONS: list[tuple[dict[str, Any], str, Any]] = [
    ({}, "max_tokens", None),
    ({"num_predict": 5}, "max_tokens", 5),
    ({"num_predict": -1}, "max_tokens", None),
    ({"num_predict": -2}, "max_tokens", None),
    ({}, "sampling.temperature", 0.8),
    ({"temperature": 0}, "sampling.temperature", 0.0),
    ({}, "sampling.top_k", 40),
    ({"top_k": 0}, "sampling.top_k", 0),
    ({}, "sampling.top_p", 0.9),
    ({"top_p": 0.5}, "sampling.top_p", 0.5),
    ({"min_p": 0.25}, "sampling.min_p", 0.25),
    ({"seed": 42}, "sampling.seed", 42),
    ({"seed": -1}, "sampling.seed", None),
    ({"seed": 42.9}, "sampling.seed", 42),
    ({"seed": 2**60 + 1}, "sampling.seed", 2**60 + 1),
    ({"stop": ["a", "b"]}, "stop", ("a", "b")),
    ({}, "sampling.repetition_penalty", 1.0),
    ({"repeat_penalty": 1.5}, "sampling.repetition_penalty", 1.5),
    ({"repeat_penalty": 1.5, "repeat_last_n": -1}, "sampling.repetition_penalty", 1.5),
    ({"repeat_penalty": 1.5, "repeat_last_n": 0}, "sampling.repetition_penalty", 1.0),
    ({"presence_penalty": 1}, "sampling.presence_penalty", 1.0),
    ({"frequency_penalty": 1}, "sampling.frequency_penalty", 1.0),
    ({"num_predict": 0}, "max_tokens", None),
    ({"num_predict": 7.9}, "max_tokens", 7),
    ({"num_predict": 1e300}, "max_tokens", 2**31 - 1),
    ({"temperature": None, "num_gpu": None}, "sampling.temperature", 0.8),
    ({"temperature": -1}, "sampling.temperature", 0.0),
    ({"temperature": 99}, "sampling.temperature", 5.0),
    ({"top_k": 20.5}, "sampling.top_k", 20),
    ({"top_k": -1}, "sampling.top_k", 0),
    ({"top_p": 2}, "sampling.top_p", 1.0),
    ({"top_p": -2}, "sampling.top_p", LEAST_TOP_P),
    ({"min_p": 2}, "sampling.min_p", 1.0),
    ({"repeat_penalty": 0}, "sampling.repetition_penalty", 1.0),
    ({"repeat_penalty": 99}, "sampling.repetition_penalty", 10.0),
    ({"repeat_penalty": -1}, "sampling.repetition_penalty", LEAST_REPETITION),
    ({"repeat_penalty": 1.5, "repeat_last_n": 64}, "sampling.repetition_penalty", 1.5),
    ({"repeat_penalty": 1.5, "repeat_last_n": -7}, "sampling.repetition_penalty", 1.5),
    ({"presence_penalty": 3}, "sampling.presence_penalty", 2.0),
    ({"frequency_penalty": -3}, "sampling.frequency_penalty", -2.0),
]


@pytest.mark.parametrize(("options", "path", "wanted"), OPTIONS)
@pytest.mark.parametrize(("dialect", "make"), [(CHAT, _chat), (GENERATE, _generate)])
def test_an_option_is_honoured(
    desk: Any, dialect: Any, make: Any, options: dict[str, Any], path: str, wanted: Any
) -> None:
    parsed = desk.parse(dialect, make(options=options))
    found = parsed.requests[0]
    for step in path.split("."):
        found = getattr(found, step)
    assert found == wanted


def test_every_option_is_sent_by_a_test_above() -> None:
    sent = {name for options, _, _ in OPTIONS for name in options} - {"num_gpu"}
    assert set(OllamaOptionsBody.model_fields) == sent


@pytest.mark.parametrize("name", sorted(HARMLESS_OPTIONS))
def test_an_option_about_another_program_changes_nothing(desk: Any, name: str) -> None:
    assert desk.parse(CHAT, _chat(options={name: 1})) == desk.parse(CHAT, _chat())


@pytest.mark.parametrize("name", sorted(NEUTRAL_OPTIONS))
def test_an_option_that_we_lack_is_accepted_only_when_it_asks_for_nothing(
    desk: Any, name: str
) -> None:
    neutral = NEUTRAL_OPTIONS[name][0]
    assert desk.parse(CHAT, _chat(options={name: neutral})) == desk.parse(CHAT, _chat())
    assert desk.refusal(CHAT, _chat(options={name: 2})).field == f"options.{name}"


REFUSED_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"num_predict": "5"}, "options.num_predict"),
    ({"top_k": "x"}, "options.top_k"),
    ({"top_p": True}, "options.top_p"),
    ({"seed": "x"}, "options.seed"),
    ({"stop": "a"}, "options.stop"),
    ({"stop": [""]}, "options.stop[0]"),
    ({"stop": ["a"] * 17}, "options.stop"),
    ({"temprature": 1}, "options.temprature"),
]


@pytest.mark.parametrize(("options", "field"), REFUSED_OPTIONS)
def test_an_option_is_refused_by_name(desk: Any, options: dict[str, Any], field: str) -> None:
    refusal = desk.refusal(CHAT, _chat(options=options))
    assert refusal.field == field
    assert field in refusal.message


def test_a_misspelt_option_is_answered_with_the_nearest_one(desk: Any) -> None:
    assert "did you mean 'num_ctx'" in desk.refusal(CHAT, _chat(options={"num_ctxt": 1})).message


FIELDS: list[tuple[dict[str, Any], str, Any]] = [
    ({"format": "json"}, "output.kind", "json_object"),
    ({"format": SCHEMA}, "output", OutputFormat(kind="json_schema", json_schema=SCHEMA)),
    ({"format": ""}, "output.kind", "text"),
    ({"think": True}, "thinking", True),
    ({"think": False}, "thinking", False),
    ({"think": "high"}, "thinking", True),
    ({"think": "high"}, "effort", "high"),
    ({"think": True}, "effort", None),
    ({"think": None}, "thinking", None),
    ({"logprobs": True}, "top_logprobs", 0),
    ({"logprobs": True, "top_logprobs": 3}, "top_logprobs", 3),
    ({"model": "m:latest"}, "model", "m"),
    ({"x_client_id": "c", "x_priority": 3}, "priority", 3),
    ({"truncate": False, "shift": False}, "model", "m"),
    ({"keep_alive": "5m", "stream": False}, "model", "m"),
    ({"options": None}, "max_tokens", None),
]


def test_a_conversation_that_may_be_cut_is_cut_and_else_is_refused(desk: Any) -> None:
    assert desk.parse(CHAT, _chat(truncate=True)).cuts
    assert not desk.parse(CHAT, _chat(truncate=False)).cuts
    assert not desk.parse(CHAT, _chat()).cuts


def test_a_developer_is_read_as_the_system(desk: Any) -> None:
    parsed = desk.parse(CHAT, _chat(messages=[{"role": "developer", "content": "x"}]))
    assert parsed.requests[0].prompt.messages[0].role == "system"


def test_a_tool_is_its_function_whatever_its_type_says(desk: Any) -> None:
    tools = [{"type": "custom", "function": {"name": "f"}}]
    assert desk.parse(CHAT, _chat(tools=tools)).requests[0].prompt.tools[0].name == "f"


@pytest.mark.parametrize("role", ["User", "USER", "System"])
def test_a_role_is_read_in_any_letters(desk: Any, role: str) -> None:
    parsed = desk.parse(CHAT, _chat(messages=[{"role": role, "content": "x"}]))
    assert parsed.requests[0].prompt.messages[0].role == role.lower()


@pytest.mark.parametrize(("sent", "path", "wanted"), FIELDS)
@pytest.mark.parametrize(("dialect", "make"), [(CHAT, _chat), (GENERATE, _generate)])
def test_a_field_is_honoured(
    desk: Any, dialect: Any, make: Any, sent: dict[str, Any], path: str, wanted: Any
) -> None:
    found = desk.parse(dialect, make(**sent)).requests[0]
    for step in path.split("."):
        found = getattr(found, step)
    assert found == wanted


def test_every_field_is_sent_by_a_test_above() -> None:
    shared = {name for sent, _, _ in FIELDS for name in sent if name not in EXTRAS}
    assert set(OllamaChatBody.model_fields) == shared | {"messages", "tools"}
    ours = {"prompt", "suffix", "system", "raw", "images", "context"}
    assert set(OllamaGenerateBody.model_fields) == shared | ours


def test_answers_stream_unless_told_otherwise(desk: Any) -> None:
    assert desk.parse(CHAT, _chat()).stream
    assert not desk.parse(CHAT, _chat(stream=False)).stream
    assert desk.parse(CHAT, _chat(model="m:latest")).model == "m:latest"


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("300ms", 0.3),
        ("1.5s", 1.5),
        ("90", 90.0),
        (10, 10.0),
        (0.5, 0.5),
        (-1, math.inf),
        ("-1", math.inf),
        ("-1m", math.inf),
        (None, None),
    ],
)
def test_keep_alive_is_understood(desk: Any, said: Any, seconds: float | None) -> None:
    assert desk.parse(CHAT, _chat(keep_alive=said)).extras.keep_alive_s == pytest.approx(seconds)


@pytest.mark.parametrize("said", ["soon", "5 minutes", "", "5mx", "nan", "inf", True, [], "m5"])
def test_what_is_no_duration_is_refused(desk: Any, said: Any) -> None:
    assert desk.refusal(CHAT, _chat(keep_alive=said)).field == "keep_alive"


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (CHAT, {"model": "a b"}, "model"),
    (CHAT, {"model": None}, "model"),
    (CHAT, {"messages": {}}, "messages"),
    (CHAT, {"messages": [{"role": "critic", "content": "x"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "images": ["??"]}]},
     "messages[0].images[0]"),
    (CHAT, {"messages": [{"role": "user", "thinking": "x"}]}, "messages[0].thinking"),
    (CHAT, {"messages": [{"role": "tool", "tool_calls": [{"function": {"name": "f"}}]}]},
     "messages[0].tool_calls"),
    (CHAT, {"messages": [{"role": "assistant", "content": "",
                          "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
     "messages[0].tool_calls[0].function.arguments"),
    (CHAT, {"tools": [{"type": "custom"}]}, "tools[0].function"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools[0].function"),
    (CHAT, {"tools": [{"function": {"name": "f"}}] * 2}, "tools[1].function.name"),
    (CHAT, {"format": "yaml"}, "format"),
    (CHAT, {"format": 5}, "format"),
    (CHAT, {"think": "deep"}, "think"),
    (CHAT, {"think": 1}, "think"),
    (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"options": []}, "options"),
    (CHAT, {"truncate": "yes"}, "truncate"),
    (CHAT, {"shift": True}, "shift"),
    (CHAT, {"template": "x"}, "template"),
    (CHAT, {"prompt": "x"}, "prompt"),
    (CHAT, {"mesages": []}, "mesages"),
    (GENERATE, {"template": "{{ .Prompt }}"}, "template"),
    (GENERATE, {"context": [-1]}, "context[0]"),
    (GENERATE, {"context": [2**31]}, "context[0]"),
    (GENERATE, {"raw": True, "context": [1]}, "context"),
    (GENERATE, {"suffix": "x", "context": [1]}, "context"),
    (GENERATE, {"prompt": ["x"]}, "prompt"),
    (GENERATE, {"raw": True, "system": "x"}, "system"),
    (GENERATE, {"raw": True, "images": [PNG]}, "images"),
    (GENERATE, {"suffix": "x", "system": "x"}, "system"),
    (GENERATE, {"raw": True, "think": True}, "think"),
    (GENERATE, {"images": ["x"]}, "images[0]"),
    (GENERATE, {"width": 512}, "width"),
    (GENERATE, {"messages": [USER]}, "messages"),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "sent", "field"), REFUSED)
def test_a_field_is_refused_by_name(
    desk: Any, dialect: Any, sent: dict[str, Any], field: str
) -> None:
    make = _chat if dialect is CHAT else _generate
    refusal = desk.refusal(dialect, make(**sent))
    assert refusal.field == field


def test_a_conversation_with_tools_is_understood_without_ids(desk: Any) -> None:
    calls = [
        {"function": {"name": "f", "arguments": {"x": 1}}},
        {"function": {"name": "g", "arguments": {}, "index": 1}},
    ]
    messages = [
        {"role": "system", "content": "s"},
        USER,
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": calls},
        {"role": "tool", "content": "2", "tool_name": "g"},
        {"role": "tool", "content": "1"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    request = desk.parse(CHAT, _chat(messages=messages, tools=tools)).requests[0]
    system, _, assistant, second, first = request.prompt.messages
    assert system.role == "system"
    assert (assistant.parts, assistant.reasoning) == ((), "hm")
    assert [call.arguments for call in assistant.tool_calls] == ['{"x":1}', "{}"]
    ids = [call.call_id for call in assistant.tool_calls]
    assert len(set(ids)) == 2
    assert (second.tool_call_id, second.name) == (ids[1], "g")
    assert (first.tool_call_id, first.name) == (ids[0], "f")
    assert request.prompt.tools == (ToolSpec(name="f", parameters=SCHEMA),)
    assert request.tool_choice.mode == "auto"


def test_answers_of_the_same_tool_belong_to_its_calls_in_order(desk: Any) -> None:
    calls = [{"function": {"name": "f", "arguments": {"x": index}}} for index in range(2)]
    answer = {"role": "tool", "content": "1", "tool_name": "f"}
    messages = [USER, {"role": "assistant", "tool_calls": calls}, answer, answer]
    turns = desk.parse(CHAT, _chat(messages=messages)).requests[0].prompt.messages
    ids = [call.call_id for call in turns[1].tool_calls]
    assert [turn.tool_call_id for turn in turns[2:]] == ids


def test_ids_are_kept_where_the_client_has_them(desk: Any) -> None:
    call = {"id": "c9", "function": {"name": "f", "arguments": {}}}
    messages = [
        USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "c9"},
    ]
    turns = desk.parse(CHAT, _chat(messages=messages)).requests[0].prompt.messages
    assert turns[1].tool_calls[0].call_id == turns[2].tool_call_id == "c9"


EMPTY_TURN: dict[str, Any] = {
    "content": "", "thinking": "", "images": [], "tool_calls": [], "tool_name": "", "name": "",
    "tool_call_id": "",
}  # fmt: skip


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_what_is_empty_in_a_turn_is_as_if_left_out(desk: Any, role: str) -> None:
    call = {"id": "c1", "function": {"name": "f"}}
    turns = [USER, {"role": "assistant", "tool_calls": [call]}]
    plain, empty = [
        desk.parse(CHAT, _chat(messages=[*turns, {"role": role, **more}])).requests[0].prompt
        for more in ({}, EMPTY_TURN)
    ]
    assert plain == empty
    assert plain.messages[-1].role == role
    if role == "tool":
        assert (plain.messages[-1].tool_call_id, plain.messages[-1].name) == ("c1", "f")


def test_what_is_empty_in_a_body_is_as_if_left_out(desk: Any) -> None:
    """As ollama's Go client marshals a request in which nothing but the model and text are set."""
    go = {
        "suffix": "", "system": "", "template": "", "context": [], "images": [], "options": {},
        "format": "", "width": 0, "height": 0, "steps": 0,
    }  # fmt: skip
    assert desk.parse(GENERATE, _generate(**go)) == desk.parse(GENERATE, _generate())
    go = {"template": "", "system": "", "prompt": "", "tools": [], "options": None, "format": None}
    assert desk.parse(CHAT, _chat(**go)) == desk.parse(CHAT, _chat())


def test_images_become_data_urls(desk: Any) -> None:
    turn = {"role": "user", "content": "look", "images": [PNG]}
    [message] = desk.parse(CHAT, _chat(messages=[turn])).requests[0].prompt.messages
    assert message.parts[1] == ImagePart(url=f"data:image/png;base64,{PNG}")
    [message] = desk.parse(GENERATE, _generate(images=[PNG])).requests[0].prompt.messages
    assert message.parts[1] == ImagePart(url=f"data:image/png;base64,{PNG}")


def test_a_template_of_a_client_is_refused_with_what_to_do_instead(desk: Any) -> None:
    refusal = desk.refusal(GENERATE, _generate(template="{{ .Prompt }}"))
    assert "shoal runs no Go templates; leave the template out" in refusal.message
    assert "own chat template is used" in refusal.message


def test_generate_goes_through_the_template_unless_raw(desk: Any) -> None:
    def prompt(**more: Any) -> Any:
        return desk.parse(GENERATE, _generate(**more)).requests[0].prompt

    assert prompt() == ChatPrompt(messages=(_user("hi"),))
    system = ChatMessage(role="system", parts=(TextPart(text="be brief"),))
    assert prompt(system="be brief") == ChatPrompt(messages=(system, _user("hi")))
    assert prompt(raw=True) == TextPrompt(text="hi")
    assert prompt(suffix="!") == TextPrompt(text="hi", suffix="!")


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (CHAT, {"model": "m"}),
        (CHAT, {"model": "m", "messages": []}),
        (GENERATE, {"model": "m"}),
        (GENERATE, {"model": "m", "prompt": ""}),
    ],
)
def test_nothing_to_answer_loads_or_unloads_the_model(
    desk: Any, dialect: Any, body: dict[str, Any]
) -> None:
    parsed = desk.parse(dialect, {**body, "keep_alive": "10m"})
    assert (parsed.intent, parsed.requests) == ("load", ())
    assert parsed.extras.keep_alive_s == 600.0
    assert desk.parse(dialect, {**body, "keep_alive": 0}).intent == "unload"
