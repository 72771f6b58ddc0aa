"""The head of an answer, and the headers in which shoal reports ignored fields and truncated
inputs.

Pure: a header is added to the `Reply`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from gateway.dialects.unknown_fields import HEADER as IGNORED_HEADER
from gateway.dialects.unknown_fields import header_of

NOT_KEPT_HEADER, TRUNCATED_HEADER = "x-shoal-not-kept", "x-shoal-truncated"
TRUNCATED_TOLD = 128


class Reply(Protocol):
    """The head and the body of an answer, before any byte of it is sent."""

    data: Any

    def set_header(self, name: str, value: str) -> None:
        """Set a header, in place of an earlier value."""
        ...

    def append_header(self, name: str, value: str) -> None:
        """Add a value to a header."""
        ...

    def delete_header(self, name: str) -> None:
        """Remove a header, if it is set."""
        ...


class CountsIgnored(Protocol):
    """Counts the ignored fields of bodies."""

    def ignored(self, dialect: str, fields: Sequence[str]) -> None:
        """Count the ignored fields of a body."""
        ...


def tell_ignored(counts: CountsIgnored, reply: Reply, dialect: str, ignored: Sequence[str]) -> None:
    """Add ignored request fields to `x-shoal-ignored`, the log and the metrics."""
    if ignored:
        counts.ignored(dialect, ignored)
        reply.append_header(IGNORED_HEADER, header_of(ignored))


def tell_truncated(reply: Reply, numbers: Sequence[int]) -> None:
    """List the indexes of truncated inputs in `x-shoal-truncated`: at most `TRUNCATED_TOLD` of
    them, then `+more`."""
    if numbers:
        more = ["+more"] if len(numbers) > TRUNCATED_TOLD else []
        indexes = [*map(str, numbers[:TRUNCATED_TOLD]), *more]
        reply.set_header(TRUNCATED_HEADER, ", ".join(indexes))


def one_line(text: str) -> str:
    """Return a text as a header value: one line of ASCII, with `?` for every other character."""
    return " ".join(text.encode("ascii", "replace").decode().split())
