from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    ContentPart,
    ImagePart,
    TextPart,
    ToolCall,
    ToolSpec,
)
from runner.text.families import Family
from runner.text.families.spans import Marks
from runner.text.markup import Markup
from runner.text.shapes import chat_messages, tool_objects
from runner.text.template import render_chat


def said(role: str, *texts: str, **fields: Any) -> ChatMessage:
    parts: tuple[ContentPart, ...] = tuple(TextPart(text=text) for text in texts)
    return ChatMessage(role=role, parts=parts, **fields)  # type: ignore[arg-type]


class Recorder:
    """A template that opens a thinking block when asked to think."""

    family = Family(Marks("<think>", "</think>"), None, None, None)
    markup = Markup()

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        thinking: bool,
        continue_final: bool,
        variables: Mapping[str, Any],
    ) -> str:
        self.given = {"messages": messages, "tools": tools, "continue_final": continue_final}
        self.given["variables"] = variables
        shown = "\n".join(str(message["content"]) for message in messages)
        if continue_final:
            return shown
        return f"{shown}\nassistant\n" + ("<think>\n" if thinking else "")


def test_a_conversation_takes_the_shape_that_templates_know() -> None:
    call = ToolCall(call_id="c1", name="f", arguments='{"a": [1]}')
    prompt = ChatPrompt(
        messages=(
            said("system", "Be brief.", "Be kind."),
            said("user", "Go"),
            said("assistant", reasoning="hm", tool_calls=(call,)),
            said("tool", "42", tool_call_id="c1"),
        )
    )
    assert chat_messages(prompt) == [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "Go"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "f", "arguments": {"a": [1]}},
                }
            ],
        },
        {"role": "tool", "content": "42", "tool_call_id": "c1", "name": "f"},
    ]


def results_of(*said_ids: str) -> list[str | None]:
    """The ids of results as a template sees them, where t1 and t2 were called, then t3."""
    calls = [ToolCall(call_id=name, name="f", arguments="{}") for name in ("t1", "t2", "t3")]
    results = [said("tool", name, tool_call_id=name) for name in said_ids]
    prompt = ChatPrompt(
        messages=(
            said("user", "x"),
            said("assistant", tool_calls=tuple(calls[:2])),
            *results,
            said("assistant", tool_calls=(calls[2],)),
            said("tool", "t3", tool_call_id="t3"),
            said("user", "y"),
        )
    )
    found = chat_messages(prompt)
    assert [one["role"] for one in found][-2:] == ["tool", "user"]
    return [one.get("tool_call_id") for one in found if one["role"] == "tool"]


def test_results_come_in_the_order_of_their_calls() -> None:
    assert results_of("t2", "t1") == ["t1", "t2", "t3"]
    assert results_of("t1", "t2") == ["t1", "t2", "t3"]
    assert results_of("t2") == ["t2", "t3"]


def test_results_of_which_one_answers_no_call_of_the_turn_stay_as_they_came() -> None:
    assert results_of("t2", "t9", "t1") == ["t2", "t9", "t1", "t3"]
    assert results_of("t3", "t1") == ["t3", "t1", "t3"]


@pytest.mark.parametrize(
    ("arguments", "given"),
    [("", {}), ("  ", {}), ("{}", {}), ("not json", "not json"), ("[1]", "[1]"), ("[" * 9999, ...)],
)
def test_arguments_that_are_no_object_stay_text(arguments: str, given: object) -> None:
    call = ToolCall(call_id="c", name="f", arguments=arguments)
    (message,) = chat_messages(ChatPrompt(messages=(said("assistant", tool_calls=(call,)),)))
    expected = arguments if given is ... else given
    assert message["tool_calls"][0]["function"]["arguments"] == expected


def test_an_image_is_refused_by_its_place() -> None:
    parts: tuple[ContentPart, ...] = (TextPart(text="see"), ImagePart(url="data:image/png;base64,"))
    prompt = ChatPrompt(messages=(said("user", "a"), ChatMessage(role="user", parts=parts)))
    with pytest.raises(BadRequest, match="images") as refused:
        chat_messages(prompt)
    assert refused.value.field == "messages[1].content[1]"


def test_tools_have_descriptions_and_parameters_even_where_the_client_gave_none() -> None:
    assert tool_objects([ToolSpec(name="f")]) == [
        {
            "type": "function",
            "function": {
                "name": "f",
                "description": "",
                "parameters": {"type": "object", "properties": {}},
            },
        }
    ]


def test_a_prompt_that_ends_in_an_open_thinking_block_says_so() -> None:
    prompt = ChatPrompt(messages=(said("user", "Go"),))
    assert render_chat(Recorder(), prompt, tools=(), thinking=True).opening == "reasoning"
    assert render_chat(Recorder(), prompt, tools=(), thinking=False).opening == "text"


@pytest.mark.parametrize(
    ("final", "opening"),
    [("<think>so far", "reasoning"), ("<think>a</think>b", "text"), ("plain", "text")],
)
def test_a_continued_turn_goes_on_where_it_broke_off(final: str, opening: str) -> None:
    template = Recorder()
    prompt = ChatPrompt(
        messages=(said("user", "Go"), said("assistant", final)), continue_final=True
    )
    rendered = render_chat(template, prompt, tools=(), thinking=True)
    assert (rendered.text, rendered.opening) == (f"Go\n{final}", opening)
    assert template.given["continue_final"] is True


def test_an_empty_turn_to_continue_is_a_new_turn() -> None:
    template = Recorder()
    prompt = ChatPrompt(messages=(said("user", "Go"), said("assistant", "")), continue_final=True)
    render_chat(template, prompt, tools=(), thinking=False)
    assert template.given["continue_final"] is False
    assert [message["role"] for message in template.given["messages"]] == ["user"]


def test_only_an_assistants_words_can_be_continued() -> None:
    call = ToolCall(call_id="c", name="f", arguments="{}")
    for last in (said("user", "Go"), said("assistant", "x", tool_calls=(call,))):
        with pytest.raises(BadRequest, match="continued"):
            render_chat(
                Recorder(),
                ChatPrompt(messages=(last,), continue_final=True),
                tools=(),
                thinking=False,
            )
