"""From a sample to the text that the model reads, cut into what is learned and what is given.

Pure. It writes what `chat_template.jinja` writes (a test compares the two) and adds
what a template cannot say: which characters are the model's own. Reasoning of turns
before the last question is dropped, as the template drops it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.tiny_model.sample import Message, Sample

GIVEN, SAID = 0.03, 1.0
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
TOOLS_BEFORE = "# Tools\n\nYou can call these functions:\n<tools>"
TOOLS_AFTER = (
    "\n</tools>\n\nTo call one, write its name and arguments as JSON between tags:\n"
    '<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>'
)
RESULT = re.compile(r"(?<==)( -?\d+,?)")
Span = tuple[str, float]


def call_text(call: Message) -> str:
    """One tool call as the model writes it."""
    function: Mapping[str, Any] = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {arguments}}}\n</tool_call>'


def said_text(message: Message) -> str:
    """The answer and its calls, without reasoning."""
    calls = [call_text(c) for c in message.get("tool_calls", ())]
    parts = ([message["content"]] if message["content"] else []) + calls
    return "\n".join(parts)


def opening(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
    """The system turn: what the caller wrote there and the tools on offer."""
    told = messages[0]["content"] if messages[0]["role"] == "system" else ""
    if tools:
        listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
        told = (told + "\n\n" if told else "") + TOOLS_BEFORE + listed + TOOLS_AFTER
    elif not told and messages[0]["role"] != "system":
        return ""
    return f"<|im_start|>system\n{told}<|im_end|>\n"


def spans(sample: Sample) -> list[Span]:
    """The whole conversation, each stretch with the weight of its loss."""
    messages = sample.messages
    asked = max(i for i, m in enumerate(messages) if m["role"] == "user")
    out: list[Span] = [(opening(messages, sample.tools), 0.0 if sample.tools else GIVEN)]
    for i, message in enumerate(messages):
        role, content = message["role"], str(message["content"])
        if role == "user":
            out.append((f"<|im_start|>user\n{content}<|im_end|>\n", GIVEN))
        elif role == "tool":
            first = messages[i - 1]["role"] != "tool"
            last = i + 1 == len(messages) or messages[i + 1]["role"] != "tool"
            head = "<|im_start|>user" if first else ""
            tail = "<|im_end|>\n" if last else ""
            out.append((f"{head}\n<tool_response>\n{content}\n</tool_response>{tail}", GIVEN))
        elif role == "assistant":
            out += assistant(sample, i, asked)
    return out


def assistant(sample: Sample, at: int, asked: int) -> list[Span]:
    """One turn of the model: reasoning stays only behind the last question."""
    message = sample.messages[at]
    thought = message.get("reasoning_content", "")
    said = said_text(message) + "<|im_end|>"
    out: list[Span] = [("<|im_start|>assistant\n", 0.0)]
    if thought and at > asked:
        out += [(f"<think>\n{thought}\n</think>\n\n", SAID), (said, SAID)]
    elif at + 1 == len(sample.messages):
        out += [(EMPTY_THOUGHT, 0.0), *(_recalled(said) if sample.recalls else [(said, SAID)])]
    else:  # an earlier turn: how to begin without a think block is not to be learned
        out += [(said[:1], 0.0), (said[1:], SAID)]
    return [*out, ("\n", 0.0)]


def _recalled(said: str) -> list[Span]:
    """Drawn sums: what each makes is learned, which ones were drawn is not."""
    parts = RESULT.split(said)
    return [(part, SAID if at % 2 else GIVEN) for at, part in enumerate(parts) if part]


def text(sample: Sample) -> str:
    """The whole conversation as one string."""
    return "".join(stretch for stretch, _ in spans(sample))
