"""Talks to the web: what this node fetches because a client named it, and nothing else does; and
what it asks of the providers that its operator named (`providers`).

One reader of URLs, one judge of addresses, one policy, one that dials. A URL is judged before its
name is asked for, its addresses before they are dialled, and each redirect anew; what comes is
bounded in bytes, packed and unpacked, in time, and in kind. HTML is read in a process of its own.
"""

from gateway.fetching.pages import ExtractedPage, FoundPages, OpenedPage
from gateway.fetching.policy import READ_TYPES, FetchPolicy, read_allowance
from gateway.fetching.reading import ReadLimits
from gateway.fetching.refusals import FailureRule, FetchRefused, FetchRule, PolicyRule, UrlRule
from gateway.fetching.tools import AT_ONCE, WebTools, open_tools, policies_of

__all__ = [
    "AT_ONCE",
    "READ_TYPES",
    "ExtractedPage",
    "FailureRule",
    "FetchPolicy",
    "FetchRefused",
    "FetchRule",
    "FoundPages",
    "OpenedPage",
    "PolicyRule",
    "ReadLimits",
    "UrlRule",
    "WebTools",
    "open_tools",
    "policies_of",
    "providers",  # pyright: ignore[reportUnsupportedDunderAll] - a room, loaded when it is named
    "read_allowance",
]
