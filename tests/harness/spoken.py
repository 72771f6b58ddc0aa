"""One conversation in every dialect's own words, and answers of every dialect in none."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

import httpx

from tests.harness.gateway_testbed import GatewayTestbed

PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "ollama": "/api/chat",
    "generate": "/api/generate",
}
SCHEMA = {"type": "object", "properties": {"kind": {"type": "string"}}}
FUNCTION = {"name": "find_fish", "description": "Finds fish.", "parameters": SCHEMA}
ARGUMENTS = {"kind": "cod"}


@dataclass
class Said:
    """An answer in no dialect."""

    text: str = ""
    thoughts: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    reason: str = ""
    tokens: tuple[int, int] = (0, 0)


def conversation(dialect: str) -> dict[str, Any]:
    """One conversation with a call and its answer, in each dialect's own words."""
    user, text = {"role": "user", "content": "Find one."}, "You fish."
    tool = {"type": "function", "function": FUNCTION}
    match dialect:
        case "generate":
            return {"prompt": "Find one.", "system": text, "options": {"num_predict": 50}}
        case "responses":
            call = {"type": "function_call", "call_id": "c1", "name": "find_fish"}
            output = {"type": "function_call_output", "call_id": "c1", "output": "a cod"}
            items = [user, {**call, "arguments": json.dumps(ARGUMENTS)}, output]
            more = {"max_output_tokens": 50, "store": False}
            tools = [{"type": "function", **FUNCTION}]
            return {"instructions": text, "input": items, "tools": tools, **more}
        case "messages":
            use = {"type": "tool_use", "id": "c1", "name": "find_fish", "input": ARGUMENTS}
            result = {"type": "tool_result", "tool_use_id": "c1", "content": "a cod"}
            turns = [user, {"role": "assistant", "content": [use]}]
            turns.append({"role": "user", "content": [result]})
            offered = {"name": "find_fish", "description": "Finds fish.", "input_schema": SCHEMA}
            return {"system": text, "messages": turns, "tools": [offered], "max_tokens": 50}
        case _:
            is_ollama = dialect == "ollama"
            arguments = ARGUMENTS if is_ollama else json.dumps(ARGUMENTS)
            function = {"name": "find_fish", "arguments": arguments}
            call = {"id": "c1", "type": "function", "function": function}
            turns = [{"role": "system", "content": text}, user]
            turns.append({"role": "assistant", "content": "", "tool_calls": [call]})
            turns.append({"role": "tool", "tool_call_id": "c1", "content": "a cod"})
            limit = {"options": {"num_predict": 50}} if is_ollama else {"max_tokens": 50}
            return {"messages": turns, "tools": [tool], **limit}


def ask(made: GatewayTestbed, dialect: str, model: str, **more: Any) -> httpx.Response:
    body = {"model": model, **conversation(dialect), **more}
    return httpx.post(made.url + PATHS[dialect], json=body, timeout=30)


def said_in(dialect: str, answer: httpx.Response, *, stream: bool) -> Said:
    """Read an answer, whole or streamed."""
    assert answer.status_code == 200, answer.text
    match dialect:
        case "chat":
            return of_chat(answer, stream=stream)
        case "responses":
            events = events_of(answer) if stream else []
            return of_response(events[-1]["response"] if stream else answer.json())
        case "messages":
            return of_message(events_of(answer) if stream else [], answer, stream=stream)
        case _:
            return of_ollama([json.loads(line) for line in answer.text.splitlines()])


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = (line[5:].strip() for line in answer.text.splitlines() if line.startswith("data:"))
    return [json.loads(line) for line in lines if line != "[DONE]"]


def of_chat(answer: httpx.Response, *, stream: bool) -> Said:
    said = Said()
    if not stream:
        whole = answer.json()
        (choice,), usage = whole["choices"], whole["usage"]
        spoken, calls = choice["message"], choice["message"].get("tool_calls") or []
        said.text, said.thoughts = spoken["content"] or "", spoken.get("reasoning_content") or ""
        said.reason = choice["finish_reason"]
    else:
        *chunks, last = events_of(answer)
        usage, calls = last["usage"], list[dict[str, Any]]()
        for (choice,) in (chunk["choices"] for chunk in chunks):
            delta = choice["delta"]
            said.text += delta.get("content") or ""
            said.thoughts += delta.get("reasoning_content") or ""
            said.reason = choice["finish_reason"] or said.reason
            for part in delta.get("tool_calls") or ():
                if part["index"] == len(calls):
                    calls.append(part)
                else:
                    function = calls[part["index"]]["function"]
                    function["arguments"] += part["function"]["arguments"]
    functions = [call["function"] for call in calls]
    said.calls = [(one["name"], json.loads(one["arguments"])) for one in functions]
    said.tokens = (usage["prompt_tokens"], usage["completion_tokens"])
    return said


def of_response(whole: dict[str, Any]) -> Said:
    said = Said(reason=whole["status"])
    said.tokens = (whole["usage"]["input_tokens"], whole["usage"]["output_tokens"])
    for item in whole["output"]:
        match item["type"]:
            case "reasoning":
                said.thoughts += item["content"][0]["text"]
            case "message":
                said.text += item["content"][0]["text"]
            case _:
                said.calls.append((item["name"], json.loads(item["arguments"])))
    return said


def of_message(events: list[dict[str, Any]], answer: httpx.Response, *, stream: bool) -> Said:
    if not stream:
        whole = answer.json()
        blocks, usage, reason = whole["content"], whole["usage"], whole["stop_reason"]
    else:
        blocks, usage, reason = list[dict[str, Any]](), {}, ""
        for event in events:
            delta = event.get("delta") or {}
            match event["type"]:
                case "content_block_start":
                    blocks.append({**event["content_block"], "pieces": ""})
                case "content_block_delta":
                    name = delta["type"].removesuffix("_delta")
                    if name == "input_json":
                        blocks[-1]["pieces"] += delta["partial_json"]
                    elif name != "signature":
                        blocks[-1][name] += delta[name]
                case "content_block_stop" if blocks[-1]["type"] == "tool_use":
                    blocks[-1]["input"] = json.loads(blocks[-1]["pieces"])
                case "message_delta":
                    usage, reason = event["usage"], delta["stop_reason"]
                case _:
                    pass
    said = Said(reason=reason)
    read = usage["input_tokens"] + usage["cache_read_input_tokens"]
    said.tokens = (read, usage["output_tokens"])
    for block in blocks:
        said.text += block.get("text", "")
        said.thoughts += block.get("thinking", "")
        if block["type"] == "tool_use":
            said.calls.append((block["name"], block["input"]))
    return said


def of_ollama(lines: list[dict[str, Any]]) -> Said:
    said = Said(reason=lines[-1]["done_reason"])
    said.tokens = (lines[-1]["prompt_eval_count"], lines[-1]["eval_count"])
    for line in lines:
        turn = cast(dict[str, Any], line.get("message") or line)
        said.text += turn.get("content") or turn.get("response") or ""
        said.thoughts += turn.get("thinking") or ""
        functions = [call["function"] for call in turn.get("tool_calls") or ()]
        said.calls += [(one["name"], one["arguments"]) for one in functions]
    return said
