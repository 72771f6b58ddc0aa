"""Talks to the runner that started it: renders what comes over its standard input, one at a time.

Run as a script, so that it loads Jinja and nothing of shoal. Jinja's environment is the one
in which transformers renders (a test compares the two): Jinja's own sandbox, a few functions more.
Limits are set for each render and kept by the system, for code in C cannot be interrupted
otherwise: the address space (a MemoryError; Linux alone has it) and an alarm by processor time,
which ends the process even where its runner is gone. An idle one ends when its standard input does.

A question is `QUESTION` (length, bytes of memory and of text, seconds), then marshal of
(template, variables). An answer is `ANSWER` (what it is, processor seconds so far,
length), then text in UTF-8, in which a lone surrogate stands as it is.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import resource
import signal
import struct
import time
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, cast

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

QUESTION = struct.Struct(">IQQd")
ANSWER = struct.Struct(">cdI")
READY, TEXT, RAISED, NO_MEMORY, TOO_LONG = b"r", b"t", b"e", b"m", b"l"
WORDS_AT_MOST = 500
TEMPLATES_KEPT = 16


class Generation(Extension):
    """`{% generation %}`: marks what an assistant says, for training; here it is its contents."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the block as a call, which gives its variables a scope of their own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("said"), [], [], body).set_lineno(line)

    def said(self, caller: Callable[[], str]) -> str:
        """Return the contents."""
        return caller()


class TemplateDict:
    """`dict` without the attributes of the type, through which a template could reach others."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """Return what `dict.fromkeys` does."""
        return dict.fromkeys(*args)


class TemplateNamespace(Namespace):
    """`namespace` that takes no name with an underscore in front: those are Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *given = args
        attributes = dict(*given, **kwargs)
        for name in attributes:
            TemplateNamespace.check(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        TemplateNamespace.check(name)
        super().__setitem__(name, value)

    @staticmethod
    def check(name: object) -> None:
        """Raise SecurityError for a name that is not a template's to set."""
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a template may not set {name!r}")


def environment() -> ImmutableSandboxedEnvironment:
    """Return the environment that chat templates are written for."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    made.filters["tojson"] = _to_json
    cast(dict[str, Any], made.globals).update(
        raise_exception=_raise_exception,
        strftime_now=_strftime_now,
        dict=TemplateDict(),
        namespace=TemplateNamespace,
    )
    return made


def _to_json(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as it is: Jinja's own filter escapes it for HTML."""
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().astimezone().strftime(format)


def reader() -> Callable[[str], Template]:
    """Return what reads templates, and keeps the last ones."""
    return lru_cache(TEMPLATES_KEPT)(environment().from_string)


def main() -> None:
    """Answer until the runner is gone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    read = reader()
    _send(READY)
    while _served(read):
        pass


def _served(read: Callable[[str], Template]) -> bool:
    """Answer the next question; False when there is none any more."""
    head = _receive(QUESTION.size)
    size, memory_bytes, text_bytes, seconds = QUESTION.unpack(head) if head else (0, 0, 0, 0.0)
    asked = _receive(size)
    if not head or asked is None:
        return False
    _limit_memory(memory_bytes)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    kind, said = _rendered(read, asked)
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    _send(*((kind, said) if len(said) <= text_bytes else (TOO_LONG, b"")))
    return True


def _rendered(read: Callable[[str], Template], asked: bytearray) -> tuple[bytes, bytes]:
    try:
        template, variables = marshal.loads(asked)
        text = read(template).render(variables)
        return TEXT, text.encode("utf-8", "surrogatepass")
    except MemoryError:
        return NO_MEMORY, b""
    except Exception as problem:  # a template may raise anything
        words = str(problem)[:WORDS_AT_MOST] or type(problem).__name__
        return RAISED, words.encode("utf-8", "surrogatepass")


def _limit_memory(size: int) -> None:
    """Hold the address space to so many bytes, where the system can."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _receive(size: int) -> bytearray | None:
    """Return so many bytes of standard input, None at its end."""
    found = bytearray(size)
    left = memoryview(found)
    while left:
        count = os.readv(0, [left])
        if not count:
            return None
        left = left[count:]
    return found


def _send(kind: bytes, said: bytes = b"") -> None:
    for part in (ANSWER.pack(kind, time.process_time(), len(said)), said):
        left = memoryview(part)
        while left:
            left = left[os.write(1, left) :]


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # the runner is gone
        main()
