"""One conversation to learn from, and which ones are kept aside.

Pure. A sample is held out when the digest of what its user says falls in one of
sixteen parts; training never sees such a sample and evaluation sees no other, so
the two can share no prompt by construction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Check = Literal["exact", "call", "json", "contains", "shape", "free"]
Message = Mapping[str, Any]
PARTS = 16


@dataclass(frozen=True)
class Sample:
    """Messages up to and including the answer to learn, and how an answer is judged.

    The last message is the assistant's. `thinking` says that its reasoning is
    shown; without it the template's empty think block stands before the answer.
    `wanted` is what the check looks for when that is not the answer itself. `key`
    replaces the last question where only more than it makes a prompt new. `recalls` says that of
    the answer, drawn sums, only the results are to be learned.
    """

    skill: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    thinking: bool = False
    check: Check = "exact"
    wanted: tuple[str, ...] = field(default=())
    key: str = ""
    recalls: bool = False


def user(text: str) -> Message:
    """What a person says."""
    return {"role": "user", "content": text}


def system(text: str) -> Message:
    """What governs the conversation."""
    return {"role": "system", "content": text}


def answer(text: str, thought: str = "", calls: Sequence[Message] = ()) -> Message:
    """What the model says, with what it thought before and what it calls."""
    said: dict[str, Any] = {"role": "assistant", "content": text}
    if thought:
        said["reasoning_content"] = thought
    if calls:
        said["tool_calls"] = list(calls)
    return said


def result(text: str) -> Message:
    """What a tool returned."""
    return {"role": "tool", "content": text}


def call(name: str, arguments: Mapping[str, Any]) -> Message:
    """One tool call in the shape of the OpenAI dialect."""
    return {"type": "function", "function": {"name": name, "arguments": dict(arguments)}}


def prompt_key(sample: Sample) -> str:
    """What the person said last, without case and spacing: the unit of holding out."""
    said = [str(m["content"]) for m in sample.messages if m["role"] == "user"]
    return " ".join((sample.key or said[-1]).lower().split())


def kept_back(prompt: str) -> bool:
    """True for a question that by itself is held out: no other skill may teach it either."""
    return held_out(Sample("", (user(prompt),)))


def held_out(sample: Sample) -> bool:
    """True for the sixteenth of all prompts that training never sees."""
    digest = hashlib.blake2s(prompt_key(sample).encode(), digest_size=4).digest()
    return digest[0] % PARTS == 7
