"""What is sent for a sample, and whether what came back is right.

Pure. Requests and answers are those of the OpenAI chat dialect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.tiny_model.sample import Message, Sample


def request(
    sample: Sample, model: str, temperature: float, most: int | None = None
) -> dict[str, Any]:
    """The body of the request that asks for the sample's last message, in at most so many tokens;
    without a number as many as the server grants."""
    body: dict[str, Any] = {
        "model": model,
        "messages": outgoing(sample.messages[:-1]),
        "temperature": temperature,
        "chat_template_kwargs": {"enable_thinking": sample.thinking},
    }
    if most is not None:
        body["max_tokens"] = most
    if sample.tools:
        body["tools"] = [dict(tool) for tool in sample.tools]
    return body


def outgoing(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages in OpenAI's form: call ids, arguments as strings."""
    out: list[dict[str, Any]] = []
    waiting: list[str] = []
    for at, message in enumerate(messages):
        sent = {k: v for k, v in message.items() if k in ("role", "content")}
        calls: Sequence[Message] = message.get("tool_calls", ())
        if calls:
            waiting = [f"call_{at}_{i}" for i in range(len(calls))]
            sent["tool_calls"] = [_sent(c, i) for c, i in zip(calls, waiting, strict=True)]
        if message["role"] == "tool":
            sent["tool_call_id"] = waiting.pop(0)
        out.append(sent)
    return out


def _sent(call: Message, call_id: str) -> dict[str, Any]:
    function: Mapping[str, Any] = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def right(sample: Sample, said: Mapping[str, Any]) -> bool:
    """Whether the answer is what the sample's check wants."""
    wanted = sample.messages[-1]
    text = str(said.get("content") or "").strip()
    calls: Sequence[Message] = said.get("tool_calls") or ()
    if sample.check == "call":
        return [_called(c) for c in calls] == [_called(c) for c in wanted["tool_calls"]]
    if calls:
        return False
    if sample.check in ("json", "shape"):
        return _json_right(sample, text, str(wanted["content"]))
    if sample.check == "contains":
        return all(word in text for word in sample.wanted) and text.endswith((".", '"'))
    return text == str(wanted["content"]).strip()


def _json_right(sample: Sample, text: str, wanted: str) -> bool:
    try:
        found: Any = json.loads(text)
    except ValueError:
        return False
    model: Any = json.loads(wanted)
    if sample.check == "json":
        return found == model
    if type(found) is not type(model):
        return False
    return tuple(found) == sample.wanted if sample.wanted else len(found) == len(model)


def _called(call: Message) -> tuple[str, Any]:
    function: Mapping[str, Any] = call["function"]
    arguments = function["arguments"]
    return str(function["name"]), json.loads(arguments) if isinstance(arguments, str) else arguments
