"""Reads the text of tool calls: whole, as it grows, or as far as the limit let it grow. Pure.

Arguments are passed on as they come once the text has named its tool and begun an object as JSON
does; before that, what is no call can still be given back as the text it was.
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
"""How calls that are no JSON begin, once their name is whole, in the forms of all families."""
_ENDS = {"coder": "</function>", "invoke": "</invoke>", "atem": "</atem:invoke>",
         "minicpm": "</function>", "xtml": "<|close|>call<|sep|>"}  # fmt: skip
_QUOTES = ("<escape>", '<|"|>')
"""What Gemma puts around texts."""
_CLOSES = (">", "}", "]", ")")
"""With what calls end, in the forms of all families."""
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
"""How calls begin of which each has a name before its JSON."""
_ONLY_A_NAME = re.compile(r'(?:[\w.-]+\s*(?:[<\[][\w\]]*)?)?|\s*\[[\w.]*|"[\w.:-]*"?')
"""How they may begin before that; nothing at all may."""
_BEGUN_ARGUMENTS = re.compile(rf"\s*(?={_BEGUN_OBJECT})", re.DOTALL)
BEGUN_WITHIN = 1024
"""Characters within which a call must have begun to be passed on as it comes."""


class CallText:
    """The text of one call as it comes: passed on from where its arguments have begun.

    `raw` is all of it, `start` the offset at which it began. `name` None: the text names the tool
    itself, as JSON; else it is the arguments alone. `passes_on` False: nothing is certain before
    the call has ended. `left` is what stood behind the call and is none of it, once it has ended.
    """

    __slots__ = ("_name", "_object", "_passes_on", "left", "raw", "start")

    def __init__(
        self, start: int, kept: str = "", *, name: str | None = None, passes_on: bool = True
    ) -> None:
        """`kept` is what the text begins with."""
        self.raw = kept
        self.start = start
        self._name = name
        self._passes_on = passes_on
        self._object: ObjectText | None = None
        self.left = ""

    @property
    def is_begun(self) -> bool:
        """Return whether part of the call was passed on."""
        return self._object is not None

    @property
    def inside_string(self) -> bool:
        """Return whether the text so far breaks off within a text between quotation marks."""
        if self._object is not None:
            return self._object.inside_string
        is_quoted = any(self.raw.count(quote) % 2 for quote in _QUOTES)
        raw = self.raw.lstrip()
        named = raw.find("{") if raw.startswith(_SECTIONS) else 0
        return is_quoted or inside_json_string(raw[named:])

    def is_whole(self, parse: ParseCalls) -> bool:
        """Return whether all of the call is there, but for what marks its end."""
        if self._object is not None:
            return self._object.is_over
        is_closed = self.raw.rstrip().endswith(_CLOSES)
        return is_closed and bool(read_calls(self.raw, parse))

    def take(self, text: str, offset: int) -> list[Call]:
        """Take more text, which ends at `offset`; return the part of the call that is certain."""
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
        """Return (name, arguments so far), None before both are there."""
        head = self.raw[:BEGUN_WITHIN]
        found = (_BEGUN_CALL if self._name is None else _BEGUN_ARGUMENTS).match(head)
        if found is None:
            return None
        name = self._name
        try:
            name = json.loads(found["name"]) if name is None else name
            name.encode()
        except ValueError:
            return None
        return name, self.raw[found.end() :]

    def drop_open(self) -> None:
        """Leave the calls in markup that are whole, without one that the limit cut off."""
        for end in _ENDS.values():
            place = self.raw.rfind(end)
            self.raw = self.raw[: place + len(end)] if place >= 0 else self.raw

    def end(self, parse: ParseCalls, offset: int, *, is_cut: bool = False) -> list[Call]:
        """End the call at `offset`: return all of it where nothing was passed on, none where it is
        no call; else what closes what the model left open, unless the limit cut it off (`is_cut`),
        and what further calls stand behind it."""
        if self._object is None:
            found, self.left = _read(self.raw, parse, is_cut=is_cut)
            return [Call(name, arguments, self.start, offset) for name, arguments in found]
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
    """Return what stands behind an object of which `rest` is all behind its arguments."""
    begun = '{"":0'
    try:
        return rest[json.JSONDecoder().raw_decode(begun + rest)[1] - len(begun) :]
    except (ValueError, RecursionError):
        return rest


def is_json_begun(raw: str) -> bool:
    """Return whether text may be the beginning of a JSON object; nothing at all may be."""
    return raw.lstrip()[:1] in ("", "{")


def read_cut_call(raw: str) -> tuple[str, str] | None:
    """Return (name, what there is of the arguments) of a call in JSON that breaks off; None before
    its name is whole. There is at least the brace that opens them: no reader is to take the call
    for one without arguments."""
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
    """Return (name, whether its parser would take it for a whole call wherever it breaks off) of a
    call that is no JSON and breaks off; the name is None before it is whole. None for what does not
    begin as such a call does."""
    begun = _MARKUP.match(raw)
    if begun is not None:
        end = _ENDS.get(begun.lastgroup or "")
        is_open = begun.lastgroup == "glm" or (end is not None and end not in raw)
        return begun[begun.lastgroup or 0], is_open
    bare = raw.lstrip()
    is_opener = any(bare.startswith(one) or one.startswith(bare) for one in _OPENERS)
    if is_opener or _ONLY_A_NAME.fullmatch(raw):
        return None, True
    return None


def read_calls(raw: str, parse: ParseCalls, *, is_cut: bool = False) -> list[tuple[str, str]]:
    """Return (name, arguments as JSON text) of each call in `raw`, its JSON mended where it has to
    be; none if one is malformed."""
    return _read(raw, parse, is_cut=is_cut)[0]


def _read(raw: str, parse: ParseCalls, *, is_cut: bool) -> tuple[list[tuple[str, str]], str]:
    """Return the calls in `raw`, and what of it is part of none of them."""
    for told in (raw, mended_json(raw, is_cut=is_cut)):
        try:
            found = parse(told)
            items = cast(list[object], found) if isinstance(found, list) else [found]
            calls = [_one_call(item) for item in items if not isinstance(item, Rest)]
        except Exception:  # any error of a family's parser means that this is not a call
            continue
        if calls:
            return calls, "".join(item for item in items if isinstance(item, Rest))
    return [], ""


def _one_call(item: object) -> tuple[str, str]:
    if not isinstance(item, Mapping):
        raise ValueError("a call is an object")
    call = cast(Mapping[str, Any], item)
    name = call.get("name")
    arguments: object = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = object_of(arguments)
    elif arguments is None:
        arguments = {}
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("a call has a name, and arguments that are an object")
    if not _IS_NAME.fullmatch(name):
        raise ValueError("a name has no marks in it")
    name.encode()  # a lone surrogate in a name cannot be sent
    if "\ufffd" in name:
        raise ValueError("a name is whole")
    return name, json.dumps(sendable(arguments), ensure_ascii=False, allow_nan=False)


def inside_json_string(text: str) -> bool:
    """Return whether JSON text breaks off within a string; False for what is no JSON at all."""
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
