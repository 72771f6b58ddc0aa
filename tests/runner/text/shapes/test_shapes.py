"""What a conversation says reaches the model, or is refused by name, whatever the template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from mlx_lm.chat_templates import deepseek_v32

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import ChatMessage, ChatPrompt, TextPart, ToolCall, ToolSpec
from runner.text.families import Family, Marks
from runner.text.markup import Markup
from runner.text.rendering.sandbox import environment
from runner.text.shapes import PLAIN, TemplateShape
from runner.text.template import find_shape, render_chat
from tests.runner.text.shapes.family_templates import BARE_CONTENT, PHI_4_MINI, SHAPES

TOOL = ToolSpec(name="look", parameters={"type": "object", "properties": {"at": {}}})
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True}


class Rendering:
    """A template, rendered by Jinja as the sandbox has it, and how often it was."""

    family = Family(None, Marks("<tool_call>", "</tool_call>"), None, None)
    markup = Markup()

    def __init__(self, template: str) -> None:
        self._template = environment().from_string(template)
        self.renders = 0

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        **_told: Any,
    ) -> str:
        self.renders += 1
        return self._template.render(messages=messages, tools=list(tools) or None, **VARIABLES)


def said(role: str, text: str = "", **fields: Any) -> ChatMessage:
    parts = (TextPart(text=text),) if text else ()
    return ChatMessage.model_validate({"role": role, "parts": parts, **fields})


def call(number: int, name: str, **arguments: Any) -> ToolCall:
    return ToolCall(call_id=f"call_{number}", name=name, arguments=json.dumps(arguments))


def talk(*messages: ChatMessage) -> ChatPrompt:
    return ChatPrompt(messages=messages)


def shown(template: str, prompt: ChatPrompt, *, shape: TemplateShape | None = None) -> str:
    rendering = Rendering(template)
    found = find_shape(rendering) if shape is None else shape
    tools = () if found.tools == "unseen" else (TOOL,)
    return render_chat(rendering, prompt, tools=tools, thinking=False, shape=found).text


@pytest.mark.parametrize("family", SHAPES)
def test_the_shape_that_a_family_wants_is_found_with_few_renders(family: str) -> None:
    template, differs = SHAPES[family]
    rendering = Rendering(template)
    found = find_shape(rendering)
    assert found == TemplateShape(**differs)  # type: ignore[arg-type]
    assert rendering.renders <= 40
    assert found != PLAIN or not found.words


AGENT = talk(
    said("system", "Be brief."),
    said("user", "Look at both."),
    said(
        "assistant",
        "I look.",
        tool_calls=(call(1, "look", at="here"), call(2, "look", at={"x": "there"})),
    ),
    said("tool", "nothing here", tool_call_id="call_1"),
    said("tool", 'a "fish"\nthere', tool_call_id="call_2"),
    said("assistant", "A fish."),
    said("system", "Be kind."),
    said("user", "Thanks."),
    said("user", "And now?"),
)
TEXTS = ("Be brief.", "Look at both.", "nothing here", "fish", "A fish.", "Be kind.", "Thanks.",
         "And now?")  # fmt: skip


@pytest.mark.parametrize(
    "family",
    [name for name, (_, differs) in SHAPES.items() if differs.get("calls") != "unseen"],
)
def test_all_of_an_agents_conversation_stands_in_the_prompt(family: str) -> None:
    text = shown(SHAPES[family][0], AGENT)
    assert [one for one in (*TEXTS, "look", "here", "there") if one not in text] == []
    assert "I look." in text


def test_calls_that_a_template_does_not_show_are_refused_by_name() -> None:
    with pytest.raises(BadRequest, match="does not show a call of the tool 'look'") as refused:
        shown(PHI_4_MINI, AGENT)
    assert refused.value.field == "messages[2].tool_calls[0]"


def test_what_a_template_drops_in_one_conversation_is_refused_by_name() -> None:
    forgets = "{%- for m in messages[-3:] %}{{ m.role + m.content }}{%- endfor %}"
    turns = [said("user" if n % 2 == 0 else "assistant", f"turn {n}") for n in range(5)]
    assert "turn 2" in shown(forgets, talk(*turns[2:]))
    with pytest.raises(BadRequest, match=r"does not show a user's text \(\"turn 0\"\)") as refused:
        shown(forgets, talk(*turns))
    assert refused.value.field == "messages[0].content"


def test_the_same_words_twice_have_to_be_shown_twice() -> None:
    once = "{% for m in messages %}{{ m.content if loop.index0 != 2 else '' }}"
    with pytest.raises(BadRequest, match="does not show a user's text"):
        shown(
            once + "{% endfor %}",
            talk(said("user", "yes"), said("assistant", "no"), said("user", "yes")),
        )


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.content | trim | replace('\\n', ' ') }}{% endfor %}",
        "{% for m in messages %}{{ m.content | tojson }}{% endfor %}",
        "{% for m in messages %}{{ m.content | replace('o', '0') }}{% endfor %}",
    ],
)
def test_text_that_a_template_writes_in_another_way_is_not_lost(template: str) -> None:
    told = talk(said("user", ' to\n"me"\n'), said("assistant", "NOTHING"), said("user", "ok"))
    assert shown(template, told, shape=PLAIN)


def test_a_plain_template_takes_messages_as_they_are() -> None:
    assert shown(BARE_CONTENT, talk(said("system", "a"), said("user", "b"))) == "<system>a<user>b"


class LibraryPrompt(Rendering):
    """The prompts of DeepSeek V3.2, which are code of mlx-lm's."""

    def __init__(self) -> None:
        self.renders = 0

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        **_told: Any,
    ) -> str:
        given = {"tools": [dict(tool) for tool in tools]} if tools else {}
        told = [dict(message) for message in messages]
        return deepseek_v32.apply_chat_template(told, enable_thinking=False, **given)


def test_a_prompt_that_the_library_writes_is_asked_what_it_wants_as_well() -> None:
    rendering = LibraryPrompt()
    shape = find_shape(rendering)
    assert (shape.arguments, shape.calls, shape.beside) == ("text", "several", "together")
    told = render_chat(rendering, AGENT, tools=(), thinking=False, shape=shape).text
    assert [one for one in (*TEXTS, "I look.", "here", "there") if one not in told] == []
