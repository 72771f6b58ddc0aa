"""Questions about prompts: what bodies become, and what answers say."""

from __future__ import annotations

from typing import Any

import pytest

from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    PromptQuestion,
    TextPart,
    TextPrompt,
    TokensPrompt,
    ToolSpec,
    Usage,
)
from bus.wire.messages.tokens import ChoiceEnd, Finished, PromptAnswer
from gateway.dialects.prompts.bodies import REFUSED_CHAT, REFUSED_TOKENIZE
from gateway.dialects.prompts.dialect import ApplyTemplate, Detokenize, Tokenize

TOKENIZE, DETOKENIZE, APPLY = Tokenize(), Detokenize(), ApplyTemplate()
MODEL = {"model": "shoal-tiny"}
HI = {"role": "user", "content": "hi"}
YES = {"role": "assistant", "content": "Yes, "}
TURNS = (ChatMessage(role="user", parts=(TextPart(text="hi"),)),)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def _request(desk: Any, dialect: Any, **fields: Any) -> Any:
    (request,) = desk.parse(dialect, {**MODEL, **fields}).requests
    return request


def _answered(desk: Any, dialect: Any, parsed: Any, answer: PromptAnswer) -> dict[str, Any]:
    ours = parsed.requests[0].request_id
    usage = Usage(prompt_tokens=len(answer.token_ids))
    ended = [ChoiceEnd(ours, 0, 0, "stop", None), Finished(ours, 1, usage, answer)]
    return desk.whole(dialect, parsed, ended)


@pytest.mark.parametrize(
    ("fields", "prompt", "special"),
    [
        ({"prompt": "hi"}, TextPrompt(text="hi"), True),
        ({"prompt": "hi", "add_special_tokens": False}, TextPrompt(text="hi"), False),
        ({"prompt": "hi", "add_special": False}, TextPrompt(text="hi"), False),
        ({"prompt": ""}, TextPrompt(text=""), True),
        ({"content": "hi"}, TextPrompt(text="hi"), False),
        (
            {"content": "hi", "add_special": True, "parse_special": True},
            TextPrompt(text="hi"),
            True,
        ),
        ({"content": "hi", "with_pieces": False}, TextPrompt(text="hi"), False),
        ({"messages": [HI]}, ChatPrompt(messages=TURNS), False),
        ({"messages": [HI], "add_generation_prompt": True}, ChatPrompt(messages=TURNS), False),
        (
            {"messages": [HI], "tools": [TOOL]},
            ChatPrompt(messages=TURNS, tools=(ToolSpec(name="f", parameters={"type": "object"}),)),
            False,
        ),
    ],
)
def test_what_is_tokenised_is_what_either_server_would_take(
    desk: Any, fields: dict[str, Any], prompt: Any, special: bool
) -> None:
    request = _request(desk, TOKENIZE, **fields)
    assert request.prompt == prompt
    assert request.question == PromptQuestion(wants="tokens", special=special)


def test_a_conversation_is_thought_about_and_continued_as_it_says(desk: Any) -> None:
    for dialect in (TOKENIZE, APPLY):
        thinks = {"messages": [HI], "chat_template_kwargs": {"enable_thinking": True}}
        assert _request(desk, dialect, **thinks).thinking is True
        assert _request(desk, dialect, messages=[HI]).thinking is None
        more = {"messages": [HI, YES], "continue_final_message": True}
        assert _request(desk, dialect, **more).prompt.continue_final
        also = _request(desk, dialect, **more, add_generation_prompt=False)
        assert also.prompt == _request(desk, dialect, **more).prompt


def test_tokens_and_templates_ask_for_their_text(desk: Any) -> None:
    request = _request(desk, DETOKENIZE, tokens=[5, 6])
    assert request.prompt == TokensPrompt(token_ids=(5, 6))
    assert request.question == PromptQuestion(wants="text")
    assert _request(desk, APPLY, messages=[HI]).question == PromptQuestion(wants="text")
    assert _request(desk, DETOKENIZE, tokens=[]).prompt == TokensPrompt(token_ids=())


def test_the_one_model_there_is_needs_no_name(desk: Any) -> None:
    parsed = desk.parse(TOKENIZE, {"content": "hi"}, text_models=lambda: ["only"])
    assert (parsed.model, parsed.requests[0].model) == ("only", "only")
    two = ["one", "two"]
    assert desk.refusal(TOKENIZE, {"content": "hi"}, text_models=lambda: two).field == "model"


@pytest.mark.parametrize(
    ("dialect", "fields", "field"),
    [
        (TOKENIZE, {}, "prompt"),
        (TOKENIZE, {"prompt": "a", "content": "b"}, "content"),
        (TOKENIZE, {"prompt": "a", "messages": [HI]}, "messages"),
        (TOKENIZE, {"prompt": ["a"]}, "prompt"),
        (TOKENIZE, {"content": "a", "parse_special": False}, "parse_special"),
        (TOKENIZE, {"prompt": "a", "add_special": True, "add_special_tokens": False},
         "add_special"),
        (TOKENIZE, {"messages": [HI], "add_special_tokens": True}, "add_special_tokens"),
        (TOKENIZE, {"prompt": "a", "tools": [TOOL]}, "tools"),
        (TOKENIZE, {"prompt": "a", "continue_final_message": True}, "continue_final_message"),
        (TOKENIZE, {"prompt": "a", "chat_template_kwargs": {"enable_thinking": True}},
         "chat_template_kwargs"),
        (TOKENIZE, {"messages": [HI], "continue_final_message": True}, "continue_final_message"),
        (TOKENIZE, {"messages": [HI], "add_generation_prompt": False}, "add_generation_prompt"),
        (
            TOKENIZE,
            {
                "messages": [HI, YES],
                "continue_final_message": True,
                "add_generation_prompt": True,
            },
            "add_generation_prompt",
        ),
        (TOKENIZE, {"promt": "a"}, "promt"),
        (DETOKENIZE, {}, "tokens"),
        (DETOKENIZE, {"tokens": [-1]}, "tokens[0]"),
        (DETOKENIZE, {"tokens": ["a"]}, "tokens[0]"),
        (APPLY, {}, "messages"),
        (APPLY, {"messages": []}, "messages"),
        (APPLY, {"messages": [{"role": "assistant"}]}, "messages[0].content"),
        *((TOKENIZE, {"messages": [HI], name: "x"}, name) for name in REFUSED_TOKENIZE),
        *((APPLY, {"messages": [HI], name: "x"}, name) for name in REFUSED_CHAT),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(
    desk: Any, dialect: Any, fields: dict[str, Any], field: str
) -> None:
    assert desk.refusal(dialect, {**MODEL, **fields}).field == field


def test_an_answer_has_the_fields_of_both_servers(desk: Any) -> None:
    parsed = desk.parse(TOKENIZE, {**MODEL, "prompt": "hi"})
    assert _answered(desk, TOKENIZE, parsed, PromptAnswer((5, 6), "", 4096)) == {
        "tokens": [5, 6],
        "count": 2,
        "max_model_len": 4096,
    }
    parsed = desk.parse(DETOKENIZE, {**MODEL, "tokens": [5]})
    said = _answered(desk, DETOKENIZE, parsed, PromptAnswer((), "hi", 4096))
    assert said == {"prompt": "hi", "content": "hi"}
    parsed = desk.parse(APPLY, {**MODEL, "messages": [HI]})
    assert _answered(desk, APPLY, parsed, PromptAnswer((), "<s>hi", 4096)) == {"prompt": "<s>hi"}
