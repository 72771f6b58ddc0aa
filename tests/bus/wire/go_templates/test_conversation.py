"""Prompts of templates as they are written for Ollama, in the manner of families that there are.

The templates are written here; the prompts were reasoned from Go's rules and from what Ollama does
with a conversation, not taken from a run of either.
"""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from bus.wire.go_templates import GoTemplateError, parse_template, prompt_of

DAY = datetime.date(2026, 3, 1)
SYSTEM = {"role": "system", "content": "Be <brief>."}
HELLO = {"role": "user", "content": "Hello"}
HI = {"role": "assistant", "content": "Hi", "reasoning_content": "They greet."}
MORE = {"role": "user", "content": "More?"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "weather", "arguments": {"unit": "C", "city": "Kiel"}},
        }
    ],
}
RESULT = {"role": "tool", "content": "12", "name": "weather", "tool_call_id": "c1"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell it.",
        "parameters": {
            "additionalProperties": False,
            "type": "object",
            "properties": {
                "unit": {"enum": ["C", "F"], "type": "string"},
                "city": {"type": "string", "description": "A town & its land"},
                "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "at": {"type": ["number", "array"]},
            },
            "required": ["city"],
        },
    },
}
WEATHER_JSON = (
    '{"type":"function","function":{"name":"weather","description":"Tell it.","parameters":'
    '{"type":"object","required":["city"],"properties":{"at":{"type":["number","array"]},'
    '"city":{"type":"string","description":"A town \\u0026 its land"},'
    '"days":{"anyOf":[{"type":"integer"},{"type":"null"}]},'
    '"unit":{"type":"string","enum":["C","F"]}},"additionalProperties":false}}}'
)

CHATML = """\
{{ if .System }}<|im_start|>system
{{ .System }}<|im_end|>
{{ end }}{{ if .Prompt }}<|im_start|>user
{{ .Prompt }}<|im_end|>
{{ end }}<|im_start|>assistant
{{ .Response }}<|im_end|>
"""
LLAMA_2 = "[INST] {{ if .System }}<<SYS>>{{ .System }}<</SYS>>\n\n{{ end }}{{ .Prompt }} [/INST]"
LLAMA_3 = """\
{{- range $i, $m := .Messages }}<|start_header_id|>{{ .Role }}<|end_header_id|>

{{ .Content }}{{ if .ToolCalls }}
{{- range .ToolCalls }}{"name": "{{ .Function.Name }}", "parameters": {{ .Function.Arguments }}}
{{- end }}{{ end }}<|eot_id|>
{{- if eq (len (slice $.Messages $i)) 1 }}<|start_header_id|>assistant<|end_header_id|>

{{ end }}
{{- end }}"""
MISTRAL = """\
{{- $last := -1 }}
{{- range $i, $m := .Messages }}{{ if eq .Role "user" }}{{ $last = $i }}{{ end }}{{ end }}
{{- range $i, $m := .Messages }}
{{- if eq .Role "user" }}
{{- if and (eq $i $last) $.Tools }}[AVAILABLE_TOOLS] {{ $.Tools }}[/AVAILABLE_TOOLS]{{ end -}}
[INST] {{ if and $.System (eq $i $last) }}{{ $.System }}

{{ end }}{{ .Content }}[/INST]
{{- else if eq .Role "assistant" }}
{{- if .Content }} {{ .Content }}</s>
{{- else if .ToolCalls }}[TOOL_CALLS] [
{{- range .ToolCalls }}{"name": "{{ .Function.Name }}", "arguments": {{ json .Function.Arguments }}}
{{- end }}]</s>
{{- end }}
{{- else if eq .Role "tool" }}[TOOL_RESULTS] {"content": {{ json .Content }}}[/TOOL_RESULTS]
{{- end }}
{{- end }}"""
GEMMA = """\
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}
{{- if or (eq .Role "user") (eq .Role "system") }}<start_of_turn>user
{{ .Content }}<end_of_turn>
{{ if $last }}<start_of_turn>model
{{ end }}
{{- else if eq .Role "assistant" }}<start_of_turn>model
{{ .Content }}{{ if not $last }}<end_of_turn>
{{ end }}
{{- end }}
{{- end }}"""
PHI = """\
{{- if .System }}<|system|>{{ .System }}{{ range .Tools }}{{ . }}{{ end }}<|end|>{{ end }}
{{- range .Messages }}
{{- if ne .Role "system" }}<|{{ .Role }}|>{{ .Content }}<|end|>{{ end }}
{{- end }}<|assistant|>"""
QWEN_3 = """\
{{- $lastUser := -1 -}}
{{- range $i, $m := .Messages }}{{ if eq $m.Role "user" }}{{ $lastUser = $i }}{{ end }}{{ end }}
{{- range $i, $m := .Messages }}
{{- if eq $m.Role "assistant" }}<|im_start|>assistant
{{ if and $.IsThinkSet $m.Thinking (gt $i $lastUser) }}<think>{{ $m.Thinking }}</think>
{{ end }}{{ $m.Content }}<|im_end|>
{{ else if eq $m.Role "user" }}<|im_start|>user
{{ $m.Content }}
{{- if and $.IsThinkSet (eq $i $lastUser) }}
{{- if $.Think }} /think{{ else }} /no_think{{ end }}{{ end }}<|im_end|>
{{ end }}
{{- end }}<|im_start|>assistant
{{ if and $.IsThinkSet (not $.Think) }}<think>

</think>

{{ end -}}
{{ $.ThinkLevel }}"""
TYPES = """\
{{- range .Tools }}{{ .Function.Name }}({{ range $name, $p := .Function.Parameters.Properties -}}
{{ $name }}{{ if not $p.Description }}?{{ end }}: {{ toTypeScriptType $p }};
{{- end }}){{ .Function.Parameters.Required }}{{ end }}
{{- range .Messages }}{{ .Content }}{{ end }}"""
IM = "<|im_start|>"
END = "<|im_end|>\n"
HEAD = "<|start_header_id|>"
TAIL = "<|end_header_id|>\n\n"

CONFORMANCE: list[tuple[str, str, dict[str, Any], str]] = [
    ("chatml, a first turn", CHATML, {"messages": [SYSTEM, HELLO]},
     f"{IM}system\nBe <brief>.{END}{IM}user\nHello{END}{IM}assistant\n"),
    ("chatml, later turns: the system prompt stands where it was",
     CHATML, {"messages": [SYSTEM, HELLO, HI, MORE]},
     f"{IM}system\nBe <brief>.{END}{IM}user\nHello{END}{IM}assistant\nHi{END}"
     f"{IM}user\nMore?{END}{IM}assistant\n"),
    ("chatml, an answer that was begun goes on", CHATML, {"messages": [HELLO, HI]},
     f"{IM}user\nHello{END}{IM}assistant\nHi"),
    ("chatml, messages of one role are one", CHATML, {"messages": [HELLO, MORE]},
     f"{IM}user\nHello\n\nMore?{END}{IM}assistant\n"),
    ("chatml, a system prompt between", CHATML, {"messages": [HELLO, HI, SYSTEM, MORE]},
     f"{IM}user\nHello{END}{IM}assistant\nHi{END}{IM}system\nBe <brief>.{END}"
     f"{IM}user\nMore?{END}{IM}assistant\n"),
    ("llama 2: where no response is shown it is put behind",
     LLAMA_2, {"messages": [SYSTEM, HELLO, HI, MORE]},
     "[INST] <<SYS>>Be <brief>.<</SYS>>\n\nHello [/INST]Hi[INST] More? [/INST]"),
    ("llama 3, turns", LLAMA_3, {"messages": [SYSTEM, HELLO, HI, MORE]},
     f"{HEAD}system{TAIL}Be <brief>.<|eot_id|>{HEAD}user{TAIL}Hello<|eot_id|>"
     f"{HEAD}assistant{TAIL}Hi<|eot_id|>{HEAD}user{TAIL}More?<|eot_id|>{HEAD}assistant{TAIL}"),
    ("llama 3, a call: its arguments are JSON, by name",
     LLAMA_3, {"messages": [HELLO, CALL, RESULT]},
     f'{HEAD}user{TAIL}Hello<|eot_id|>{HEAD}assistant{TAIL}{{"name": "weather", "parameters": '
     f'{{"city":"Kiel","unit":"C"}}}}<|eot_id|>{HEAD}tool{TAIL}12<|eot_id|>{HEAD}assistant{TAIL}'),
    ("mistral, tools and a call",
     MISTRAL, {"messages": [SYSTEM, HELLO, CALL, RESULT], "tools": [WEATHER]},
     f"[AVAILABLE_TOOLS] [{WEATHER_JSON}][/AVAILABLE_TOOLS][INST] Be <brief>.\n\nHello[/INST]"
     '[TOOL_CALLS] [{"name": "weather", "arguments": {"city":"Kiel","unit":"C"}}]</s>'
     '[TOOL_RESULTS] {"content": "12"}[/TOOL_RESULTS]'),
    ("mistral, an answer before", MISTRAL, {"messages": [HELLO, HI, MORE]},
     "[INST] Hello[/INST] Hi</s>[INST] More?[/INST]"),
    ("gemma", GEMMA, {"messages": [SYSTEM, HELLO, HI, MORE]},
     "<start_of_turn>user\nBe <brief>.<end_of_turn>\n<start_of_turn>user\nHello<end_of_turn>\n"
     "<start_of_turn>model\nHi<end_of_turn>\n<start_of_turn>user\nMore?<end_of_turn>\n"
     "<start_of_turn>model\n"),
    ("gemma, an answer that was begun goes on", GEMMA, {"messages": [HELLO, HI]},
     "<start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\nHi"),
    ("phi, all system prompts are one", PHI,
     {"messages": [SYSTEM, HELLO, {"role": "system", "content": "Now."}], "tools": [WEATHER]},
     f"<|system|>Be <brief>.\n\nNow.{WEATHER_JSON}<|end|><|user|>Hello<|end|><|assistant|>"),
    ("qwen 3, thinking not spoken of", QWEN_3, {"messages": [HELLO]},
     f"{IM}user\nHello{END}{IM}assistant\n"),
    ("qwen 3, with thinking", QWEN_3,
     {"messages": [HELLO], "think": True, "is_think_set": True, "think_level": "high"},
     f"{IM}user\nHello /think{END}{IM}assistant\nhigh"),
    ("qwen 3, without", QWEN_3, {"messages": [HELLO, HI], "is_think_set": True},
     f"{IM}user\nHello /no_think{END}{IM}assistant\n<think>They greet.</think>\nHi{END}"
     f"{IM}assistant\n<think>\n\n</think>\n\n"),
    ("types of a tool's parameters", TYPES, {"messages": [HELLO], "tools": [WEATHER]},
     "weather(at?: number | any[];city: string;days?: number | null;unit?: string;)[city]Hello"),
    ("a message as JSON",
     "{{ range .Messages }}{{ json . }}{{ end }}", {"messages": [CALL, RESULT]},
     '{"role":"assistant","content":"","tool_calls":[{"id":"c1","function":{"index":0,"name":'
     '"weather","arguments":{"city":"Kiel","unit":"C"}}}]}'
     '{"role":"tool","content":"12","tool_name":"weather","tool_call_id":"c1"}'),
    ("names of tools' answers", "{{ range .Messages }}{{ .ToolName }}{{ .ToolCallID }}{{ end }}",
     {"messages": [HELLO, RESULT, RESULT]}, "weatherc1weatherc1"),
    ("the prompt alone", "{{ .Prompt }}", {"messages": [SYSTEM, HELLO]}, "Hello"),
    ("no field at all", "Once", {"messages": [HELLO]}, "Once"),
    ("to be filled in", "<PRE> {{ .Prompt }} <SUF>{{ .Suffix }} <MID>{{ .Messages }}",
     {"prompt": "a = ", "suffix": "\nb"}, "<PRE> a =  <SUF>\nb <MID><no value>"),
    ("a response in a branch ends it",
     "{{ if .System }}{{ .Response }}s{{ else }}{{ .Prompt }}:{{ .Response }}e{{ end }}x",
     {"messages": [HELLO, HI, MORE]}, "Hello:HiexMore?:"),
    ("what asks for the response, and does not show it, ends nothing",
     "{{ .Prompt }}{{ if .Response }}!{{ end }}>{{ .Response }}<", {"messages": [HELLO]}, "Hello>"),
    ("a response that a function shows ends it", '{{ .Prompt }}{{ printf ">%s" .Response }}<',
     {"messages": [HELLO, HI]}, "Hello>Hi"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("template", "told", "prompt"),
    [row[1:] for row in CONFORMANCE],
    ids=[row[0].replace(" ", "-") for row in CONFORMANCE],
)
def test_a_conversation_becomes_the_prompt_that_the_rules_make_of_it(
    template: str, told: dict[str, Any], prompt: str
) -> None:
    assert prompt_of(parse_template(template), told, DAY) == prompt


def test_what_a_message_has_not_is_told_and_not_shown_as_nothing() -> None:
    template = parse_template("{{ range .Messages }}\n{{ .Mood }}{{ end }}")
    with pytest.raises(GoTemplateError, match=r"line 2: there is no \.Mood of a struct"):
        prompt_of(template, {"messages": [HELLO]}, DAY)


def test_arguments_that_are_no_object_are_shown_as_they_came() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    told = {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]}
    source = (
        "{{ range .Messages }}{{ range .ToolCalls }}{{ .Function.Arguments }}{{ end }}{{ end }}"
    )
    assert prompt_of(parse_template(source), told, DAY) == "{"
