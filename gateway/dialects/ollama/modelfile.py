"""Modelfiles, which older clients send: FROM, PARAMETER, SYSTEM, TEMPLATE, MESSAGE, LICENSE.

Pure. An instruction is a word and its text: the rest of the line, or several lines between triple
quotation marks. A line that begins with `#` is a comment.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from gateway.dialects.body import bad_field

FENCE = '"""'
ROLES = ("system", "user", "assistant")
WHOLE = ("seed",)
WHOLE_NUMBER = re.compile(r"-?[0-9]{1,15}")
WORDS = ("true", "false")
Word = Literal["from", "parameter", "system", "template", "message", "license"]


class Instruction(NamedTuple):
    """An instruction of a Modelfile: its word in lower case, and its text."""

    word: str
    text: str


def read_modelfile(text: str) -> dict[str, Any]:
    """Return a Modelfile as the fields of a body of `POST /api/create`. Raises BadRequest for an
    invalid or unsupported instruction."""
    fields: dict[str, Any] = {}
    for word, rest in _instructions(text):
        match word:
            case "from" | "system" | "template" | "adapter":
                fields[word] = rest
            case "license":
                fields.setdefault("license", []).append(rest)
            case "parameter":
                _take_parameter(rest, fields.setdefault("parameters", {}))
            case "message":
                role, content = _divided(rest)
                if role not in ROLES:
                    raise bad_field(
                        "modelfile", "the role of a MESSAGE must be system, user or assistant"
                    )
                message = {"role": role, "content": _unfenced(content)}
                fields.setdefault("messages", []).append(message)
            case _:
                words = "FROM, ADAPTER, PARAMETER, SYSTEM, TEMPLATE, MESSAGE, LICENSE"
                raise bad_field("modelfile", f"unknown instruction '{word[:40]}'; use {words}")
    return fields


def _instructions(text: str) -> Iterator[Instruction]:
    """Yield each instruction with its text, without quotation marks."""
    lines = iter(text.replace("\r\n", "\n").split("\n"))
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        word, rest = _divided(line.strip())
        before, fence, after = rest.partition(FENCE)
        if fence and FENCE not in after:
            # spaces at the end of a line belong to the text
            pieces = [line.partition(FENCE)[2]]
            for more in lines:
                ended, closing, _ = more.partition(FENCE)
                pieces.append(ended)
                if closing:
                    break
            else:
                raise bad_field("modelfile", f"{FENCE} is not closed")
            rest = before + FENCE + "\n".join(pieces) + FENCE
        yield Instruction(word.lower(), rest if word.lower() == "message" else _unfenced(rest))


def _divided(text: str) -> tuple[str, str]:
    """Return the first word of a text and the remaining text; each may be empty."""
    first, *rest = text.split(None, 1) or [""]
    return first, rest[0] if rest else ""


def _unfenced(text: str) -> str:
    """Return a text without the quotation marks around it, single or triple."""
    for mark in (FENCE, '"'):
        if len(text) >= 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            return text[len(mark) : -len(mark)]
    return text


def _take_parameter(text: str, parameters: dict[str, Any]) -> None:
    if not text:
        raise bad_field("modelfile", "PARAMETER needs a name and a value")
    name, value = _divided(text)
    if name == "stop":
        parameters.setdefault("stop", []).append(_unfenced(value))
    elif value in WORDS:
        parameters[name] = value == "true"
    else:
        parameters[name] = _number(name, value)


def _number(name: str, text: str) -> float:
    """Return a parameter's value. Raises BadRequest unless it is a finite number."""
    with contextlib.suppress(ValueError, OverflowError):
        number = int(text) if name in WHOLE or WHOLE_NUMBER.fullmatch(text) else float(text)
        if math.isfinite(number):
            return number
    raise bad_field("modelfile", f"PARAMETER {name[:40]}: '{text[:40]}' is not a number")
