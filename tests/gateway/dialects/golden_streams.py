"""The streams that are kept byte for byte: what each dialect makes of one sequence of entries.

    python -m tests.gateway.dialects.golden_streams

writes `golden/DIALECT/CASE.txt` anew. Entries are rendered one by one; of dialects that date their
lines each is made a second after the one before.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import ChoiceEnd, Entry, Failed, PrefillProgress
from gateway.dialects.anthropic.dialect import AnthropicMessages
from gateway.dialects.dialect import DatedRenderer, Dialect, Parsed
from gateway.dialects.ollama.dialect import OllamaChat, OllamaGenerate
from gateway.dialects.openai.chat import OpenAIChat
from gateway.dialects.openai.completions import OpenAICompletions
from gateway.dialects.openai.responses import OpenAIResponses
from tests.gateway.dialects.conftest import Desk

FOLDER = Path(__file__).parent / "golden"
DESK = Desk()
COMMENT = "loading\nweights 40%"
TURNS = [{"role": "user", "content": "hi"}]
CHAT: dict[str, Any] = {"model": "m", "messages": TURNS, "stream": True}
DIALECTS: tuple[tuple[Dialect, dict[str, Any]], ...] = (
    (OpenAIChat(), {**CHAT, "stream_options": {"include_usage": True}}),
    (
        OpenAICompletions(),
        {
            "model": "m",
            "prompt": "hi",
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    (OpenAIResponses(), {"model": "m", "input": "hi", "stream": True}),
    (AnthropicMessages(), {**CHAT, "max_tokens": 20}),
    (OllamaChat(), CHAT),
    (OllamaGenerate(), {"model": "m:latest", "prompt": "hi"}),
)
"""Dialects that stream, each with a body."""
WITHOUT_CALLS = ("openai_completions", "ollama_generate")
"""Dialects whose requests have no tools, so that no runner sends them a call."""
WITHOUT_THINKING = ("openai_completions",)
"""Dialects whose prompts are read as they stand: no runner tells thinking apart there."""


def _text(parsed: Parsed) -> list[Entry]:
    return [*DESK.text(parsed, "Hel", 'lo "\u2028é\n'), *DESK.end(parsed)]


def _reasoning(parsed: Parsed) -> list[Entry]:
    return [*DESK.reasoning(parsed, "hm", "m"), *DESK.text(parsed, "a"), *DESK.end(parsed)]


def _calls(parsed: Parsed) -> list[Entry]:
    return [
        *DESK.text(parsed, "I look."),
        *DESK.call(parsed, 0, "look", '{"at"', ":[1]}"),
        *DESK.call(parsed, 1, "wait", "{}"),
        *DESK.end(parsed, "tool_calls"),
    ]


def _stop(parsed: Parsed) -> list[Entry]:
    return [*DESK.text(parsed, "a"), *DESK.end(parsed, "stop", stop="END")]


def _length(parsed: Parsed) -> list[Entry]:
    return [*DESK.text(parsed, "a"), *DESK.end(parsed, "length")]


def _cut(parsed: Parsed) -> list[Entry]:
    return [*DESK.call(parsed, 0, "look", '{"at":"th'), *DESK.end(parsed, "length")]


def _all(parsed: Parsed) -> list[Entry]:
    return [
        *DESK.reasoning(parsed, "hm"),
        *DESK.text(parsed, "a"),
        *DESK.call(parsed, 0, "look", '{"at":1}'),
        *DESK.call(parsed, 1, "wait", '{"s'),
        *DESK.end(parsed, "length"),
    ]


def _error(parsed: Parsed) -> list[Entry]:
    ours = parsed.requests[0].request_id
    lost = Failed(ours, 0, "runner_lost", "the runner was lost; try again", Usage(), {})
    return [*DESK.text(parsed, "a"), lost]


def _cancel(parsed: Parsed) -> list[Entry]:
    return [*DESK.text(parsed, "a"), *DESK.end(parsed, "cancelled")]


def _waits(parsed: Parsed) -> list[Entry]:
    ours = parsed.requests[0].request_id
    return [PrefillProgress(ours, 0, 512, 2048), *DESK.text(parsed, "a"), *DESK.end(parsed)]


CASES: Mapping[str, Callable[[Parsed], list[Entry]]] = {
    "text": _text,
    "reasoning": _reasoning,
    "two_calls": _calls,
    "stop": _stop,
    "length": _length,
    "length_in_a_call": _cut,
    "length_in_the_second_call": _all,
    "error": _error,
    "cancel": _cancel,
    "keep_alive": _waits,
}
"""What a runner sends. `keep_alive` has a comment of the shell's before and after its progress."""


def streams() -> Iterator[tuple[str, bytes]]:
    """Give the name of each stream, and its bytes."""
    for dialect, body in DIALECTS:
        for case, entries_of in CASES.items():
            calls = "call" in case
            if (calls and dialect.name in WITHOUT_CALLS) or (
                case == "reasoning" and dialect.name in WITHOUT_THINKING
            ):
                continue
            parsed = DESK.parse(dialect, body)
            entries = DESK.number(entries_of(parsed))
            comment = COMMENT if case == "keep_alive" else None
            yield f"{dialect.name}/{case}.txt", _played(dialect, parsed, entries, comment)


def _played(dialect: Dialect, parsed: Parsed, entries: list[Entry], comment: str | None) -> bytes:
    renderer = dialect.stream(parsed)
    stream = renderer.open()
    for second, entry in enumerate(entries, 1):
        if comment is not None and not isinstance(entry, ChoiceEnd):
            stream += renderer.comment(comment)
        if isinstance(renderer, DatedRenderer):
            renderer.at(parsed.created_at_s + second)
        stream += renderer.render([entry])
    assert renderer.ended
    return stream + renderer.close()


def main() -> None:
    """Write every stream, and nothing else, into the folder."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, stream in streams():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stream)


if __name__ == "__main__":
    main()
