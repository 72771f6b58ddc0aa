"""Talks to the web: fetches the pages whose URLs clients send, and calls the remote APIs that the
operator configured (`providers`).

No other package of the gateway fetches a client's URL. One module parses URLs, one classifies
addresses, one has the policy, and one connects. A URL is checked before its name is resolved, and
the addresses are checked before a connection is made. Each redirect is checked in the same way. A
page is limited in bytes (both compressed and decompressed), in time and in type. A separate process
parses HTML.
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
