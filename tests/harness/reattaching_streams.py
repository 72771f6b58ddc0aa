"""Streams whose client comes back whenever its connection breaks, and what they took."""

from __future__ import annotations

import time
from dataclasses import dataclass

import httpx

from tests.harness.mixed_streams import MixedStream

AGAIN_S = 0.05
MOST_S = 240.0


@dataclass
class ReattachingStream(MixedStream):
    """A streamed chat completion whose client asks for the rest of it as often as needed.

    `name`: its `x-request-id`. `last`: the id of its last event. `returns`: how often the client
    came back and got events; `bytes`: all events with their ids. An event that is missing, or comes
    twice, is an error.
    """

    name: str = ""
    last: int = -1
    returns: int = 0
    bytes: int = 0
    is_whole: bool = False

    def _read(self) -> None:
        give_up_at = time.monotonic() + MOST_S
        try:
            while not (self.is_whole or self.error) and time.monotonic() < give_up_at:
                try:
                    self._read_once()
                except httpx.HTTPError as error:
                    self.comments.append(repr(error))
                    time.sleep(AGAIN_S)
            if not self.is_whole and not self.error:
                self.error = f"not whole after {MOST_S:g} s"
        finally:
            self.is_done = True

    def _read_once(self) -> None:
        """Ask for the stream, or for the rest of it, and read until the connection breaks."""
        headers = dict(self.node.headers)
        if self.last >= 0:
            headers["Last-Event-ID"] = str(self.last)
        method, url = "POST", f"{self.node.url}/v1/chat/completions"
        if self.name:
            method, url = "GET", f"{self.node.url}/v1/streams/{self.name}"
        with httpx.stream(
            method,
            url,
            json=None if self.name else self.body,
            headers=headers,
            timeout=60,
            verify=False,
        ) as response:
            if response.status_code != 200:
                text = response.read().decode()
                if response.status_code not in (429, 502, 503, 504):
                    self.error = text
                self.comments.append(text)
                time.sleep(AGAIN_S)
                return
            self.returns += bool(self.name)
            self.name = self.name or response.headers["x-request-id"]
            for line in response.iter_lines():
                if line.startswith("id: "):
                    number = int(line[4:])
                    if number != self.last + 1:
                        self.error = f"event {number} after {self.last}"
                    self.last = number
                if not line.startswith(":"):
                    self.bytes += len(line) + 1
                self.is_whole = self.is_whole or line == "data: [DONE]"
                self._take(line)
