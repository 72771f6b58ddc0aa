"""Bodies that together hold every object that a client may send, for `test_fields`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from gateway.dialects.anthropic.bodies import AnthropicCountBody, AnthropicMessagesBody
from gateway.dialects.ollama import bodies as ollama
from gateway.dialects.ollama.derive import OllamaCopyBody, OllamaCreateBody
from gateway.dialects.ollama.embeddings import OllamaEmbedBody, OllamaEmbeddingsBody
from gateway.dialects.openai.bodies import ChatCompletionsBody, CompletionsBody
from gateway.dialects.openai.embeddings import EmbeddingsBody
from gateway.dialects.openai.responses.bodies import ResponsesBody, ResponsesCountBody
from gateway.dialects.prompts.bodies import ApplyTemplateBody, DetokenizeBody, TokenizeBody
from gateway.dialects.reranking import RerankBody

FUNCTION = {"name": "f", "parameters": {"type": "object"}}
OTHER = {**FUNCTION, "name": "g"}
TOOLS = [{"type": "function", "function": function} for function in (FUNCTION, OTHER)]
RULE = {"syntax": "regex", "definition": "a+"}
CUSTOM = {"type": "custom", "custom": {"name": "r", "format": {"type": "grammar", "grammar": RULE}}}
CHOSEN_CUSTOM = {"type": "custom", "custom": {"name": "r"}}
PLAIN_CUSTOM = {"type": "custom", "custom": {"name": "p", "format": {"type": "text"}}}
CUSTOM_CALL = {"id": "d", "type": "custom", "custom": {"name": "f", "input": "i"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": [{"type": "text", "text": "s"}]},
    {"role": "user", "content": [{"type": "text", "text": "u"}, IMAGE]},
    {
        "role": "assistant",
        "content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}],
        "tool_calls": [CALL, CUSTOM_CALL],
    },
    {"role": "tool", "content": [{"type": "text", "text": "t"}], "tool_call_id": "c"},
    {"role": "assistant", "refusal": "no"},
    {"role": "assistant", "content": "so"},
]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CHAT: dict[str, Any] = {"model": "m", "messages": TURNS, "tools": [*TOOLS, CUSTOM, PLAIN_CUSTOM],
                        "prediction": {"type": "content", "content": "p"},
                        "stream": True}  # fmt: skip
RESPONSE: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "stream_options": {},
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "n"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "o"},
        {
            "type": "reasoning",
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
    ],
    "tools": [
        {"type": "function", **FUNCTION},
        {"type": "function", **OTHER},
        {"type": "web_search"},
        {"type": "custom", "name": "r", "format": {"type": "grammar", **RULE}},
        {"type": "custom", "name": "p", "format": {"type": "text"}},
    ],
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    "reasoning": {"effort": "low"},
}
BLOCKS: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "u"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "a"},
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "d"},
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "r"}]},
            {
                "type": "tool_result",
                "tool_use_id": "t",
                "content": [
                    {"type": "tool_reference", "tool_name": "f"},
                ],
            },
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "document", "source": {"type": "text", "data": "d"}},
            {"type": "document", "source": {"type": "content", "content": "d"}},
            {
                "type": "search_result",
                "source": "u",
                "title": "t",
                "content": [{"type": "text", "text": "r"}],
            },
        ],
    },
    {"role": "system", "content": [{"type": "text", "text": "s"}]},
    {"role": "user", "content": "so?"},
]
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 5000,
    "messages": BLOCKS,
    "tools": [
        {"type": "custom", "name": "f", "input_schema": SCHEMA},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "custom", "name": "g", "input_schema": SCHEMA},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "metadata": {"user_id": "me"},
}
PICTURE: dict[str, Any] = {"role": "user", "content": [{"type": "image", "source": {}}]}
PDF: dict[str, Any] = {
    "role": "user",
    "content": [{"type": "document", "source": {"type": "base64", "data": ""}}],
}
ALLOWED = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}
OLLAMA_TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "u"},
    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
    {"role": "tool", "content": "t", "tool_name": "f"},
]
OPTIONS = {"repeat_penalty": 1.5}


def _choices(body: dict[str, Any], *choices: Any) -> list[dict[str, Any]]:
    return [{**body, "tool_choice": choice} for choice in choices]


_COUNTED = {name: value for name, value in MESSAGES.items() if name != "max_tokens"}
_UNHELD = {name: value for name, value in _COUNTED.items() if name != "output_config"}
_CHOSEN = [{"type": "auto"}, {"type": "none"}, {"type": "tool", "name": "f"}]
_FORMATS = [
    {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    {"type": "text"},
    {"type": "json_object"},
]

_CUSTOM_ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "u"},
    {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "i"},
    {"type": "custom_tool_call_output", "call_id": "c", "output": "o"},
    {"type": "web_search_call"},
]
_ASKED = {name: value for name, value in RESPONSE.items() if not name.startswith("stream")}
_HELD = [{"json": SCHEMA}, {"regex": "a+"}, {"choice": ["a", "b"]}, {"grammar": 'root ::= "a"'},
         {"json_object": True}]  # fmt: skip

BODIES: Mapping[type[BaseModel], list[dict[str, Any]]] = {
    ChatCompletionsBody: [
        CHAT,
        {**CHAT, "stream_options": {}, "chat_template_kwargs": {}, "logprobs": True},
        {**CHAT, "reasoning": {}},
        {**CHAT, "thinking": {"type": "enabled"}},
        {
            "model": "m",
            "messages": [
                *TURNS[:2],
                {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "t"},
            ],
            "functions": [FUNCTION, OTHER],
            "function_call": {"name": "f"},
        },
        {"model": "m", "messages": TURNS, "functions": [FUNCTION]},
        {"model": "m", "messages": TURNS, "store": True, "metadata": {"a": "b"}},
        *({**CHAT, "response_format": one} for one in _FORMATS),
        *({**CHAT, "structured_outputs": one} for one in _HELD),
        *_choices(
            CHAT,
            {"type": "function", "function": {"name": "f"}},
            CHOSEN_CUSTOM,
            {"type": "allowed_tools", "allowed_tools": ALLOWED},
        ),
    ],
    CompletionsBody: [
        {"model": "m", "prompt": "p", "stream": True},
        {"model": "m", "prompt": "p", "stream": True, "stream_options": {}},
    ],
    ResponsesBody: [
        RESPONSE,
        {"model": "m", "input": "u"},
        {"model": "m", "input": "u", "conversation": {"id": "conv_1"}},
        *({**RESPONSE, "text": {"format": {"type": one}}} for one in ("text", "json_object")),
        *_choices(
            RESPONSE,
            {"type": "function", "name": "f"},
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}],
            },
        ),
        {
            **RESPONSE,
            "input": [
                {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
            ],
        },
        {**RESPONSE, "input": [{"type": "item_reference", "id": "msg_r-0"}]},
        {**RESPONSE, "input": _CUSTOM_ITEMS},
    ],
    ResponsesCountBody: [
        _ASKED,
        {"model": "m", "input": "u"},
        *({**_ASKED, "text": {"format": {"type": one}}} for one in ("text", "json_object")),
        *_choices(
            _ASKED,
            {"type": "function", "name": "f"},
            {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]},
        ),
        {
            **_ASKED,
            "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
        },
        {**_ASKED, "input": [{"type": "item_reference", "id": "msg_r-0"}]},
        {**_ASKED, "input": _CUSTOM_ITEMS},
    ],
    AnthropicMessagesBody: [
        MESSAGES,
        {**_UNHELD, "max_tokens": 5000},
        *_choices(MESSAGES, *_CHOSEN),
        *({**MESSAGES, "messages": [*BLOCKS, one]} for one in (PICTURE, PDF)),
    ],
    AnthropicCountBody: [
        _COUNTED,
        _UNHELD,
        *_choices(_COUNTED, *_CHOSEN),
        *({**_COUNTED, "messages": [*BLOCKS, one]} for one in (PICTURE, PDF)),
    ],
    ollama.OllamaChatBody: [
        {"model": "m", "messages": OLLAMA_TURNS, "tools": TOOLS, "options": OPTIONS},
        {
            "model": "m",
            "messages": [*OLLAMA_TURNS[:2], {"role": "tool", "content": "t"}],
            "logprobs": True,
        },
    ],
    ollama.OllamaGenerateBody: [
        {"model": "m", "prompt": "p", "options": OPTIONS},
        {"model": "m", "prompt": "p", "logprobs": True},
    ],
    ollama.OllamaShowBody: [{"model": "m"}, {"name": "m"}],
    ollama.OllamaDeleteBody: [{"model": "m"}, {"name": "m"}],
    ollama.OllamaPullBody: [{"model": "m"}, {"name": "m"}],
    OllamaCreateBody: [
        {"model": "n", "from": "m", "messages": [{"role": "user", "content": "u"}]},
        {"name": "n", "from": "m"},
        {"name": "n", "modelfile": "FROM m"},
    ],
    OllamaCopyBody: [{"source": "m", "destination": "n"}],
    TokenizeBody: [
        {"model": "m", "prompt": "p"},
        {"model": "m", "content": "p"},
        {"model": "m", "messages": TURNS, "tools": [*TOOLS, CUSTOM], "chat_template_kwargs": {}},
    ],
    EmbeddingsBody: [{"model": "m", "input": ["p"]}],
    RerankBody: [{"model": "m", "query": "q", "documents": ["p", {"text": "p"}]}],
    OllamaEmbedBody: [{"model": "m", "input": ["p"]}],
    OllamaEmbeddingsBody: [{"model": "m", "prompt": "p"}],
    DetokenizeBody: [{"model": "m", "tokens": [1]}],
    ApplyTemplateBody: [
        {"model": "m", "messages": TURNS, "tools": [*TOOLS, CUSTOM], "chat_template_kwargs": {}}
    ],
}
"""Each body's own, the first of them one that a parser takes."""

_BOTH = ["f", "g"]
_NAMED = [{"name": name} for name in _BOTH]
_ALLOWED = [{"type": "function", "function": function} for function in _NAMED]
HINTS: dict[tuple[str, str], list[Any]] = {
    ("NamedFunctionBody", "name"): _BOTH,
    ("ChatCompletionsBody", "functions"): [[OTHER]],
    ("ChatCompletionsBody", "function_call"): ["none", {"name": "g"}],
    ("NamedChoiceBody", "function"): _NAMED,
    ("CustomNamedBody", "name"): ["r", "p"],
    ("CustomChoiceBody", "custom"): [{"name": name} for name in ("r", "p")],
    ("AllowedToolBody", "function"): _NAMED,
    ("AllowedToolsBody", "tools"): [_ALLOWED, _ALLOWED[1:]],
    ("AllowedChoiceBody", "allowed_tools"): [{**ALLOWED, "tools": _ALLOWED}],
    ("ResponsesNamedChoiceBody", "name"): _BOTH,
    ("ResponsesAllowedToolBody", "name"): _BOTH,
    ("ResponsesReferenceBody", "id"): ["msg_r-1"],
    ("ResponsesBody", "include"): [["message.output_text.logprobs"]],
    ("AnthropicNamedChoiceBody", "name"): _BOTH,
    ("AnthropicClientToolBody", "type"): ["memory_20250818"],
    ("AnthropicMessagesBody", "max_tokens"): [6000],
    ("EmbeddingsBody", "truncate_prompt_tokens"): [-1],
    ("RerankBody", "truncate_prompt_tokens"): [-1],
    ("OllamaMessageBody", "images"): [["iVBORw0KGgo="]],
    ("OllamaGenerateBody", "images"): [["iVBORw0KGgo="]],
    ("OllamaCreateBody", "modelfile"): ["FROM m\nSYSTEM s"],
    ("OllamaCreateBody", "parameters"): [{"top_k": 1}, {"stop": ["s"]}],
    ("OllamaMadeTurnBody", "role"): ["system", "assistant"],
}
"""Values of fields, by object and name, that their schemas do not lead to."""

SAME_EITHER_WAY: dict[tuple[str, str], str] = {
    ("SystemMessageBody", "role"): "both words mean the same",
    ("CompletionsBody", "best_of"): "it may only say what n says",
    ("ResponsesBody", "stream_options"): "all that is in it has no effect; refused without stream",
    ("ForeignToolBody", "type"): "every other kind is skipped alike",
    ("ResponsesForeignItemBody", "type"): "every other kind is skipped alike",
    ("AnthropicServerToolBody", "type"): "every other kind is skipped alike",
    ("AnthropicProvidedBlockBody", "type"): "every kind is dropped alike",
    ("ConversationBody", "add_generation_prompt"): "may only say what is done anyway",
    ("TokenizeBody", "add_generation_prompt"): "may only say what is done anyway",
    ("ApplyTemplateBody", "add_generation_prompt"): "may only say what is done anyway",
}
"""Fields that are honoured though no value by itself changes what is asked for, and why."""
