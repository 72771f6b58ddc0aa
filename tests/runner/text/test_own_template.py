"""Prompts by a client's own template: read and run where the models' own are, within the bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    PromptQuestion,
    TextPart,
    TextPrompt,
)
from runner.text.checks import begun_once
from runner.text.prepared import PreparedRequest, ReadPrompt
from runner.text.text import Text
from runner.text.tokenizer import ModelTokenizer
from tests.harness.toy_tokenizer import FILL_IN, save_toy, toy_tokenizer

TEXT = Text(toy_tokenizer())
CHATML = (
    "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}"
    "<|im_start|>user\n{{ .Prompt }}<|im_end|>\n<|im_start|>assistant\n{{ .Response }}<|im_end|>\n"
)
BY_MESSAGES = (
    "{{ range .Messages }}[{{ .Role }}]{{ .Content }}{{ end }}[assistant]"
    "{{ if .IsThinkSet }}{{ if .Think }}<think>\n{{ else }}<think></think>{{ end }}{{ end }}"
    "{{ .ThinkLevel }}"
)


def said(*turns: tuple[str, str], **fields: Any) -> ChatPrompt:
    messages = tuple(
        ChatMessage(role=role, parts=(TextPart(text=text),))  # type: ignore[arg-type]
        for role, text in turns
    )
    return ChatPrompt(messages=messages, **fields)


def request(prompt: Any, **fields: Any) -> GenerationRequest:
    return GenerationRequest(request_id=RequestId("r"), model=ModelId("m"), prompt=prompt, **fields)


def prompt_of(prompt: Any, text: Text = TEXT, **fields: Any) -> str:
    asked = request(prompt, question=PromptQuestion(wants="text"), **fields)
    read = text.read(asked, 4096)
    assert isinstance(read, ReadPrompt) and read.text is not None, read
    return read.text


def refused(prompt: Any, **fields: Any) -> Refusal:
    found = TEXT.prepare(request(prompt, **fields), 4096)
    assert isinstance(found, Refusal), found
    return found


def test_a_clients_template_makes_the_prompt_in_the_place_of_the_models() -> None:
    talk = said(("system", "s"), ("user", "Hello"))
    assert prompt_of(talk, template=CHATML) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt_of(talk) != prompt_of(talk, template=CHATML)
    assert prompt_of(talk, template=BY_MESSAGES) == "[system]s[user]Hello[assistant]"


def test_it_is_told_whether_to_think_and_how_much() -> None:
    talk = said(("user", "Hello"))
    opened = prompt_of(talk, template=BY_MESSAGES, thinking=True)
    assert opened == "[user]Hello[assistant]<think>\n"
    off = prompt_of(talk, template=BY_MESSAGES, thinking=False)
    assert off == "[user]Hello[assistant]<think></think>"
    high = prompt_of(talk, template=BY_MESSAGES, effort="high", thinking=True)
    assert high == "[user]Hello[assistant]<think>\nhigh"
    ready = TEXT.prepare(request(talk, template=BY_MESSAGES, thinking=True), 4096)
    assert isinstance(ready, PreparedRequest)
    assert (ready.opening, ready.reads_thinking) == ("reasoning", True)


@pytest.mark.parametrize("template", [CHATML, BY_MESSAGES])
def test_a_turn_goes_on_where_it_ended_and_nothing_comes_behind_it(template: str) -> None:
    talk = said(("user", "Hello"), ("assistant", "Hi, "), continue_final=True)
    assert prompt_of(talk, template=template).endswith("Hi, ")


def test_a_model_without_a_template_can_be_talked_to_by_a_clients(tmp_path: Path) -> None:
    text = Text(ModelTokenizer(save_toy(tmp_path, template=None)))
    talk = said(("user", "Hello"))
    refusal = text.prepare(request(talk), 4096)
    assert isinstance(refusal, Refusal) and "no chat template" in refusal.message
    assert prompt_of(talk, text, template="Q: {{ .Prompt }} A:") == "Q: Hello A:"


def test_a_text_with_a_suffix_is_put_together_by_it(tmp_path: Path) -> None:
    template = "<S>{{ .Suffix }}<P>{{ .Prompt }}<M>"
    prompt = TextPrompt(text="a = ", suffix="\nb")
    assert prompt_of(prompt, template=template) == "<S>\nb<P>a = <M>"
    filled = Text(ModelTokenizer(save_toy(tmp_path, markers=FILL_IN)))
    assert FILL_IN[0] in prompt_of(prompt, filled)
    assert prompt_of(prompt, filled, template=template) == "<S>\nb<P>a = <M>"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ range .Messages }}\n{{ .Mood }}{{ end }}", "line 2: there is no .Mood"),
        ("{{ .Messages", "line 1: an action is not closed"),
        (
            "{{ range 9999 }}{{ range 9999 }}{{ . }}{{ end }}{{ end }}{{ .Messages }}",
            "steps|CPU time|took more than",
        ),
        (
            '{{ range 999 }}{{ printf "%9999d" 1 }}{{ end }}{{ .Messages }}',
            "8 MiB of text|CPU time",
        ),
        ("{{ define `a` }}{{ template `a` }}{{ end }}{{ template `a` }}", "deeper than"),
    ],
)
def test_a_template_that_cannot_be_run_refuses_its_request_alone(template: str, words: str) -> None:
    refusal = refused(said(("user", "Hello")), template=template)
    assert (refusal.reason, refusal.field) == ("bad_request", "template")
    assert "template" in refusal.message and any(one in refusal.message for one in words.split("|"))
    assert prompt_of(said(("user", "Hello")), template="{{ .Prompt }}") == "Hello"


def test_one_mark_of_the_beginning_stands_before_a_prompt() -> None:
    assert begun_once([7, 7, 1], 7) == [7, 1]
    assert begun_once([7, 1, 7], 7) == [7, 1, 7]
    assert begun_once([1, 1], 7) == [1, 1]
    assert begun_once([1, 1], None) == [1, 1]


def test_what_stands_before_a_prompt_is_added_to_a_clients_that_has_it_not(tmp_path: Path) -> None:
    tokenizer = ModelTokenizer(save_toy(tmp_path))
    encoded: list[bool] = []
    plain = tokenizer.encode

    def encode(text: str, *, special: bool = False, **told: Any) -> list[int]:
        encoded.append(special)
        return plain(text, special=special, **told)

    tokenizer.encode = encode  # type: ignore[method-assign]
    text = Text(tokenizer)
    encoded.clear()
    prompt_of(said(("user", "Hello")), text)
    prompt_of(said(("user", "Hello")), text, template=CHATML)
    assert encoded == [False, True]
