"""Parsers of tool calls for families that mlx-lm has no parser for, or whose parser in mlx-lm loses
text. Pure.

All parsers raise ValueError for text that is not a call. The formats are those of the models' own
templates. The models are DeepSeek V3, R1 and V3.1, Kimi K2, the Mistral models that write a call's
name before its arguments, Llama 3.1 to 3.3, FunctionGemma and Gemma 4. Granite 3, Phi-4, Command R
and Nemotron write a JSON list between marks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from runner.text.families.json_text import ObjectText
from runner.text.families.spans import Rest

Parse = Callable[[str, Sequence[Mapping[str, Any]]], object]
_UNNAMED = ("function", "```json", "```", "json")
_NUMBERED = re.compile(r"(?:functions\.)?(.+?)(?::[0-9]+)?\Z", re.DOTALL)


def marked_calls(*marks: str, end: str = "") -> Parse:
    """Return a parser of calls that consist of a name and JSON arguments.

    Any of `marks` may be around them, and `end` after them. Marks may be missing or repeated,
    because the JSON itself shows where the arguments end.
    """
    split = re.compile("|".join(map(re.escape, filter(None, (*marks, end)))))
    ends = rf"{{|{re.escape(end)}|\Z" if end else r"{|\Z"
    header = re.compile(rf"(?P<header>[^{{]*?)(?P<ends>{ends})", re.DOTALL)

    def parse(raw: str, tools: Sequence[Mapping[str, Any]]) -> object:
        """Return the calls, and a `Rest` with text outside of them. Raises ValueError."""
        calls: list[object] = []
        left = raw
        while (left := _without(split, left)) and not left.startswith("```"):
            match = header.match(left)
            assert match is not None, "the pattern did not match, though it should match any text"
            words = split.sub(" ", re.sub(r"\[CALL_ID\][\w-]*", " ", match["header"])).split()
            names = [word for word in words if word not in _UNNAMED]
            if len(names) != 1 or not match["ends"]:
                if not calls:
                    raise ValueError("a call must have exactly one name, followed by its arguments")
                break
            arguments, left = "{}", left[match.end() :]
            if match["ends"] == "{":
                body = ObjectText()
                arguments = body.take("{" + left)
                if body.is_torn or not body.is_over:
                    raise ValueError("the arguments of a call are incomplete")
                left = body.behind.lstrip().removeprefix("```")
            name = _NUMBERED.match(names[0])
            assert name is not None
            calls.append({"name": name[1], "arguments": json.loads(arguments)})
        rest = split.sub("", left).strip().removeprefix("```").strip()
        is_mark = any(mark.startswith(rest) for mark in (*marks, end))  # that broke off
        return calls if is_mark else [*calls, Rest(rest)]

    return parse


def _without(marks: re.Pattern[str], text: str) -> str:
    """Return the text without the marks and blanks at its beginning."""
    while (match := marks.match(text := text.lstrip())) is not None:
        text = text[match.end() :]
    return text


DEEPSEEK = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
KIMI = ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
deepseek_calls = marked_calls("<｜tool▁calls▁begin｜>", *DEEPSEEK[:2], end=DEEPSEEK[2])
kimi_calls = marked_calls(*KIMI[:2], end=KIMI[2])
_named_calls = marked_calls("[TOOL_CALLS]", "[ARGS]")


def mistral_calls(raw: str, tools: Sequence[Mapping[str, Any]]) -> object:
    """Parse the calls of Mistral models: a JSON list of calls, or names that are each followed by
    their arguments."""
    return json_calls(raw, tools) if raw.lstrip()[:1] in "[{" else _named_calls(raw, tools)


def json_calls(raw: str, tools: Sequence[Mapping[str, Any]]) -> object:
    """Parse a JSON object, or a list of them, in which `name` or `tool_name` names the tool."""
    read: Any = json.loads(raw)
    items = cast(list[Any], read) if isinstance(read, list) else [read]
    if not items:
        raise ValueError("the list of calls is empty")
    return [_named(item) for item in items]


def bare_json_calls(raw: str, tools: Sequence[Mapping[str, Any]]) -> object:
    """Parse JSON objects without marks, separated by semicolons or blanks.

    Each must name one of `tools`, because nothing else distinguishes a call from a JSON answer.
    """
    names = {tool["function"]["name"] for tool in tools}
    decoder = json.JSONDecoder()
    calls: list[dict[str, Any]] = []
    place = 0
    while place < len(raw):
        item, place = decoder.raw_decode(raw, place)
        call = _named(item)
        if call.get("name") not in names:
            raise ValueError(f"the request has no tool named {call.get('name')!r}")
        calls.append(call)
        while place < len(raw) and raw[place] in "; \t\r\n":
            place += 1
    return calls


def _named(item: object) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise ValueError("a call must be a JSON object")
    call = cast(dict[str, Any], item)
    return {"name": call["tool_name"], **call} if "tool_name" in call else call


# --- Gemma ------------------------------------------------------------------------------------

_GEMMA = re.compile(r"\s*call:\s*([\w.-]+)\s*(?=\{)")


def gemma_calls(quote: str) -> Parse:
    """Return a parser of Gemma's calls, `call:NAME{KEY:VALUE,...}`, in which strings stand between
    two `quote` texts."""

    def parse(raw: str, tools: Sequence[Mapping[str, Any]]) -> object:
        """Return the calls, and a `Rest` with text outside of them. Raises ValueError."""
        calls: list[object] = []
        left = raw
        while (begun := _GEMMA.match(left)) is not None:
            arguments, left = _gemma_value(left[begun.end() :], quote)
            calls.append({"name": begun[1], "arguments": arguments})
        if not calls:
            raise ValueError("no call")
        return [*calls, Rest(left.strip())] if left.strip() else calls

    return parse


def _gemma_value(text: str, quote: str) -> tuple[Any, str]:
    """Return the value at the beginning of a text in Gemma's notation, and the rest of the text."""
    text = text.lstrip()
    if text.startswith(quote):
        value, end, left = text.removeprefix(quote).partition(quote)
        if not end:
            raise ValueError("a string has no closing quote")
        return value, left
    if text.startswith('"'):
        value, end = json.JSONDecoder(strict=False).raw_decode(text)
        return value, text[end:]
    if text.startswith(("{", "[")):
        return _gemma_members(text, quote)
    bare = re.match(r"[^,{}\[\]]*", text)
    assert bare is not None
    word = bare[0].strip()
    try:
        value = json.loads(word)
    except ValueError:
        value = word
    return value, text[bare.end() :]


def _gemma_members(text: str, quote: str) -> tuple[Any, str]:
    named, listed = dict[str, Any](), list[Any]()
    is_named, left = text[0] == "{", text[1:].lstrip()
    end = "}" if is_named else "]"
    while not left.startswith(end):
        if is_named:
            key, colon, left = left.partition(":")
            name = key.replace(quote, "").strip().strip('"')
            if not colon or name in named:
                raise ValueError("an object has two members of one name, or one without a name")
            named[name], left = _gemma_value(left, quote)
        else:
            value, left = _gemma_value(left, quote)
            listed.append(value)
        left = left.lstrip()
        if left.startswith(","):
            left = left[1:].lstrip()
        elif not left.startswith(end):
            raise ValueError("a comma or a closing bracket is missing")
    return named if is_named else listed, left[1:]
