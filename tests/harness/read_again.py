"""Clients that leave their streams in the middle and read them again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from bus.process.clock import now


@dataclass
class SeenStream:
    """What a client has of a stream: its events by id, and how it ended."""

    name: str = ""
    status: int = 0
    events: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    comments: list[str] = field(default_factory=list[str])
    fault: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def last(self) -> int:
        """The id of the last event; -1 before any."""
        return max(self.events, default=-1)

    @property
    def is_whole(self) -> bool:
        """Whether the last event is one that ends a stream."""
        kind, data = self.events.get(self.last, ("", ""))
        return data == "[DONE]" or kind in ("message_stop", "response.completed")

    @property
    def text(self) -> str:
        """The text of all events, in order of their ids."""
        assert sorted(self.events) == list(range(self.last + 1)), "an event is missing"
        return "".join(map(_text_of, (self.events[number][1] for number in sorted(self.events))))

    def read(
        self,
        method: str,
        url: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        most: int | None = None,
    ) -> None:
        """Read events to the end, or `most` of them; then close the connection."""
        with (
            httpx.Client(timeout=30) as client,
            client.stream(method, url, json=body, headers=headers) as response,
        ):
            self.status = response.status_code
            if self.status != 200:
                self.fault = json.loads(response.read())
                return
            self.name = self.name or response.headers["x-request-id"]
            for count, event in enumerate(self._events_of(response.iter_lines()), 1):
                number, kind, data = event
                assert self.events.setdefault(number, (kind, data)) == (kind, data), number
                if count == most:
                    return

    def _events_of(self, lines: Iterator[str]) -> Iterator[tuple[int, str, str]]:
        number, kind = -1, ""
        for line in lines:
            name, _, value = line.partition(": ")
            if name == "id":
                number = int(value)
            elif name == "event":
                kind = value
            elif name == "data" and kind != "ping":
                yield number, kind, value
            elif not name and value:
                self.comments.append(value)
            if not line:
                kind = ""


def read_to_the_end(seen: SeenStream, url: str, timeout_s: float, **headers: str) -> None:
    """Read a stream again and again, as long as connections break, until its last event."""
    give_up_at = now() + timeout_s
    while not seen.is_whole:
        assert now() < give_up_at, (seen.name, seen.last, seen.fault)
        last = {} if seen.last < 0 else {"Last-Event-ID": str(seen.last)}
        try:
            seen.read("GET", f"{url}/v1/streams/{seen.name}", headers={**headers, **last})
        except httpx.HTTPError:
            time.sleep(0.05)
        assert seen.status in (200, 502, 503, 504), seen.fault


def _text_of(data: str) -> str:
    if not data.startswith("{"):
        return ""
    event = json.loads(data)
    if event.get("choices"):
        return event["choices"][0]["delta"].get("content", "")
    delta = event.get("delta", "")
    return delta if isinstance(delta, str) else delta.get("text", "")
