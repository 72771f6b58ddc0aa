"""Translate a hub's refusals into messages that say what to do.

Pure.
"""

from __future__ import annotations

import email.utils
from collections.abc import Mapping

from bus.wire.ids import ModelId
from worker.pulling.listing import PullFailed

TOKEN = "run `hf auth login` on this node, or set HF_TOKEN in the environment of its `shoal up`"
"""How a node gets a hub's token."""


def unreachable(why: str) -> PullFailed:
    """Return the failure of a hub that does not answer; the pull is retried."""
    text = f"the hub is unreachable or broke the connection ({why})"
    return PullFailed("unreachable", text, again=True)


def gated(model: ModelId, hub: str, *, has_token: bool) -> PullFailed:
    """Return the failure of a model whose license must be accepted."""
    then = "with the account of this node's token" if has_token else f"then add a token: {TOKEN}"
    return PullFailed("gated", f"{model} is gated: accept its license at {hub}/{model}, {then}")


def no_repository(model: ModelId, hub: str, status: int, *, has_token: bool) -> PullFailed:
    """Return the failure of a repository that is missing or hidden from us: a hub does not say
    which."""
    if status == 401 and has_token:
        return unauthorized(hub)
    private = "" if has_token else f"; if it is private or gated, this node needs a token: {TOKEN}"
    return PullFailed("not_found", f"{hub} has no model {model}{private}")


def unauthorized(hub: str) -> PullFailed:
    """Return the failure of a rejected token."""
    return PullFailed("unauthorized", f"{hub} rejected this node's token; use a new one: {TOKEN}")


def no_revision(model: ModelId, revision: str, hub: str) -> PullFailed:
    """Return the failure of a missing commit, branch or tag."""
    text = f"{hub} has no revision {revision or 'main'!r} of {model}"
    return PullFailed("no_revision", f"{text}; {hub}/{model}/tree/main lists the revisions")


def failure_of(status: int, retry_after_s: float | None, model: ModelId, hub: str) -> PullFailed:
    """Return the failure for an HTTP status of a hub or of the target of its redirects."""
    if status == 401:
        return unauthorized(hub)
    if status == 403:
        text = (
            f"{hub} refused {model} (403): it may be gated, or the token may not allow reading it"
        )
        return PullFailed("gated", f"{text}; see {hub}/{model}, and {TOKEN}")
    if status in (404, 410):
        text = f"{hub} no longer has {model} or one of its files ({status}); pull it again"
        return PullFailed("no_revision", text)
    if status == 429:
        when = "" if retry_after_s is None else f", for {retry_after_s:.0f} s"
        text = f"{hub} limits the rate of requests (429{when}); a token raises the limit"
        return PullFailed("rate_limited", text, again=True, retry_after_s=retry_after_s)
    if status == 416:
        return PullFailed("changed", f"a file of {model} is shorter than {hub} lists (416)")
    if status >= 500 or status == 408:
        failure = PullFailed("unreachable", f"{hub} answered with status {status}", again=True)
        failure.retry_after_s = retry_after_s
        return failure
    return PullFailed("unreachable", f"{hub} answered with status {status} for {model}")


def search_failure(
    status: int, retry_after_s: float | None, hub: str, *, has_token: bool
) -> PullFailed:
    if status == 401 and not has_token:
        return PullFailed("unauthorized", f"{hub} requires a token to search: {TOKEN}")
    if status in (404, 405, 410, 501):
        return PullFailed(
            "unreachable", f"{hub} cannot be searched ({status}): it has no search endpoint"
        )
    if status == 403:
        return PullFailed("unauthorized", f"{hub} refused the search (403); use a token: {TOKEN}")
    if status in (401, 408, 429) or status >= 500:
        return failure_of(status, retry_after_s, ModelId(""), hub)
    return PullFailed("unreachable", f"{hub} refused the search ({status})")


def retry_after_of(headers: Mapping[str, str], now_wall: float) -> float | None:
    """Return the seconds after which a hub wants the next request; None if it does not say."""
    header = headers.get("retry-after")
    if header is None:
        return None
    if header.strip().isdecimal():
        return min(float(header), 1e6)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - now_wall)
    except (ValueError, TypeError, OverflowError):
        return None
