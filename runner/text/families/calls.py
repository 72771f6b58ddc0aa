"""Parses the calls of families for which mlx-lm has no parser. Pure; all raise ValueError.

Formats as the models' own templates write them: DeepSeek V3, R1 and V3.1; Llama 3.1 to 3.3;
Granite 3, Phi-4, Command R and Nemotron, whose calls are a JSON list between marks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

_DEEPSEEK_CALL = re.compile(
    r"<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL
)
_FENCED = re.compile(r"\A([^\n]+)\n```(?:json)?\n(.*?)\n?```\s*\Z", re.DOTALL)


def deepseek_calls(raw: str, tools: Sequence[Mapping[str, Any]]) -> object:
    """Parse `function<sep>NAME` with fenced JSON (V3, R1), or `NAME<sep>JSON` (V3.1)."""
    found: list[dict[str, Any]] = []
    for head, body in _DEEPSEEK_CALL.findall(raw):
        fenced = _FENCED.match(body)
        name, arguments = (fenced[1], fenced[2]) if fenced else (head, body)
        found.append({"name": name.strip(), "arguments": json.loads(arguments)})
    if not found:
        raise ValueError("no call between the marks")
    return found


def json_calls(raw: str, tools: Sequence[Mapping[str, Any]]) -> object:
    """Parse one JSON object or a list of them, with `name` or `tool_name`."""
    read: Any = json.loads(raw)
    items = cast(list[Any], read) if isinstance(read, list) else [read]
    if not items:
        raise ValueError("a list of no calls")
    return [_named(item) for item in items]


def bare_json_calls(raw: str, tools: Sequence[Mapping[str, Any]]) -> object:
    """Parse JSON objects that stand alone, apart by semicolons or blanks, if each calls one of
    `tools`: without marks nothing else tells a call from an answer in JSON."""
    known = {tool["function"]["name"] for tool in tools}
    decoder = json.JSONDecoder()
    found: list[dict[str, Any]] = []
    place = 0
    while place < len(raw):
        item, place = decoder.raw_decode(raw, place)
        call = _named(item)
        if call.get("name") not in known:
            raise ValueError("no call of a tool that was given")
        found.append(call)
        while place < len(raw) and raw[place] in "; \t\r\n":
            place += 1
    return found


def _named(item: object) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise ValueError("a call is an object")
    call = cast(dict[str, Any], item)
    return {"name": call["tool_name"], **call} if "tool_name" in call else call
