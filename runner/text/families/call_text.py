"""Reads the text of tool calls: complete, growing, or cut off by the token limit. Pure.

The arguments are sent to the client as they arrive, once the text has named its tool and begun a
JSON object. Until then, text that turns out not to be a call can still be sent as plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from runner.text.families.json_text import ObjectText, mended_json, object_of, sendable
from runner.text.families.spans import Call, ParseCalls, Rest

_CUT_CALL = re.compile(
    r"""\s*{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*"""
    r"""(?:,\s*(?:"(?:arguments|parameters)"\s*:\s*(?P<rest>.*)|.*))?$""",
    re.DOTALL,
)
_BEGUN_OBJECT = r"""{\s*(?:"(?:[^"\\]|\\.)*"\s*:|})"""
_BEGUN_CALL = re.compile(
    r"""\s*{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)+")\s*,\s*"(?:arguments|parameters)"\s*:\s*"""
    rf"(?={_BEGUN_OBJECT})",
    re.DOTALL,
)
_IS_NAME = re.compile(r"[^<>\r\n]+")
_NAME = r"[\w.:-]+"
_MARKUP = re.compile(
    rf"""\s*<function=(?P<coder>{_NAME})>"""
    rf"""|\s*<invoke\ name="(?P<invoke>{_NAME})">"""
    rf"""|\s*<atem:invoke\ name="(?P<atem>{_NAME})">"""
    rf"""|\s*"(?P<minicpm>{_NAME})">"""
    rf"""|\s*<\|open\|>call\ tool="(?P<xtml>{_NAME})\""""
    rf"""|\s*<\|tool_call_begin\|>\s*(?:functions\.)?(?P<kimi>[\w.-]+)(?::\d+)?\s*<\|tool_call_arg"""
    rf"""|\s*<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?(?P<deepseek>{_NAME})(?:\n|<｜tool▁sep｜>)"""
    rf"""|\s*call:(?P<gemma>{_NAME})\{{"""
    rf"""|\s*\[(?P<pythonic>[\w.]+)\("""
    rf"""|(?P<mistral>[\w.-]+)\[(?:ARGS|CALL_ID)\]"""
    rf"""|\s*(?P<glm>[\w.-]+)\s*<(?:longcat_)?arg_key>""",
    re.VERBOSE,
)
"""Matches the beginning of a tool call that is not JSON, up to the end of the tool's name, in the
formats of all model families."""
_ENDS = {"coder": "</function>", "invoke": "</invoke>", "atem": "</atem:invoke>",
         "minicpm": "</function>", "xtml": "<|close|>call<|sep|>"}  # fmt: skip
_QUOTES = ("<escape>", '<|"|>')
"""The texts that Gemma models write in place of quotation marks."""
_CLOSES = (">", "}", "]", ")")
"""The characters with which a call can end, in the forms of all families."""
_OPENERS = (
    "<function=",
    "<invoke",
    "<atem:invoke",
    "<|open|>call",
    "<|tool_call_",
    "<｜tool▁",
    "call:",
)
_SECTIONS = ("<|tool_call_", "<｜tool▁")
"""Openings of tool calls in which the tool's name precedes the JSON arguments."""
_ONLY_A_NAME = re.compile(r'(?:[\w.-]+\s*(?:[<\[][\w\]]*)?)?|\s*\[[\w.]*|"[\w.:-]*"?')
"""Matches the beginning of a call without an opening mark, before its name is complete. Also
matches an empty text."""
_BEGUN_ARGUMENTS = re.compile(rf"\s*(?={_BEGUN_OBJECT})", re.DOTALL)
BEGUN_WITHIN = 1024
"""A call is sent to the client as it arrives only if its name and its arguments begin within this
many characters."""


class CallText:
    """The growing text of one tool call. Its arguments are sent to the client as they arrive.

    `raw` is the whole text, `start` its offset in the output. `name` None: the text is JSON that
    names the tool; else the text is only the arguments. `passes_on` False: nothing is sent before
    the call has ended. `left` is the text after the call, set when the call has ended.
    """

    __slots__ = ("_name", "_object", "_passes_on", "left", "raw", "start")

    def __init__(
        self, start: int, beginning: str = "", *, name: str | None = None, passes_on: bool = True
    ) -> None:
        """Parse a call whose text begins at offset `start`; `beginning` is the text that was
        already read."""
        self.raw = beginning
        self.start = start
        self._name = name
        self._passes_on = passes_on
        self._object: ObjectText | None = None
        self.left = ""

    @property
    def is_begun(self) -> bool:
        """Return whether `take` has already returned part of the call."""
        return self._object is not None

    @property
    def inside_string(self) -> bool:
        """Return whether the text so far ends inside quotation marks."""
        if self._object is not None:
            return self._object.inside_string
        is_quoted = any(self.raw.count(quote) % 2 for quote in _QUOTES)
        raw = self.raw.lstrip()
        named = raw.find("{") if raw.startswith(_SECTIONS) else 0
        return is_quoted or inside_json_string(raw[named:])

    def is_whole(self, parse: ParseCalls) -> bool:
        """Return whether the call is complete, apart from its end mark."""
        if self._object is not None:
            return self._object.is_over
        is_closed = self.raw.rstrip().endswith(_CLOSES)
        return is_closed and bool(read_calls(self.raw, parse))

    def take(self, text: str, offset: int) -> list[Call]:
        """Add `text`, which ends at `offset` of the output; return the part of the call that is now
        certain."""
        is_hopeless = len(self.raw) > BEGUN_WITHIN
        self.raw += text
        name: str | None = None
        if self._object is None:
            begun = None if is_hopeless or not self._passes_on else self._begun()
            if begun is None:
                return []
            name, text = begun
            self._object = ObjectText()
        part = self._object.take(text)
        return [Call(name, part, self.start, offset, goes_on=True)] if part else []

    def _begun(self) -> tuple[str, str] | None:
        """Return (name, arguments so far); None until the name is complete and the arguments have
        begun."""
        head = self.raw[:BEGUN_WITHIN]
        match = (_BEGUN_CALL if self._name is None else _BEGUN_ARGUMENTS).match(head)
        if match is None:
            return None
        name = self._name
        try:
            name = json.loads(match["name"]) if name is None else name
            name.encode()
        except ValueError:
            return None
        return name, self.raw[match.end() :]

    def drop_open(self) -> None:
        """Remove from `raw` a last call in markup that the token limit cut off; complete calls
        remain."""
        for end in _ENDS.values():
            place = self.raw.rfind(end)
            self.raw = self.raw[: place + len(end)] if place >= 0 else self.raw

    def end(self, parse: ParseCalls, offset: int, *, is_cut: bool = False) -> list[Call]:
        """End the call at `offset`; return the part of it that `take` has not returned yet.

        If `take` has returned nothing, that is the whole call, or nothing if the text is not a
        call. Otherwise it is the text that closes the arguments, and further calls after them.
        `is_cut`: the token limit cut the call off, so the arguments stay open.
        """
        if self._object is None:
            calls, self.left = _read(self.raw, parse, is_cut=is_cut)
            return [Call(name, arguments, self.start, offset) for name, arguments in calls]
        closing = self._object.cut() if is_cut else self._object.missing()
        rest = self._object.behind
        behind = rest if self._name is not None else _behind_object(rest)
        more = behind.lstrip(", \t\r\n")
        further = read_calls(more, parse, is_cut=is_cut) if more.startswith("{") else []
        self.left = "" if further or not more else behind
        offset -= len(self.left)
        return [
            Call(None, closing, self.start, offset),
            *(Call(name, arguments, self.start, offset) for name, arguments in further),
        ]


def _behind_object(rest: str) -> str:
    """Return the text after the end of a call's JSON object. `rest` begins after the value of the
    call's arguments."""
    begun = '{"":0'
    try:
        return rest[json.JSONDecoder().raw_decode(begun + rest)[1] - len(begun) :]
    except (ValueError, RecursionError):
        return rest


def is_json_begun(raw: str) -> bool:
    """Return whether text may be the beginning of a JSON object; empty text may be."""
    return raw.lstrip()[:1] in ("", "{")


def read_cut_call(raw: str) -> tuple[str, str] | None:
    """Return (name, arguments so far) of a call in JSON that was cut off; None before the name is
    complete. The arguments have at least the opening brace, so that no reader takes the call as one
    without arguments."""
    begun = _CUT_CALL.match(raw)
    if begun is None:
        return None
    try:
        name = json.loads(begun["name"])
        name.encode()
    except ValueError:
        return None
    rest = begun["rest"] or ""
    if not rest.startswith("{"):
        rest = "{"
    try:
        _, end = json.JSONDecoder().raw_decode(rest)
    except (ValueError, RecursionError):
        end = len(rest)
    return (name, rest[:end]) if name else None


def read_cut_markup(raw: str) -> tuple[str | None, bool] | None:
    """Return (name, is_open) of a call that was cut off and is not written as JSON.

    The name is None before it is complete. `is_open`: its parser would accept the text as a
    complete call, wherever it is cut. None for text that does not begin like such a call.
    """
    begun = _MARKUP.match(raw)
    if begun is not None:
        end = _ENDS.get(begun.lastgroup or "")
        is_open = begun.lastgroup == "glm" or (end is not None and end not in raw)
        return begun[begun.lastgroup or 0], is_open
    bare = raw.lstrip()
    is_opener = any(bare.startswith(opener) or opener.startswith(bare) for opener in _OPENERS)
    if is_opener or _ONLY_A_NAME.fullmatch(raw):
        return None, True
    return None


def read_calls(raw: str, parse: ParseCalls, *, is_cut: bool = False) -> list[tuple[str, str]]:
    """Return (name, arguments as JSON text) of each call in `raw`; none if one is malformed. The
    JSON is repaired if necessary."""
    return _read(raw, parse, is_cut=is_cut)[0]


def _read(raw: str, parse: ParseCalls, *, is_cut: bool) -> tuple[list[tuple[str, str]], str]:
    """Return the calls in `raw`, and the text outside of them."""
    for text in (raw, mended_json(raw, is_cut=is_cut)):
        try:
            parsed = parse(text)
            items = cast(list[object], parsed) if isinstance(parsed, list) else [parsed]
            calls = [_one_call(item) for item in items if not isinstance(item, Rest)]
        except Exception:  # any error of a family's parser means that this is not a call
            continue
        if calls:
            return calls, "".join(item for item in items if isinstance(item, Rest))
    return [], ""


def _one_call(item: object) -> tuple[str, str]:
    if not isinstance(item, Mapping):
        raise ValueError("a call must be a JSON object")
    call = cast(Mapping[str, Any], item)
    name = call.get("name")
    arguments: object = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = object_of(arguments)
    elif arguments is None:
        arguments = {}
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("a call must have a name, and an object as its arguments")
    if not _IS_NAME.fullmatch(name):
        raise ValueError("the name of a call has characters that no tool name has")
    name.encode()  # a lone surrogate in a name cannot be sent
    if "\ufffd" in name:
        raise ValueError("the name of a call has an invalid character")
    return name, json.dumps(sendable(arguments), ensure_ascii=False, allow_nan=False)


def inside_json_string(text: str) -> bool:
    """Return whether JSON text ends inside a string; False for text that is not JSON."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    inside = escaped = False
    for letter in text:
        if escaped:
            escaped = False
        elif letter == "\\" and inside:
            escaped = True
        elif letter == '"':
            inside = not inside
    return inside
