"""Streams of every kind that must survive the death of their runner, and what a client saw."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.harness.nodes import MODEL, Node, eventually

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 60},
        "numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 20, "maxItems": 40},
    },
    "required": ["name", "numbers"],
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": SCHEMA["properties"]["numbers"]},
            "required": ["city", "days"],
        },
    },
}
SEEDED = {"temperature": 1.0, "seed": 11}
KINDS: dict[str, dict[str, Any]] = {
    "text": {"temperature": 0, "ignore_eos": True},
    "logprobs": {**SEEDED, "ignore_eos": True, "logprobs": True, "top_logprobs": 3},
    "choices": {**SEEDED, "ignore_eos": True, "n": 2, "stop": ["zzzz"]},
    "schema": {
        **SEEDED,
        "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}},
    },
    "tools": {**SEEDED, "tools": [WEATHER], "tool_choice": "required"},
    "reasoning": {
        **SEEDED,
        "ignore_eos": True,
        "reasoning_effort": "high",
        "frequency_penalty": 0.4,
    },
}
"""Fields of chat completions, by the kind of stream."""
COUNTED = ("prompt_tokens", "completion_tokens", "total_tokens")


@dataclass
class MixedStream:
    """One streamed chat completion, read in a thread of its own. `at` has the instants of its
    chunks; `choices` what came of each choice: texts by field, calls, log-probabilities, end."""

    node: Node
    fields: dict[str, Any]
    at: list[float] = field(default_factory=list[float])
    comments: list[str] = field(default_factory=list[str])
    choices: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    usage: dict[str, Any] | None = None
    error: Any = None
    is_done: bool = False
    thread: threading.Thread | None = None

    def begin(self) -> MixedStream:
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()
        return self

    def flowing(self, chunks: int, seconds: float = 60.0) -> MixedStream:
        """Wait until so many chunks have come, or the end."""
        eventually(lambda: len(self.at) >= chunks or self.is_done, seconds, "chunks come")
        return self

    def wait(self, seconds: float) -> MixedStream:
        assert self.thread is not None
        self.thread.join(seconds)
        assert not self.thread.is_alive(), f"open after {seconds:g} s: {self.comments[-3:]}"
        return self

    @property
    def gap_s(self) -> float:
        """Return the longest time between two chunks."""
        return max((b - a for a, b in zip(self.at, self.at[1:], strict=False)), default=0.0)

    def said(self) -> tuple[Any, ...]:
        """Return all that must not differ between two answers to the same request."""
        usage = self.usage or {}
        reasoning = usage.get("completion_tokens_details", {}).get("reasoning_tokens")
        texts = {
            number: {name: value for name, value in choice.items() if name != "scores"}
            for number, choice in sorted(self.choices.items())
        }
        return self.error, texts, [usage.get(name) for name in COUNTED], reasoning

    def scores(self) -> list[float]:
        """Return the log-probabilities in order."""
        return [value for _, one in sorted(self.choices.items()) for value in one["scores"]]

    @property
    def body(self) -> dict[str, Any]:
        """Return the body of the request."""
        return {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Tell me of a fish."}],
            "max_tokens": 300,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }

    def _read(self) -> None:
        url = self.node.url + "/v1/chat/completions"
        try:
            with httpx.stream(
                "POST", url, json=self.body, headers=self.node.headers, timeout=300, verify=False
            ) as response:
                if response.status_code != 200:
                    self.error = response.read().decode()
                    return
                for line in response.iter_lines():
                    self._take(line)
        except httpx.HTTPError as error:
            self.error = repr(error)
        finally:
            self.is_done = True

    def _take(self, line: str) -> None:
        if line.startswith(":"):
            self.comments.append(line[1:].strip())
        if not line.startswith("data: {"):
            return
        chunk = json.loads(line[6:])
        self.error = chunk.get("error") or self.error
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices", ()):
            self.at.append(time.monotonic())
            self._add(choice)

    def _add(self, choice: dict[str, Any]) -> None:
        none = {"content": "", "reasoning_content": "", "calls": "", "end": "", "tokens": []}
        mine = self.choices.setdefault(choice["index"], {**none, "tokens": [], "scores": []})
        delta = choice["delta"]
        for name in ("content", "reasoning_content"):
            mine[name] += delta.get(name) or ""
        for call in delta.get("tool_calls") or ():
            function = call["function"]
            mine["calls"] += f"{function.get('name') or ''}{function.get('arguments') or ''}"
        for one in (choice.get("logprobs") or {}).get("content") or ():
            mine["tokens"].append(one["token"])
            mine["scores"] += [one["logprob"], *(other["logprob"] for other in one["top_logprobs"])]
        mine["end"] += choice.get("finish_reason") or ""


def begun(node: Node, *kinds: str, **more: Any) -> dict[str, MixedStream]:
    """Begin a stream of each kind."""
    return {kind: MixedStream(node, {**KINDS[kind], **more}).begin() for kind in kinds}


def check_same(streams: dict[str, MixedStream], undisturbed: dict[str, MixedStream]) -> None:
    """Each stream says what the undisturbed one of its kind said."""
    for kind, stream in streams.items():
        stream.wait(180)
        assert stream.said() == undisturbed[kind].said(), kind
        assert stream.scores() == pytest.approx(undisturbed[kind].scores(), abs=2e-3), kind
