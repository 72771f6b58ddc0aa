"""Modelfiles, as older clients send them: FROM, PARAMETER, SYSTEM, TEMPLATE, MESSAGE, LICENSE.

Pure. An instruction is a word and what follows it on its line, or, between three quotation marks,
on several. A line that begins with `#` says nothing.
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
    """A word in lower case, and what follows it."""

    word: str
    text: str


def read_modelfile(text: str) -> dict[str, Any]:
    """Return what a Modelfile says, as the fields of a body of `POST /api/create`. BadRequest for
    what is none, and for what is not offered."""
    said: dict[str, Any] = {}
    for word, rest in _instructions(text):
        match word:
            case "from" | "system" | "template" | "adapter":
                said[word] = rest
            case "license":
                said.setdefault("license", []).append(rest)
            case "parameter":
                _take_parameter(rest, said.setdefault("parameters", {}))
            case "message":
                role, content = _divided(rest)
                if role not in ROLES:
                    raise bad_field(
                        "modelfile", "the role of a MESSAGE must be system, user or assistant"
                    )
                message = {"role": role, "content": _unfenced(content)}
                said.setdefault("messages", []).append(message)
            case _:
                known = "FROM, ADAPTER, PARAMETER, SYSTEM, TEMPLATE, MESSAGE, LICENSE"
                raise bad_field("modelfile", f"unknown instruction '{word[:40]}'; use {known}")
    return said


def _instructions(text: str) -> Iterator[Instruction]:
    """Give each instruction with its text, that between marks without them."""
    lines = iter(text.replace("\r\n", "\n").split("\n"))
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        word, rest = _divided(line.strip())
        before, fence, after = rest.partition(FENCE)
        if fence and FENCE not in after:
            # blanks before the line's end are the text's own
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
    """Return the first word, and what comes behind it; empty for none."""
    first, *rest = text.split(None, 1) or [""]
    return first, rest[0] if rest else ""


def _unfenced(text: str) -> str:
    """Return a text without the quotation marks around it, one or three of them."""
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
    """Return a parameter's value. BadRequest for what is no number, or not finite."""
    with contextlib.suppress(ValueError, OverflowError):
        number = int(text) if name in WHOLE or WHOLE_NUMBER.fullmatch(text) else float(text)
        if math.isfinite(number):
            return number
    raise bad_field("modelfile", f"PARAMETER {name[:40]}: '{text[:40]}' is not a number")
