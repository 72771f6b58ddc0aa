"""Talks to the web: fetches pages that a client names, and asks the providers that the operator
named (`providers`).

No other room fetches a client's URL. One module parses URLs, one judges addresses, one has the
policy, and one dials. A URL is checked before its name is resolved, and its addresses before they
are dialled. Each redirect is checked in the same way. A page is bounded in bytes (packed and
unpacked), in time and in type. HTML is parsed in a separate process.
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
