"""What a hub's refusals mean for the one who asked, in words that say what to do.

Pure.
"""

from __future__ import annotations

import email.utils
from collections.abc import Mapping

from bus.wire.ids import ModelId
from worker.pulling.listing import PullFailed

TOKEN = "`hf auth login` on this node, or HF_TOKEN in the environment of its `shoal up`"
"""How a node gets the token of a hub."""


def unreachable(why: str) -> PullFailed:
    """Return the failure of a hub that does not answer; it may be tried again."""
    text = f"the hub cannot be reached, or broke off ({why})"
    return PullFailed("unreachable", text, again=True)


def gated(model: ModelId, hub: str, *, has_token: bool) -> PullFailed:
    """Return the failure of a model for which a license has to be accepted."""
    then = "with the account of this node's token" if has_token else f"then give a token: {TOKEN}"
    return PullFailed("gated", f"{model} is gated: accept its license at {hub}/{model}, {then}")


def no_repository(model: ModelId, hub: str, status: int, *, has_token: bool) -> PullFailed:
    """Return the failure of a repository that is not there for us: a hub says no more to those who
    are not to know."""
    if status == 401 and has_token:
        return unauthorized(hub)
    private = "" if has_token else f"; if it is private or gated, this node needs a token: {TOKEN}"
    return PullFailed("not_found", f"{hub} has no model {model}{private}")


def unauthorized(hub: str) -> PullFailed:
    """Return the failure of a token that is not taken."""
    return PullFailed("unauthorized", f"{hub} does not take this node's token; a new one: {TOKEN}")


def no_revision(model: ModelId, revision: str, hub: str) -> PullFailed:
    """Return the failure of a commit, branch or tag that is not there (any more)."""
    text = f"{hub} has no revision {revision or 'main'!r} of {model}"
    return PullFailed(
        "no_revision", f"{text}; see {hub}/{model}/tree/main for those that there are"
    )


def failure_of(status: int, retry_after_s: float | None, model: ModelId, hub: str) -> PullFailed:
    """Return what an HTTP status of a hub or of what it leads to means."""
    if status == 401:
        return unauthorized(hub)
    if status == 403:
        text = f"{hub} refuses {model} (403): it may be gated, or a token may not read it"
        return PullFailed("gated", f"{text}; see {hub}/{model}, and {TOKEN}")
    if status in (404, 410):
        text = f"{hub} has {model} or one of its files no longer ({status}); pull it anew"
        return PullFailed("no_revision", text)
    if status == 429:
        when = "" if retry_after_s is None else f", for {retry_after_s:.0f} s"
        text = f"{hub} has been asked too often (429{when}); a token raises what it allows"
        return PullFailed("rate_limited", text, again=True, retry_after_s=retry_after_s)
    if status == 416:
        return PullFailed("changed", f"a file of {model} is shorter than {hub} lists (416)")
    if status >= 500 or status == 408:
        known = PullFailed("unreachable", f"{hub} answers {status}", again=True)
        known.retry_after_s = retry_after_s
        return known
    return PullFailed("unreachable", f"{hub} answers {status} for {model}")


def search_failure(
    status: int, retry_after_s: float | None, hub: str, *, has_token: bool
) -> PullFailed:
    """Return what an HTTP status of a hub that is searched means."""
    if status == 401 and not has_token:
        return PullFailed("unauthorized", f"{hub} is not searched without a token: {TOKEN}")
    if status in (404, 405, 410, 501):
        return PullFailed("unreachable", f"{hub} cannot be searched ({status}): it has no list")
    if status == 403:
        return PullFailed("unauthorized", f"{hub} refuses to be searched (403); a token: {TOKEN}")
    if status in (401, 408, 429) or status >= 500:
        return failure_of(status, retry_after_s, ModelId(""), hub)
    return PullFailed("unreachable", f"{hub} refuses the search ({status})")


def retry_after_of(headers: Mapping[str, str], now_wall: float) -> float | None:
    """Return the seconds after which a hub wants to be asked again; None where it does not say."""
    said = headers.get("retry-after")
    if said is None:
        return None
    if said.strip().isdecimal():
        return min(float(said), 1e6)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(said).timestamp() - now_wall)
    except (ValueError, TypeError, OverflowError):
        return None
