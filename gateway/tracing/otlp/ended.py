"""Traces of ended requests on their way to a collector, and what became of their spans. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from gateway.tracing.otlp.spans import Value

Outcome = Literal["sent", "refused", "dropped"]
"""The outcome of a span: the collector accepted it, refused it, or did not receive it."""
Count = Callable[[Outcome, int], None]


@dataclass(frozen=True, slots=True)
class EndedTrace:
    """A trace in its stored form (JSON), its number of spans, and its request's attributes."""

    trace: bytes
    spans: int
    attributes: Mapping[str, Value]


class TraceSink(Protocol):
    """Accepts the traces of ended requests, and sends them on."""

    def offer(self, ended: EndedTrace) -> None:
        """Accept a trace. Never waits."""
        ...

    def close(self) -> None:
        """Send the remaining traces within a short time limit. Blocks."""
        ...
