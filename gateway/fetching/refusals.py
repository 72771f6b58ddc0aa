"""Why something is not fetched: one rule of a closed set each, and words that say what to do.

Pure. The words name no address that a name was found to have: a stranger is not to learn what this
network's names are.
"""

from __future__ import annotations

from typing import Literal

from bus.wire.errors import ShoalError

UrlRule = Literal["url", "scheme", "credentials", "host", "port"]
"""The URL itself is none that is read here."""
PolicyRule = Literal["disabled", "not_allowed", "address"]
"""The node's settings, or the address behind the name, forbid it."""
AnswerRule = Literal["redirects", "content_type", "encoding", "unpacked", "unreadable"]
"""What came is not taken."""
FailureRule = Literal["unresolved", "unreachable", "broken", "late"]
"""The other side does not do its part."""
OwnRule = Literal["busy", "no_search"]
"""This node cannot now, or has nothing to do it with."""
FetchRule = UrlRule | PolicyRule | AnswerRule | FailureRule | OwnRule


class FetchRefused(ShoalError):
    """Something that is not fetched, or not read, by one rule."""

    def __init__(self, rule: FetchRule, message: str) -> None:
        super().__init__(message)
        self.rule: FetchRule = rule
        self.message = message
