"""Reasons why a page is not fetched: one rule of a closed set, and a message that says what to do.

Pure. A message never contains an address of a resolved name: a stranger must not learn the names of
this network.
"""

from __future__ import annotations

from typing import Literal

from bus.wire.errors import ShoalError

UrlRule = Literal["url", "scheme", "credentials", "host", "port"]
"""The URL itself is not valid here."""
PolicyRule = Literal["disabled", "not_allowed", "address"]
"""The node's settings or the address behind the name forbid it."""
AnswerRule = Literal["redirects", "content_type", "encoding", "unpacked", "unreadable"]
"""The answer is not acceptable."""
FailureRule = Literal["unresolved", "unreachable", "broken", "late"]
"""The other server failed."""
OwnRule = Literal["busy", "no_search"]
"""This node is busy or lacks a search engine."""
FetchRule = UrlRule | PolicyRule | AnswerRule | FailureRule | OwnRule


class FetchRefused(ShoalError):
    """A page is not fetched or not read. `rule` says why."""

    def __init__(self, rule: FetchRule, message: str) -> None:
        super().__init__(message)
        self.rule: FetchRule = rule
        self.message = message
