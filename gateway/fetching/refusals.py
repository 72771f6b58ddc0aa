"""Reasons why a page is not fetched. Each has a rule (a code from a fixed set) and a message that
says what to do.

Pure. A message never contains an address of a resolved name: a stranger must not learn the names of
this network.
"""

from __future__ import annotations

from typing import Literal

from bus.wire.errors import ShoalError

UrlRule = Literal["url", "scheme", "credentials", "host", "port"]
"""Rules that the URL itself breaks."""
PolicyRule = Literal["disabled", "not_allowed", "address"]
"""Rules by which the node's settings, or the address behind the name, forbid the fetch."""
AnswerRule = Literal["redirects", "content_type", "encoding", "unpacked", "unreadable"]
"""Rules that the server's answer breaks."""
FailureRule = Literal["unresolved", "unreachable", "broken", "late"]
"""Failures of the web server, or of the connection to it."""
OwnRule = Literal["busy", "no_search"]
"""Reasons of this node: it is busy, or it has no search engine."""
FetchRule = UrlRule | PolicyRule | AnswerRule | FailureRule | OwnRule


class FetchRefused(ShoalError):
    """A page is not fetched or not read. `rule` says why."""

    def __init__(self, rule: FetchRule, message: str) -> None:
        super().__init__(message)
        self.rule: FetchRule = rule
        self.message = message
