"""Talks to the process that parses a page (`page_process`): starts it, sends it the page, and ends
it.

Each page has one process. The process itself, the system and this module limit its processor time,
wall time and memory. If a page exceeds a limit or crashes the parser, the process is killed and the
page is refused. The answer must be JSON of one fixed shape and of bounded length.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import ValidationError

from gateway.fetching.pages import PageParts
from gateway.fetching.refusals import FetchRefused

PROGRAM = Path(__file__).with_name("page_process.py")
AT_ONCE = 2
"""Pages that one HTTP process parses at the same time."""
LOOKS_S = 0.05
PASSED_ON = ("PATH", "TZ", "LANG", "LC_ALL")
"""Environment variables that the process gets: none with a key, and none that preloads a
library."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits for parsing one page."""

    processor_s: int = 5
    wall_s: float = 10.0
    memory_bytes: int = 1 << 30
    answer_bytes: int = 16 << 20


@dataclass(frozen=True, slots=True)
class PageQuestion:
    """What to parse, and how. `main`: return only the main text. `base`: the URL to which the
    page's links are relative."""

    base: str
    charset: str | None
    characters: int
    links: int
    main: bool


class PageReader:
    """Parses pages, at most `AT_ONCE` at a time."""

    def __init__(self, limits: ReadLimits | None = None) -> None:
        self._limits = limits or ReadLimits()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def read(self, page: bytes, question: PageQuestion) -> PageParts:
        """Return the parts of a page. Raises FetchRefused if parsing fails or exceeds a limit."""
        limits = self._limits
        fields = {
            "base": question.base, "charset": question.charset, "characters": question.characters,
            "links": question.links, "main": question.main, "memory_bytes": limits.memory_bytes,
            "processor_s": limits.processor_s, "wall_s": limits.wall_s,
        }  # fmt: skip
        async with self._turns:
            answer = await self._answer(json.dumps(fields).encode() + b"\n" + page)
        try:
            return PageParts.model_validate_json(answer)
        except ValidationError:
            raise FetchRefused("unreadable", "the page crashes the HTML parser") from None

    async def _answer(self, question: bytes) -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(PROGRAM), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd="/",
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
        )  # fmt: skip
        sending = asyncio.ensure_future(_send(process, question))
        watching = asyncio.ensure_future(self._watch(process))
        receiving = asyncio.ensure_future(self._receive(process))
        try:
            async with asyncio.timeout(self._limits.wall_s):
                await asyncio.wait([watching, receiving], return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    watching.result()
                return await receiving
        except TimeoutError:
            text = f"the page was not read within {self._limits.wall_s:g} s"
            raise FetchRefused("unreadable", text) from None
        finally:
            for job in (sending, watching, receiving):
                job.cancel()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await asyncio.gather(sending, watching, receiving, return_exceptions=True)

    async def _receive(self, process: Process) -> bytes:
        """Return all that the process writes to its standard output."""
        assert process.stdout is not None
        output = bytearray()
        while piece := await process.stdout.read(1 << 16):
            output += piece
            if len(output) > self._limits.answer_bytes:
                raise FetchRefused("unreadable", "the text of the page is too long")
        return bytes(output)

    async def _watch(self, process: Process) -> None:
        """Watch the memory of the process, and raise FetchRefused if it uses too much. Does nothing
        if the system does not report the memory."""
        try:
            usage = psutil.Process(process.pid)
            while process.returncode is None:
                if usage.memory_info().rss > self._limits.memory_bytes:
                    text = (
                        "the page needs too much memory; the limit is "
                        f"{self._limits.memory_bytes >> 20} MiB"
                    )
                    raise FetchRefused("unreadable", text)
                await asyncio.sleep(LOOKS_S)
        except psutil.Error:
            return


async def _send(process: Process, question: bytes) -> None:
    """Send all bytes to the process. It may end before it has read all of them."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(question)
        await process.stdin.drain()
        process.stdin.close()
