"""What Anthropic's bodies become, and how those that cannot be honoured are refused."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import (
    ChatMessage,
    OutputFormat,
    PromptQuestion,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolSpec,
)
from gateway.dialects.anthropic.bodies import HARMLESS, HARMLESS_COUNT, REFUSED
from gateway.dialects.anthropic.dialect import AnthropicCount, AnthropicMessages
from gateway.dialects.anthropic.shapes import SIGNATURE
from gateway.dialects.dialect import Limits
from gateway.dialects.registry import request_id_of

MESSAGES = AnthropicMessages()
COUNT = AnthropicCount()
USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
F = {"name": "f", "description": "does", "input_schema": SCHEMA}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
BILLING = "x-anthropic-billing-header: cc_version=1; cch=abc;"
TEXT = {"type": "text", "text": "see"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "aGk="}
DOCUMENT = {"type": "document", "source": PDF, "title": "t"}
PLAIN = {"type": "text", "media_type": "text/plain", "data": "Grass is green."}
PIECES = {"type": "content", "content": [{"type": "text", "text": one} for one in ("One.", "Two.")]}
CITED = {"citations": {"enabled": True}}
FOUND = {"type": "search_result", "source": "https://a", "title": "A", "content": [TEXT], **CITED}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}


def _body(**more: Any) -> dict[str, Any]:
    return {"model": "shoal-tiny", "max_tokens": 9, "messages": [USER], **more}


def _request(desk: Any, **more: Any) -> Any:
    return desk.parse(MESSAGES, _body(**more)).requests[0]


def _turns(desk: Any, *messages: dict[str, Any], **more: Any) -> tuple[ChatMessage, ...]:
    return _request(desk, messages=list(messages), **more).prompt.messages


def _texts(*texts: str) -> tuple[TextPart, ...]:
    return tuple(TextPart(text=text) for text in texts)


HONOURED: list[tuple[str, dict[str, Any], str, Any]] = [
    ("model", {}, "model", "shoal-tiny"),
    ("max_tokens", {"max_tokens": 5}, "max_tokens", 5),
    ("one choice", {}, "n", 1),
    ("stops", {"stop_sequences": ["a", "b", "a"]}, "stop", ("a", "b")),
    ("no stops", {"stop_sequences": None}, "stop", ()),
    ("temperature", {"temperature": 0}, "sampling.temperature", 0.0),
    ("temperature default", {"temperature": None}, "sampling.temperature", 1.0),
    ("top_p", {"top_p": 0.25}, "sampling.top_p", 0.25),
    ("top_p zero", {"top_p": 0}, "sampling.top_p", 1e-9),
    ("top_k", {"top_k": 40}, "sampling.top_k", 40),
    ("no thinking", {}, "thinking", False),
    ("thinking", {"thinking": {"type": "enabled"}}, "thinking", True),
    (
        "budget",
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1025},
        "thinking_budget",
        1024,
    ),
    (
        "adaptive budget",
        {"thinking": {"type": "adaptive", "budget_tokens": 1024}, "max_tokens": 2000},
        "thinking_budget",
        1024,
    ),
    ("no budget", {"thinking": {"type": "enabled"}}, "thinking_budget", None),
    (
        "effort",
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
        "effort",
        "max",
    ),
    (
        "effort and thinking",
        {"thinking": {"type": "enabled"}, "output_config": {"effort": "low"}},
        "effort",
        "low",
    ),
    ("effort without thinking", {"output_config": {"effort": "low"}}, "effort", None),
    ("thinking off", {"thinking": {"type": "disabled"}}, "thinking", False),
    ("adaptive", {"thinking": {"type": "adaptive"}}, "thinking", None),
    (
        "format",
        {"output_config": {"effort": "high", "format": {"type": "json_schema", "schema": SCHEMA}}},
        "output",
        OutputFormat(kind="json_schema", json_schema=SCHEMA),
    ),
    ("effort alone", {"output_config": {"effort": "low"}}, "output", OutputFormat()),
    (
        "a format by its name in the beta",
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
        "output",
        OutputFormat(kind="json_schema", json_schema=SCHEMA),
    ),
    ("no tools", {}, "tool_choice.mode", "none"),
    ("tools", {"tools": [F]}, "tool_choice.mode", "auto"),
    ("auto", {"tools": [F], "tool_choice": {"type": "auto"}}, "tool_choice.mode", "auto"),
    ("any", {"tools": [F], "tool_choice": {"type": "any"}}, "tool_choice.mode", "required"),
    ("none", {"tools": [F], "tool_choice": {"type": "none"}}, "tool_choice.mode", "none"),
    (
        "named",
        {"tools": [F], "tool_choice": {"type": "tool", "name": "f"}},
        "tool_choice",
        ToolChoice(mode="named", name="f"),
    ),
    ("calls together", {"tools": [F]}, "parallel_tool_calls", True),
    (
        "one call at a time",
        {"tools": [F], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        "parallel_tool_calls",
        False,
    ),
    ("server tools alone", {"tools": [SEARCH]}, "tool_choice.mode", "none"),
    ("user_id", {"metadata": {"user_id": "u1"}}, "client_id", "u1"),
    ("x_client_id", {"metadata": {"user_id": "u"}, "x_client_id": "c"}, "client_id", "c"),
    ("x_priority", {"x_priority": "urgent"}, "priority", 1),
]


@pytest.mark.parametrize(
    ("sent", "path", "wanted"), [row[1:] for row in HONOURED], ids=[row[0] for row in HONOURED]
)
def test_a_field_is_honoured(desk: Any, sent: dict[str, Any], path: str, wanted: Any) -> None:
    found = _request(desk, **sent)
    for step in path.split("."):
        found = getattr(found, step)
    assert found == wanted


def test_an_answer_has_its_own_id_which_names_the_request(desk: Any) -> None:
    parsed = desk.parse(MESSAGES, _body(stream=True))
    assert parsed.answer_id.startswith("msg_") and parsed.stream
    assert request_id_of(parsed.answer_id) == parsed.requests[0].request_id


@pytest.mark.parametrize("field", HARMLESS)
def test_a_harmless_field_changes_nothing(desk: Any, field: str) -> None:
    assert _request(desk, **{field: {"any": ["thing"]}}) == _request(desk)


def test_tools_of_the_client_reach_the_prompt_and_the_providers_are_named(desk: Any) -> None:
    tools: list[dict[str, Any]] = [
        SEARCH,
        {**F, **CACHED},
        {"type": "custom", "name": "g", "input_schema": {}},
    ]
    parsed = desk.parse(MESSAGES, _body(tools=tools))
    assert parsed.requests[0].prompt.tools == (
        ToolSpec(name="f", description="does", parameters=SCHEMA),
        ToolSpec(name="g"),
    )
    assert parsed.extras.ignored == ("tools[0]",)


@pytest.mark.parametrize(
    ("kind", "name", "some", "command"),
    [
        ("bash_20250124", "bash", {"command": "ls"}, None),
        ("bash_20991231", "bash", {"restart": True}, None),
        ("text_editor_20250124", "str_replace_editor", {"path": "/a"}, "undo_edit"),
        ("text_editor_20250429", "str_replace_based_edit_tool", {"path": "/a"}, "insert"),
        (
            "text_editor_20250728",
            "str_replace_based_edit_tool",
            {"path": "/a", "insert_line": 0, "insert_text": "b"},
            "insert",
        ),
        ("memory_20250818", "memory", {"old_path": "/memories/a", "new_path": "b"}, "rename"),
    ],
)
def test_a_tool_that_anthropic_defines_and_the_client_runs_is_a_function(
    desk: Any, kind: str, name: str, some: dict[str, Any], command: str | None
) -> None:
    tool = {"type": kind, "name": name, **CACHED, "max_characters": 10_000}
    choice = {"type": "tool", "name": name}
    parsed = desk.parse(MESSAGES, _body(tools=[SEARCH, tool], tool_choice=choice))
    (request,) = parsed.requests
    (offered,) = request.prompt.tools
    assert (offered.name, request.tool_choice.name) == (name, name)
    assert offered.description
    called = some if command is None else {**some, "command": command}
    cast(Any, Draft202012Validator)(offered.parameters).validate(called)
    unknown = set(called) - set(offered.parameters["properties"])
    assert not unknown and parsed.extras.ignored == ("tools[0]",)


def test_an_editor_without_undo_does_not_offer_it(desk: Any) -> None:
    tool = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
    (offered,) = _request(desk, tools=[tool]).prompt.tools
    commands = offered.parameters["properties"]["command"]["enum"]
    assert commands == ["view", "create", "str_replace", "insert"]


def test_where_no_unknown_field_is_taken_no_tool_is_dropped(desk: Any) -> None:
    strict = Limits(strict_fields=True)
    refusal = desk.refusal(MESSAGES, _body(tools=[F, SEARCH]), limits=strict)
    assert refusal.field == "tools[1]" and "only client tools" in str(refusal)


@pytest.mark.parametrize(
    ("system", "wanted"),
    [
        (None, None),
        ("", ("",)),
        ("be brief", ("be brief",)),
        ([{"type": "text", "text": "a", **CACHED}, {"type": "text", "text": "b"}], ("a", "b")),
        ([{"type": "text", "text": BILLING}, {"type": "text", "text": "b"}], ("b",)),
        ([{"type": "text", "text": BILLING}], None),
        (BILLING, None),
        (f"{BILLING}\nbe brief", ("be brief",)),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": BILLING}], ("a", BILLING)),
    ],
)
def test_the_system_prompt_goes_first_without_the_providers_line(
    desk: Any, system: Any, wanted: tuple[str, ...] | None
) -> None:
    turns = _turns(desk, USER, system=system)
    found = [turn.parts for turn in turns if turn.role == "system"]
    # an empty prompt says nothing
    assert found == ([] if wanted is None or wanted == ("",) else [_texts(*wanted)])
    assert turns[-1] == ChatMessage(role="user", parts=_texts("hi"))


def test_text_beside_a_tools_answer_keeps_its_place(desk: Any) -> None:
    content = [
        {"type": "text", "text": "before"},
        {"type": "tool_result", "tool_use_id": "t1", "content": "found", **CACHED},
        {
            "type": "tool_result",
            "tool_use_id": "t2",
            "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}],
            "is_error": True,
        },
        {"type": "tool_result", "tool_use_id": "t3"},
        {"type": "text", "text": "after"},
        {"type": "text", "text": "all"},
    ]
    assert _turns(desk, {"role": "user", "content": content}) == (
        ChatMessage(role="user", parts=_texts("before")),
        ChatMessage(role="tool", parts=_texts("found"), tool_call_id="t1"),
        ChatMessage(role="tool", parts=_texts("Error:", "x", "y"), tool_call_id="t2"),
        ChatMessage(role="tool", parts=_texts(""), tool_call_id="t3"),
        ChatMessage(role="user", parts=_texts("after", "all")),
    )


def test_what_a_tool_answered_that_is_no_text_is_told_in_words_and_named(desk: Any) -> None:
    answered = {"type": "tool_result", "tool_use_id": "t", "content": [TEXT, IMAGE]}
    spoken = {"type": "tool_result", "tool_use_id": "u", "content": "x"}
    body = _body(messages=[USER, {"role": "user", "content": [spoken, answered]}])
    parsed = desk.parse(MESSAGES, body)
    told = parsed.requests[0].prompt.messages[-1]
    assert told.parts == _texts("see", "[image left out: only text can be read here]")
    assert parsed.extras.ignored == ("messages[1].content[1].content[1]",)
    strict = desk.refusal(MESSAGES, body, limits=Limits(strict_fields=True))
    assert strict.field == "messages[1].content[1].content[1]"


READ: list[tuple[dict[str, Any], str]] = [
    ({"source": PLAIN}, "Document:\nGrass is green."),
    (
        {"source": PLAIN, "title": "T", "context": "of 1999"},
        "Document: T\nof 1999\nGrass is green.",
    ),
    ({"source": PIECES, "title": "T", **CITED}, "Document: T\nOne.\nTwo."),
    ({"source": {"type": "content", "content": "One."}}, "Document:\nOne."),
]


@pytest.mark.parametrize(("document", "said"), READ)
def test_a_document_that_is_text_is_read_wherever_it_stands(
    desk: Any, document: dict[str, Any], said: str
) -> None:
    block = {"type": "document", **document}
    [told] = _turns(desk, {"role": "user", "content": [block, TEXT]})
    assert told.parts == _texts(said, "see")
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    parsed = desk.parse(MESSAGES, _body(messages=[USER, {"role": "user", "content": [result]}]))
    assert parsed.requests[0].prompt.messages[-1].parts == _texts(said)
    assert parsed.extras.ignored == ()


def test_what_a_search_of_the_clients_found_is_read(desk: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [FOUND]}
    turns = _turns(
        desk, {"role": "user", "content": [FOUND]}, {"role": "user", "content": [result]}
    )
    assert [turn.parts for turn in turns] == [_texts("Search result: A (https://a)\nsee")] * 2


def test_a_document_in_a_tools_answer_that_is_no_text_is_named(desk: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [DOCUMENT, TEXT]}
    parsed = desk.parse(MESSAGES, _body(messages=[USER, {"role": "user", "content": [result]}]))
    told = parsed.requests[0].prompt.messages[-1]
    assert told.parts == _texts("[document left out: only text can be read here]", "see")
    assert parsed.extras.ignored == ("messages[1].content[0].content[0]",)


def test_what_the_providers_own_tools_did_is_dropped_and_named(desk: Any) -> None:
    found = [{"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "e"}]
    searched = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": found},
    ]
    uploaded = {"type": "container_upload", "file_id": "f"}
    body = _body(
        messages=[
            {"role": "user", "content": [uploaded, TEXT]},
            {"role": "assistant", "content": [*searched, TEXT]},
            {"role": "assistant", "content": searched},
        ]
    )
    parsed = desk.parse(MESSAGES, body)
    prompt = parsed.requests[0].prompt
    assert prompt.messages == (
        ChatMessage(role="user", parts=_texts("see")),
        ChatMessage(role="assistant", parts=_texts("see")),
    )
    paths = [f"messages[{turn}].content[{block}]" for turn in (1, 2) for block in (0, 1)]
    assert parsed.extras.ignored == ("messages[0].content[0]", *paths)
    strict = desk.refusal(MESSAGES, body, limits=Limits(strict_fields=True))
    assert strict.field == "messages[0].content[0]"


def test_tools_that_a_search_found_are_named_to_the_model(desk: Any) -> None:
    found = [{"type": "tool_reference", "tool_name": name, **CACHED} for name in ("f", "g")]
    result = {"type": "tool_result", "tool_use_id": "t", "content": found}
    [_, told] = _turns(desk, USER, {"role": "user", "content": [result]})
    assert told.parts == _texts("The tool f can be called now.", "The tool g can be called now.")


def test_deferred_tools_come_last_so_that_what_is_before_them_stays_as_it_was(desk: Any) -> None:
    g, h = {**F, "name": "g", "defer_loading": True}, {**F, "name": "h", "defer_loading": False}
    tools = _request(desk, tools=[g, F, h]).prompt.tools
    assert [tool.name for tool in tools] == ["f", "h", "g"]


def test_an_answer_of_ours_is_accepted_back(desk: Any) -> None:
    content = [
        {"type": "thinking", "thinking": "hm", "signature": SIGNATURE},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "look", "citations": None, "parsed_output": None},
        {**USE, "caller": None, "toolset_name": None},
    ]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "1"}
    turns = _turns(
        desk, USER, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}
    )
    assert turns[1] == ChatMessage(
        role="assistant",
        parts=_texts("look"),
        reasoning="hm",
        tool_calls=(ToolCall(call_id="toolu_1", name="f", arguments='{"a":1}'),),
    )


@pytest.mark.parametrize("content", ["", []])
def test_an_answer_without_content_is_accepted_back_and_says_nothing(
    desk: Any, content: Any
) -> None:
    assert [
        turn.role for turn in _turns(desk, USER, {"role": "assistant", "content": content})
    ] == ["user"]


def test_a_last_turn_of_the_assistants_is_continued(desk: Any) -> None:
    request = _request(desk, messages=[USER, {"role": "assistant", "content": "The answer is"}])
    assert request.prompt.continue_final
    assert not _request(desk).prompt.continue_final


def test_a_system_message_keeps_its_place(desk: Any) -> None:
    block = {"type": "text", "text": "mind"}
    turns = _turns(desk, USER, {"role": "system", "content": [block]}, USER)
    assert [turn.role for turn in turns] == ["user", "system", "user"]


def _user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "user", "content": list(blocks)}]}


def _assistant(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": list(blocks)}, USER]}


def _result(**more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t", **more}


REFUSALS: list[tuple[str, dict[str, Any]]] = [
    ("model", {"model": None}),
    ("model", {"model": "not a name"}),
    ("max_tokens", {"max_tokens": None}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": "9"}),
    ("messages", {"messages": []}),
    ("messages", {"messages": "hi"}),
    ("messages", {"messages": [{"role": "system", "content": "alone"}]}),
    ("messages", {"messages": [{"role": "assistant", "content": []}]}),
    ("messages[0].role", {"messages": ["hi"]}),
    ("messages[0].role", {"messages": [{"role": "tool", "content": "x"}]}),
    ("messages[0].content", {"messages": [{"role": "user"}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": 5}]}),
    ("messages[1].content", _user()),
    ("messages[1].content[0].type", _user({"type": "video"})),
    ("messages[1].content[0].type", _user("text")),
    ("messages[1].content[0].text", _user({"type": "text", "text": 5})),
    ("messages[1].content[0]", _user(IMAGE)),
    ("messages[1].content[1]", _user({"type": "text", "text": "a"}, DOCUMENT)),
    ("messages[1].content[0].source.type", _user({**DOCUMENT, "source": {"type": "x"}})),
    ("messages[1].content[0].source.data", _user({**DOCUMENT, "source": {"type": "text"}})),
    (
        "messages[1].content[0].title",
        _user({"type": "search_result", "source": "u", "content": []}),
    ),
    ("messages[1].content[0].content", _user(_result(content={}))),
    ("messages[1].content[0].is_error", _user(_result(is_error="yes"))),
    ("messages[1].content[0].tool_use_id", _user({"type": "tool_result"})),
    ("messages[0].content[0].type", _assistant(_result())),
    ("messages[0].content[0].input", _assistant({**USE, "input": "{}"})),
    ("messages[0].content[0].id", _assistant({**USE, "id": ""})),
    ("messages[1].content", {"messages": [USER, {"role": "assistant", "content": [USE]}]}),
    ("system", {"system": 5}),
    ("system[0].type", {"system": [IMAGE]}),
    ("stop_sequences", {"stop_sequences": "END"}),
    ("stop_sequences[0]", {"stop_sequences": [""]}),
    ("stop_sequences", {"stop_sequences": [str(one) for one in range(17)]}),
    ("stream", {"stream": "yes"}),
    ("temperature", {"temperature": 1.5}),
    ("top_p", {"top_p": -0.1}),
    ("top_k", {"top_k": -1}),
    ("tools", {"tools": {}}),
    ("tools[0]", {"tools": ["f"]}),
    ("tools[0].type", {"tools": [{**F, "type": 5}]}),
    ("tools[0].name", {"tools": [{**F, "name": "no name"}]}),
    ("tools[0].input_schema", {"tools": [{"name": "f"}]}),
    ("tools[2].name", {"tools": [SEARCH, F, F]}),
    ("tool_choice.type", {"tools": [F], "tool_choice": {"type": "required"}}),
    ("tool_choice.type", {"tools": [F], "tool_choice": "auto"}),
    ("tool_choice", {"tool_choice": {"type": "any"}}),
    ("tool_choice.name", {"tools": [F], "tool_choice": {"type": "tool", "name": "g"}}),
    ("tool_choice.name", {"tools": [F], "tool_choice": {"type": "tool"}}),
    ("thinking.type", {"thinking": {"type": "hard"}}),
    ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": 1023}}),
    ("max_tokens", {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1024}),
    ("output_config.effort", {"output_config": {"effort": "minimal"}}),
    ("output_config.format.schema", {"output_config": {"format": {"type": "json_schema"}}}),
    ("output_config.efort", {"output_config": {"efort": "low"}}),
    ("output_format.schema", {"output_format": {"type": "json_schema"}}),
    (
        "output_format",
        {
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            "output_format": {"type": "json_schema", "schema": {"type": "string"}},
        },
    ),
    ("metadata", {"metadata": "me"}),
    ("metadata.user_id", {"metadata": {"user_id": 5}}),
    ("temprature", {"temprature": 1}),
    ("x_trace", {"x_trace": 1}),
    *((name, {name: "x"}) for name in REFUSED),
]


@pytest.mark.parametrize(("field", "sent"), REFUSALS)
def test_what_cannot_be_honoured_is_refused_by_name(
    desk: Any, field: str, sent: dict[str, Any]
) -> None:
    refusal = desk.refusal(MESSAGES, _body(**sent))
    assert refusal.field == field
    assert field in refusal.message


def test_a_required_field_that_is_not_there_is_named(desk: Any) -> None:
    for name in ("model", "max_tokens", "messages"):
        body = _body()
        del body[name]
        assert desk.refusal(MESSAGES, body).message.startswith(f"{name} is required")


def test_a_misspelt_field_is_told_its_neighbour(desk: Any) -> None:
    assert "'stop_sequences'" in desk.refusal(MESSAGES, _body(stop_sequence=["a"])).message


def test_limits_are_kept(desk: Any) -> None:
    limits = Limits(messages=1, tools=1)
    two = [USER, USER]
    assert desk.refusal(MESSAGES, _body(messages=two), limits=limits).field == "messages"
    assert desk.refusal(MESSAGES, _body(tools=[SEARCH, F]), limits=limits).field == "tools"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"null", b'{"model": "m", "max_tokens": NaN}'])
def test_a_body_that_is_no_object_of_json_is_refused(desk: Any, body: bytes) -> None:
    with pytest.raises(BadRequest):
        MESSAGES.parse(body, desk.context())


FULL: dict[str, Any] = _body(
    system=[{"type": "text", "text": "a", **CACHED}],
    messages=[
        USER,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, USE]},
        {"role": "user", "content": [_result(content=[{"type": "text", "text": "x"}])]},
    ],
    tools=[F, SEARCH],
    tool_choice={"type": "tool", "name": "f"},
    stop_sequences=["END"],
    thinking={"type": "enabled", "budget_tokens": 1024},
    output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    metadata={"user_id": "u"},
    temperature=0.5,
    top_p=0.5,
    top_k=5,
    stream=True,
)
ODD: list[Any] = [
    *(None, True, -1, 0, 2**64, 1.5, "", "x", "text"),
    *([], [None], ["x"], [[]], {}, {"type": "x"}),
]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in `value` with each of its keys."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(cast(dict[str, Any], value))
    elif isinstance(value, list):
        keys = list(range(len(cast(list[Any], value))))
    made: list[tuple[Any, Any]] = []
    for key in keys:
        made += ((value, key), *_places(value[key]))
    return made


@given(st.data())
def test_whatever_stands_in_a_field_is_read_or_refused_naming_a_field(desk: Any, data: Any) -> None:
    body = copy.deepcopy(FULL)
    for _ in range(data.draw(st.integers(0, 2))):
        holder, key = data.draw(st.sampled_from(_places(body)))
        holder[key] = copy.deepcopy(data.draw(st.sampled_from(ODD)))
    try:
        desk.parse(MESSAGES, body)
    except BadRequest as refusal:
        assert refusal.field


@pytest.mark.parametrize(
    ("sent", "ignored", "for_thinking"),
    [
        ({"output_config": {"effort": "low"}}, ("output_config.effort",), ()),
        (
            {"thinking": {"type": "disabled", "budget_tokens": 1024}, "max_tokens": 2000},
            ("thinking.budget_tokens",),
            (),
        ),
        ({"thinking": {"type": "enabled"}, "output_config": {"effort": "low"}}, (), ()),
        (
            {
                "thinking": {"type": "adaptive", "budget_tokens": 1024},
                "output_config": {"effort": "low"},
                "max_tokens": 2000,
            },
            (),
            ("thinking.budget_tokens", "output_config.effort"),
        ),
    ],
)
def test_what_comes_to_nothing_or_may_is_named(
    desk: Any, sent: dict[str, Any], ignored: Any, for_thinking: Any
) -> None:
    extras = desk.parse(MESSAGES, _body(**sent)).extras
    assert (extras.ignored, extras.for_thinking) == (ignored, for_thinking)


# --- counting -----------------------------------------------------------------------------

READ: list[dict[str, Any]] = [
    {},
    {"system": [{"type": "text", "text": BILLING}, {"type": "text", "text": "Be brief."}]},
    {"tools": [F, SEARCH], "tool_choice": {"type": "any"}},
    {"tools": [F], "tool_choice": {"type": "none"}},
    {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    {"messages": [USER, {"role": "assistant", "content": "Yes, "}]},
    {"metadata": {"user_id": "u1"}, "x_priority": "low"},
]


@pytest.mark.parametrize("sent", READ)
def test_what_is_counted_is_what_the_message_would_have_the_model_read(
    desk: Any, sent: dict[str, Any]
) -> None:
    counted = desk.parse(COUNT, {"model": "shoal-tiny", "messages": [USER], **sent})
    asked = _request(desk, **{"max_tokens": 2000, **sent})
    (request,) = counted.requests
    assert request.question == PromptQuestion(wants="count") and asked.question is None
    for name in ("model", "prompt", "tool_choice", "thinking", "output", "client_id", "priority"):
        assert getattr(request, name) == getattr(asked, name)
    assert not counted.stream


@pytest.mark.parametrize("field", HARMLESS_COUNT)
def test_what_says_nothing_of_the_prompt_changes_no_count(desk: Any, field: str) -> None:
    plain = {"model": "shoal-tiny", "messages": [USER]}
    assert desk.parse(COUNT, {**plain, field: 7}).requests == desk.parse(COUNT, plain).requests


def test_a_count_is_refused_as_the_message_would_be(desk: Any) -> None:
    plain = {"model": "shoal-tiny", "messages": [USER]}
    assert desk.refusal(COUNT, {"messages": [USER]}).field == "model"
    assert desk.refusal(COUNT, {**plain, "messages": []}).field == "messages"
    assert desk.refusal(COUNT, {**plain, "prompt": "x"}).field == "prompt"
    seen = {**plain, "messages": [{"role": "user", "content": [IMAGE]}]}
    assert desk.refusal(COUNT, seen).field == "messages[0].content[0]"
    assert desk.refusal(COUNT, {**plain, "sistem": "x"}).field == "sistem"


def test_a_count_is_all_of_the_prompt_cached_or_not(desk: Any) -> None:
    parsed = desk.parse(COUNT, {"model": "shoal-tiny", "messages": [USER]})
    assert desk.usage.cached_tokens
    said = desk.whole(COUNT, parsed, desk.end(parsed))
    assert said == {"input_tokens": desk.usage.prompt_tokens}
