"""Who may come in: API keys by their hashes, Host names, web origins. And whose address counts.

Pure. A key is one of the cluster's, one of this node's settings, or its owner's; the latter two
open everything. Keys are long and random, so one SHA-256 is enough to keep them by (there is
nothing to guess); a comparison takes the same time for every mistake. A browser's page may call
only from an origin that is ours or listed, and only by a Host name that no stranger's DNS can point
here.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from bus.process.endpoints import is_loopback
from bus.wire.api_keys import KEY_ID, ApiKey, Scope
from gateway.cluster.api_keys import OverBudget
from gateway.cluster.options import Options
from gateway.dialects import faults
from gateway.dialects.faults import HttpFaultRaised

_OPEN_PATHS = frozenset({"/", "/health", "/livez", "/readyz", "/dashboard"})
_OPEN_BELOW = "/dashboard/"
_APP_SCHEMES = frozenset({"app", "file", "tauri", "vscode-file", "vscode-webview"})
"""Of origins that only programs of this machine give their own pages: no web page gets one."""
EXPOSED_HEADERS = (
    "x-request-id, traceresponse, retry-after, x-queue-position, x-shoal-ignored, "
    "x-shoal-truncated, x-shoal-not-kept, x-shoal-missing-nodes, x-shoal-task, "
    "x-shoal-answered-by, x-shoal-why"
)
"""Headers of answers that pages of other origins may read, where they may call."""

KEY_ID_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `key_id` is None for the key of a node that has one alone, or none; `of_cluster`:
    the key is one of the cluster's; `has_key` False: a stranger, where no key is asked for."""

    scope: Scope = "admin"
    key_id: str | None = None
    of_cluster: bool = False
    has_key: bool = True


STRANGER = Caller(has_key=False)


def is_open(path: str) -> bool:
    """Return whether a path is answered without a key: it tells nothing but that a gateway is
    here, or is a file of the page, which all may have."""
    return path in _OPEN_PATHS or path.startswith(_OPEN_BELOW)


def caller_of_key(
    key: str | None, options: Options, find: Callable[[str], ApiKey | None], *, asked_for: bool
) -> Caller | None:
    """Return who asks with `key`; None for one who may not, as a key is `asked_for`. `find` gives
    the cluster's key of a hash."""
    if key is not None:
        mine = hashed(key)
        if is_known_key(key, options.keys):
            return Caller(key_id=mine[-KEY_ID_DIGITS:] if len(options.keys) > 1 else None)
        if options.owner_key and is_known_key(key, (options.owner_key,)):
            return Caller()
        found = find(mine)
        if found is not None:
            return Caller(found.scope, found.id, of_cluster=True)
    return None if asked_for else STRANGER


def caller_of_run(owner: str, keys: Mapping[str, ApiKey]) -> Caller:
    """Return who a job is run for, by the id of the key that it was submitted with. Raises
    HttpFaultRaised (401) where that was one of the cluster's `keys` and is one no longer."""
    if owner in keys:
        return Caller(keys[owner].scope, owner, of_cluster=True)
    if KEY_ID.fullmatch(owner):
        raise unknown_caller(owner)
    return Caller(key_id=owner or None)


def check_scope(caller: Caller, needed: Scope, what: str) -> None:
    """Raise HttpFaultRaised (403) where a caller's scope does not open `what`."""
    if caller.scope not in ("admin", needed):
        raise HttpFaultRaised(faults.insufficient_scope(caller.scope, needed, what))


def unknown_caller(key: str | None) -> HttpFaultRaised:
    """Return the 401 for a key that is none, or for the want of one."""
    text = "unknown API key"
    if key is None:
        text = "an API key is required: send Authorization: Bearer <key>"
    return HttpFaultRaised(faults.unauthorized(text))


def spent(over: OverBudget) -> HttpFaultRaised:
    """Return the 429 for a key that has used up a budget."""
    fault = faults.over_budget(over.code, over.message, over.limit, over.retry_after_s)
    return HttpFaultRaised(fault)


def hashed(key: str) -> str:
    """Return a key as it is kept: its SHA-256 in hexadecimal, after `sha256:`."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def offered_key(authorization: str | None, x_api_key: str | None) -> str | None:
    """Return the key that a request carries, from the values of its two headers; None for none."""
    scheme, _, rest = (authorization or "").partition(" ")
    if scheme.casefold() == "bearer" and rest.strip():
        return rest.strip()
    return x_api_key or None


def is_known_key(key: str, hashes: Collection[str]) -> bool:
    """Return whether `key` is one of those kept."""
    mine = hashed(key).encode()
    # no early exit: which of the keys it is must not show in the time it takes
    return sum(hmac.compare_digest(mine, one.encode()) for one in hashes) > 0


def host_allowed(host: str | None, names: Collection[str]) -> bool:
    """Return whether a Host header may be answered: none, an address, a loopback or listed name.

    A name that another owner's DNS points at us (rebinding) is none of them.
    """
    if not host:
        return True
    parts = _split(f"//{host}")
    name = (parts and parts.hostname) or ""
    if is_loopback(name) or name in {one.casefold() for one in names}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def origin_allowed(origin: str | None, host: str | None, origins: Collection[str]) -> bool:
    """Return whether a web page from `origin` may call: the same host, this machine, or listed."""
    if origin is None:
        return True
    if origin in origins or "*" in origins:
        return True
    parts = _split(origin)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        return False
    return is_loopback(parts.hostname) or parts.netloc == host


def page_allowed(origin: str | None, host: str | None, options: Options) -> bool:
    """Return whether a page from `origin` may call a node: as `origin_allowed` has it, and the
    pages of programs where the node is reached from this machine alone (decision 0081)."""
    if origin_allowed(origin, host, options.origins):
        return True
    scheme, has_scheme, _ = (origin or "").partition("://")
    return is_loopback(options.host) and bool(has_scheme) and scheme in _APP_SCHEMES


def page_refused(origin: str | None) -> HttpFaultRaised:
    """Return the 403 for a page that may not call."""
    text = f"pages from {origin} are not allowed; add it to cors_origins"
    if origin == "null":
        text = (
            "pages without an origin (`Origin: null`) are not allowed, because every site "
            "can create one: "
            "serve the file over http://localhost instead of opening it from the disk"
        )
    return HttpFaultRaised(faults.forbidden(text))


def client_address(peer: str, forwarded: str | None, proxies: tuple[str, ...]) -> str:
    """Return the address that a request counts for: its peer's, unless that is one of `proxies`
    (addresses or networks); then the last in X-Forwarded-For that is none of them.

    Of an IPv6 address the network of 64 bits: that is what one client has.
    """
    counts = peer
    steps = [step.strip() for step in (forwarded or "").split(",")]
    while steps and _is_proxy(counts, proxies) and _address(steps[-1]) is not None:
        counts = steps.pop()
    address = _address(counts)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return counts if address is None else str(address)


def _is_proxy(address: str, proxies: tuple[str, ...]) -> bool:
    found = _address(address)
    return found is not None and any(found in network for network in _networks(proxies))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address, that of IPv4 where IPv6 only wraps it; None for what is none."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


@functools.cache
def _networks(
    proxies: tuple[str, ...],
) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(proxy, strict=False) for proxy in proxies)


def _split(url: str) -> SplitResult | None:
    """Return the parts of a URL, None for one whose host is none (`//[::1`)."""
    try:
        return urlsplit(url)
    except ValueError:
        return None
