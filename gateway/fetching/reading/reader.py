"""Talks to the process that reads a page (`page_process`): starts it, asks it, ends it.

One process a page, held to a share of processor, time and memory by itself, by the system and by
this: what breaks a limit, or the parser, is killed, and the page is refused. What it says is JSON
of a bounded length and of one shape, else nothing.
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
"""Pages that are read at once, in one HTTP process."""
LOOKS_S = 0.05
PASSED_ON = ("PATH", "TZ", "LANG", "LC_ALL")
"""Of the environment: no keys, and no libraries to be loaded first."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What the reading of one page may take."""

    processor_s: int = 5
    wall_s: float = 10.0
    memory_bytes: int = 1 << 30
    answer_bytes: int = 16 << 20


@dataclass(frozen=True, slots=True)
class PageQuestion:
    """What is asked of a page: `main` is the main text alone; `base` is where it came from."""

    base: str
    charset: str | None
    characters: int
    links: int
    main: bool


class PageReader:
    """Reads pages, some at once."""

    def __init__(self, limits: ReadLimits | None = None) -> None:
        self._limits = limits or ReadLimits()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def read(self, page: bytes, question: PageQuestion) -> PageParts:
        """Return what a page says. Raises FetchRefused where it is not read within the limits."""
        limits = self._limits
        asked = {
            "base": question.base, "charset": question.charset, "characters": question.characters,
            "links": question.links, "main": question.main, "memory_bytes": limits.memory_bytes,
            "processor_s": limits.processor_s, "wall_s": limits.wall_s,
        }  # fmt: skip
        async with self._turns:
            said = await self._answer(json.dumps(asked).encode() + b"\n" + page)
        try:
            return PageParts.model_validate_json(said)
        except ValidationError:
            raise FetchRefused("unreadable", "the page crashes the reader") from None

    async def _answer(self, asked: bytes) -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(PROGRAM), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd="/",
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
        )  # fmt: skip
        told = asyncio.ensure_future(_told(process, asked))
        watched = asyncio.ensure_future(self._watched(process))
        heard = asyncio.ensure_future(self._heard(process))
        try:
            async with asyncio.timeout(self._limits.wall_s):
                await asyncio.wait([watched, heard], return_when=asyncio.FIRST_COMPLETED)
                if watched.done():
                    watched.result()
                return await heard
        except TimeoutError:
            text = f"the page was not read within {self._limits.wall_s:g} s"
            raise FetchRefused("unreadable", text) from None
        finally:
            for job in (told, watched, heard):
                job.cancel()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await asyncio.gather(told, watched, heard, return_exceptions=True)

    async def _heard(self, process: Process) -> bytes:
        """Return all that it says."""
        assert process.stdout is not None
        said = bytearray()
        while piece := await process.stdout.read(1 << 16):
            said += piece
            if len(said) > self._limits.answer_bytes:
                raise FetchRefused("unreadable", "the text of the page is too long")
        return bytes(said)

    async def _watched(self, process: Process) -> None:
        """Raise FetchRefused where it takes more memory than it may; the system may not look."""
        try:
            watched = psutil.Process(process.pid)
            while process.returncode is None:
                if watched.memory_info().rss > self._limits.memory_bytes:
                    text = (
                        "the page needs too much memory; the limit is "
                        f"{self._limits.memory_bytes >> 20} MiB"
                    )
                    raise FetchRefused("unreadable", text)
                await asyncio.sleep(LOOKS_S)
        except psutil.Error:
            return


async def _told(process: Process, asked: bytes) -> None:
    """Send it all; it may end before."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(asked)
        await process.stdin.drain()
        process.stdin.close()
