"""Talks to its parent, a runner: renders chat templates from standard input, one at a time.

It runs as a script, so that it loads Jinja but nothing of shoal. Its Jinja environment equals that
of transformers (a test compares the two): Jinja's sandbox with some further functions. Each render
has limits, which the system enforces, because code in C cannot be interrupted otherwise. The
address space is limited on Linux (a MemoryError). An alarm by CPU time ends the process, even if
its runner is gone. An idle process ends at the end of its standard input.

A question is `QUESTION` (length, bytes of memory and of text, seconds), then marshal of
(template, variables). An answer is `ANSWER` (kind, CPU seconds so far, length), then text in UTF-8,
in which lone surrogates are kept.
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
    """`{% generation %}`: marks an assistant's text for training; here it renders its contents."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the block as a call, so that its variables have their own scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("contents"), [], [], body).set_lineno(line)

    def contents(self, caller: Callable[[], str]) -> str:
        """Return the rendered contents of the block."""
        return caller()


class TemplateDict:
    """`dict` without the type's attributes, which would give a template access to other types."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """Return a new dict, as `dict.fromkeys` does."""
        return dict.fromkeys(*args)


class TemplateNamespace(Namespace):
    """`namespace` that refuses names with a leading underscore, which are Python's own."""

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
        """Raise SecurityError for a name that a template may not set."""
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a template may not set {name!r}")


def environment() -> ImmutableSandboxedEnvironment:
    """Return the Jinja environment that chat templates expect."""
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
    """Return plain JSON, unlike Jinja's own filter, which escapes it for HTML."""
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().astimezone().strftime(format)


def reader() -> Callable[[str], Template]:
    """Return a function that compiles a template's text and caches the latest compiled
    templates."""
    return lru_cache(TEMPLATES_KEPT)(environment().from_string)


def main() -> None:
    """Render templates until standard input ends, because the runner has ended."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    read = reader()
    _send(READY)
    while _answer_next(read):
        pass


def _answer_next(read: Callable[[str], Template]) -> bool:
    """Render the next template from standard input; return False at its end."""
    head = _receive(QUESTION.size)
    size, memory_bytes, text_bytes, seconds = QUESTION.unpack(head) if head else (0, 0, 0, 0.0)
    question = _receive(size)
    if not head or question is None:
        return False
    _limit_memory(memory_bytes)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    kind, data = _render(read, question)
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    _send(*((kind, data) if len(data) <= text_bytes else (TOO_LONG, b"")))
    return True


def _render(read: Callable[[str], Template], question: bytearray) -> tuple[bytes, bytes]:
    try:
        template, variables = marshal.loads(question)
        text = read(template).render(variables)
        return TEXT, text.encode("utf-8", "surrogatepass")
    except MemoryError:
        return NO_MEMORY, b""
    except Exception as problem:  # a template may raise anything
        words = str(problem)[:WORDS_AT_MOST] or type(problem).__name__
        return RAISED, words.encode("utf-8", "surrogatepass")


def _limit_memory(size: int) -> None:
    """Limit the address space in bytes, if the system can."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _receive(size: int) -> bytearray | None:
    """Return the next `size` bytes of standard input; None at its end."""
    data = bytearray(size)
    left = memoryview(data)
    while left:
        count = os.readv(0, [left])
        if not count:
            return None
        left = left[count:]
    return data


def _send(kind: bytes, data: bytes = b"") -> None:
    for part in (ANSWER.pack(kind, time.process_time(), len(data)), data):
        left = memoryview(part)
        while left:
            left = left[os.write(1, left) :]


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # the runner is gone
        main()
