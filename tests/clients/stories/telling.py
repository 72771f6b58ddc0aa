"""Tells what came of a client's calls, one line of JSON each; runs in the client's own environment.

A story is a script with functions, each decorated with `told` and a name: a call of the client
that ends without an exception has passed. What they ask, the bundled model can answer.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

COUNT = "List the integers from 1 to 5"
COUNTED = "1, 2, 3, 4, 5"
PARIS = "What is the weather in Paris?"
BOTH = "What is the weather in Paris and London?"
WEATHER = "17 degrees and sunny"
PERSON = "Anna is 34 years old. Answer in JSON with the keys name and age."


@dataclass(frozen=True)
class At:
    """Where a story's node is: its root without a slash at the end, and the model to ask."""

    url: str
    model: str


Call = Callable[[At], object]
_calls: list[tuple[str, Call]] = []


def told(name: str) -> Callable[[Call], Call]:
    """Return a decorator that adds a function to the story's calls under a name."""

    def added(call: Call) -> Call:
        _calls.append((name, call))
        return call

    return added


def tell(client: str, package: str) -> None:
    """Make all calls in order, and print for each: client, version, call, ok, why, seconds."""
    words = argparse.ArgumentParser()
    words.add_argument("--url", required=True)
    words.add_argument("--model", required=True)
    words.add_argument("--only", default="", help="calls whose names have this in them")
    said = words.parse_args()
    warnings.simplefilter("ignore")
    at = At(said.url.rstrip("/"), said.model)
    with asyncio.Runner() as loop:
        for name, call in _calls:
            if said.only not in name:
                continue
            began = time.monotonic()
            why = _reason(loop, call, at)
            line = {
                "client": client,
                "version": version(package),
                "call": name,
                "ok": not why,
                "why": why,
                "seconds": round(time.monotonic() - began, 2),
            }
            print(json.dumps(line), flush=True)


def _reason(loop: asyncio.Runner, call: Call, at: At) -> str:
    """Return why a call failed, and on which line of the story; nothing where it passed. All
    coroutines run on one loop, for some clients keep connections that belong to it."""
    try:
        made = call(at)
        if inspect.iscoroutine(made):
            loop.run(made)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        parts = traceback.extract_tb(error.__traceback__)
        own = [part.line for part in parts if part.filename.endswith("_story.py")]
        text = str(error)
        text = text if len(text) <= 800 else f"{text[:400]} ... {text[-400:]}"
        return f"{type(error).__name__}: {text} at `{own[-1] if own else ''}`"
    return ""
