# pyright: reportPrivateUsage=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# (transformers is untyped)
"""Our sandbox is transformers': the same names in it, and the same text out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from transformers.utils import chat_template_utils

from runner.text import ModelTokenizer
from runner.text.rendering import sandbox
from runner.text.tokenizer import TokenizerError
from tests.harness.toy_tokenizer import TEMPLATE, save_toy

TINY = Path(__file__).resolve().parents[4] / "conf" / "tiny" / "chat_template.jinja"
ODD = """\
{%- set ns = namespace(count=0) %}
{% for message in messages %}
    {% if message.role == 'skip' %}{% continue %}{% endif %}
{% set ns.count = ns.count + 1 %}{% generation %}{% set inner = 1 %}[{{ message.content }}]\
{% endgeneration %}{{ inner is defined }}
{% if ns.count == 5 %}{% break %}{% endif %}
{% endfor %}
{{- dict(a=1) | tojson }} {{ dict.fromkeys([1, 2]) }} {{ bos_token }}|{{ eos_token }}
{{ documents }}
{{- tools | tojson(indent=2) if tools }} {{ messages[0] | tojson(sort_keys=true) }}
{{- messages[-1].thinking }} {{ messages | length }} {{ 'é' | tojson }} {{ strftime_now('%%') }}"""
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "°C", "parameters": {"type": "object"}},
}
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Grüße 🐟 <|im_end|>"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "weather", "arguments": {"a": 1}}}
        ],
    },
    {"role": "tool", "content": "12", "tool_call_id": "c", "name": "weather"},
    {"role": "assistant", "content": " It is "},
]


def test_the_names_in_our_sandbox_are_those_that_templates_know() -> None:
    compile_ = chat_template_utils._compile_jinja_template
    theirs, ours = compile_("").environment, sandbox.environment()
    assert set(ours.globals) == set(theirs.globals)
    assert set(ours.filters) == set(theirs.filters)
    assert set(ours.tests) == set(theirs.tests)
    assert {tag for one in ours.extensions.values() for tag in one.tags} == {
        tag for one in theirs.extensions.values() for tag in one.tags
    }
    assert type(ours).__mro__ == type(theirs).__mro__
    for name in ("trim_blocks", "lstrip_blocks", "keep_trailing_newline", "autoescape"):
        assert getattr(ours, name) == getattr(theirs, name)


@pytest.mark.parametrize("continues", [False, True])
@pytest.mark.parametrize("tools", [[], [WEATHER]], ids=("plain", "tools"))
@pytest.mark.parametrize(
    "template",
    [
        TEMPLATE,
        TINY.read_text(),
        ODD,
        "{% for m in messages %}{{ m.content | trim }}\n{% endfor %}",
        [
            {"name": "default", "template": "plain {{ messages[-1].content }}"},
            {"name": "tool_use", "template": "tools {{ messages[-1].content }} {{ tools }}"},
        ],
    ],
    ids=("toy", "tiny", "odd", "trimming", "named"),
)
def test_a_prompt_is_what_transformers_would_make(
    tmp_path: Path, template: Any, tools: list[Any], continues: bool
) -> None:
    save_toy(tmp_path, template=template)
    tokenizer = ModelTokenizer(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        TALK,
        tools=tools or None,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        enable_thinking=True,
        tokenize=False,
    )
    assert tokenizer.render(TALK, tools, thinking=True, continue_final=continues) == theirs


def test_a_template_in_a_file_of_its_own_counts(tmp_path: Path) -> None:
    save_toy(tmp_path, template=None)
    (tmp_path / "chat_template.jinja").write_text("file {{ messages[0].content }}")
    tokenizer = ModelTokenizer(tmp_path)
    text = tokenizer.render(TALK, [], thinking=False, continue_final=False)
    assert text == "file Be brief."
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    tokenizer = ModelTokenizer(tmp_path)
    assert tokenizer.render(TALK, [WEATHER], thinking=False, continue_final=False) == "with tools"


def test_what_is_to_be_continued_has_to_be_shown(tmp_path: Path) -> None:
    tokenizer = ModelTokenizer(save_toy(tmp_path, template="nothing"))
    with pytest.raises(ValueError, match="leaves out the message"):
        tokenizer.render(TALK, [], thinking=False, continue_final=True)


def test_what_comes_with_a_special_token_is_plain_data(tmp_path: Path) -> None:
    save_toy(tmp_path, template="{{ eos_token | tojson }}")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["bos_token"] = {"__type": "AddedToken", "content": "<|im_start|>", "special": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    text = ModelTokenizer(tmp_path).render(TALK, [], thinking=False, continue_final=False)
    assert text == '"<|im_end|>"'


@pytest.mark.parametrize("size", [(1 << 20) + 1, 5 << 20])
def test_a_template_that_is_too_large_to_be_compiled_fails_the_load(
    tmp_path: Path, size: int
) -> None:
    save_toy(tmp_path, template=None)
    (tmp_path / "chat_template.jinja").write_text("x" * size)
    with pytest.raises(TokenizerError, match="more than 1,048,576 characters"):
        ModelTokenizer(tmp_path)
