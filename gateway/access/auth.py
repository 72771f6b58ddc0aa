"""Checks who may use the gateway: by API key, Host header and web origin. Also finds a client's
address.

Pure. There are three kinds of API keys: the cluster's keys, the keys in this node's settings, and
the key of the node's owner. Keys of the last two kinds have the scope `admin`. Keys are long and
random, so a plain SHA-256 of each is safe to store. Hashes are compared in constant time. A web
page may send requests only if its origin is this server or is listed in the settings. The Host
header must have a name that an attacker's DNS server cannot resolve to this machine.
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
from gateway.access.budgets import OverBudget
from gateway.dialects import faults
from gateway.dialects.faults import HttpFaultRaised
from gateway.view.options import Options

_OPEN_PATHS = frozenset({"/", "/health", "/livez", "/readyz", "/dashboard"})
_OPEN_BELOW = "/dashboard/"
_APP_SCHEMES = frozenset({"app", "file", "tauri", "vscode-file", "vscode-webview"})
"""URL schemes in the origins of pages that belong to desktop programs. The origin of a web page
never has one of these schemes."""
EXPOSED_HEADERS = (
    "x-request-id, traceresponse, retry-after, x-queue-position, x-shoal-ignored, "
    "x-shoal-truncated, x-shoal-not-kept, x-shoal-missing-nodes, x-shoal-task, "
    "x-shoal-answered-by, x-shoal-why"
)
"""Response headers that a browser shows to pages of other allowed origins."""

KEY_ID_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request. `key_id` is None without a key, for the owner's key, and for the
    only key in the node's settings. `of_cluster`: the key is one of the cluster's keys. `has_key`
    is False for a caller without a key, on a node that requires none."""

    scope: Scope = "admin"
    key_id: str | None = None
    of_cluster: bool = False
    has_key: bool = True


STRANGER = Caller(has_key=False)


def is_open(path: str) -> bool:
    """Return whether a path needs no key: the health probes, the root, and the files of the
    dashboard page."""
    return path in _OPEN_PATHS or path.startswith(_OPEN_BELOW)


def caller_of_key(
    key: str | None, options: Options, find: Callable[[str], ApiKey | None], *, asked_for: bool
) -> Caller | None:
    """Return the caller who sent `key`. Return None if the key is unknown or missing although a key
    is required (`asked_for`). `find` looks up a key of the cluster by its hash."""
    if key is not None:
        mine = hashed(key)
        if is_known_key(key, options.keys):
            return Caller(key_id=mine[-KEY_ID_DIGITS:] if len(options.keys) > 1 else None)
        if options.owner_key and is_known_key(key, (options.owner_key,)):
            return Caller()
        record = find(mine)
        if record is not None:
            return Caller(record.scope, record.id, of_cluster=True)
    return None if asked_for else STRANGER


def caller_of_run(owner: str, keys: Mapping[str, ApiKey]) -> Caller:
    """Return the caller for a run of a background job. `owner` is the id of the key that submitted
    the job. Raises HttpFaultRaised (401) if `owner` is a key of the cluster that has been
    deleted."""
    if owner in keys:
        return Caller(keys[owner].scope, owner, of_cluster=True)
    if KEY_ID.fullmatch(owner):
        raise unknown_caller(owner)
    return Caller(key_id=owner or None)


def check_scope(caller: Caller, needed: Scope, what: str) -> None:
    """Raise HttpFaultRaised (403) if a caller's scope does not allow the action `what`."""
    if caller.scope not in ("admin", needed):
        raise HttpFaultRaised(faults.insufficient_scope(caller.scope, needed, what))


def unknown_caller(key: str | None) -> HttpFaultRaised:
    """Return the 401 error for an unknown key, or for a missing key if `key` is None."""
    text = "this API key is unknown, revoked or expired; `shoal apikey ls` lists the valid keys"
    if key is None:
        text = "an API key is required: send Authorization: Bearer <key>"
    return HttpFaultRaised(faults.unauthorized(text))


def spent(over: OverBudget) -> HttpFaultRaised:
    """Return the 429 error for a key whose budget is used up."""
    fault = faults.over_budget(over.code, over.message, over.limit, over.retry_after_s)
    return HttpFaultRaised(fault)


def hashed(key: str) -> str:
    """Return the stored form of a key: `sha256:` and its SHA-256 in hexadecimal."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def offered_key(authorization: str | None, x_api_key: str | None) -> str | None:
    """Return the API key of a request: the bearer token of `authorization` if there is one, else
    the value of `x-api-key`."""
    scheme, _, rest = (authorization or "").partition(" ")
    if scheme.casefold() == "bearer" and rest.strip():
        return rest.strip()
    return x_api_key or None


def is_known_key(key: str, hashes: Collection[str]) -> bool:
    """Return whether `hashes` has the hash of `key`, in constant time."""
    mine = hashed(key).encode()
    # no early exit: the time must not reveal which key matched
    return sum(hmac.compare_digest(mine, digest.encode()) for digest in hashes) > 0


def host_allowed(host: str | None, names: Collection[str]) -> bool:
    """Return whether a Host header is allowed: absent, an IP address, a loopback or a listed name.

    This stops DNS rebinding: an attacker's host name that resolves to this machine is refused.
    """
    if not host:
        return True
    parts = _split(f"//{host}")
    name = (parts and parts.hostname) or ""
    if is_loopback(name) or name in {listed.casefold() for listed in names}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def origin_allowed(origin: str | None, host: str | None, origins: Collection[str]) -> bool:
    """Return whether a web page of `origin` may send requests: the origin's host is the one in the
    Host header or a loopback address, or `origins` lists the origin."""
    if origin is None:
        return True
    if origin in origins or "*" in origins:
        return True
    parts = _split(origin)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        return False
    return is_loopback(parts.hostname) or parts.netloc == host


def page_allowed(origin: str | None, host: str | None, options: Options) -> bool:
    """Return whether a page of `origin` may send requests to this node. Pages of desktop programs
    may if the node listens only on loopback (decision 0081); for all others `origin_allowed`
    decides."""
    if origin_allowed(origin, host, options.origins):
        return True
    scheme, has_scheme, _ = (origin or "").partition("://")
    return is_loopback(options.host) and bool(has_scheme) and scheme in _APP_SCHEMES


def page_refused(origin: str | None) -> HttpFaultRaised:
    """Return the 403 error for a page whose origin is not allowed."""
    text = f"pages from {origin} are not allowed; add this origin to cors_origins"
    if origin == "null":
        text = (
            "pages without an origin (`Origin: null`) are not allowed, because every site "
            "can create one: "
            "serve the file over http://localhost instead of opening it from the disk"
        )
    return HttpFaultRaised(faults.forbidden(text))


@functools.lru_cache(1024)
def client_address(peer: str, forwarded: str | None, proxies: tuple[str, ...]) -> str:
    """Return the client's address: the peer's address, or if the peer is a proxy, the last address
    in X-Forwarded-For that is not a proxy. `proxies` has addresses and networks.

    An IPv6 address is returned as its /64 network, because one client usually has a whole /64.
    """
    client = peer
    steps = [step.strip() for step in (forwarded or "").split(",")]
    while steps and _is_proxy(client, proxies) and _address(steps[-1]) is not None:
        client = steps.pop()
    address = _address(client)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return client if address is None else str(address)


def _is_proxy(text: str, proxies: tuple[str, ...]) -> bool:
    address = _address(text)
    return address is not None and any(address in network for network in _networks(proxies))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an IP address, as IPv4 if it is IPv4-mapped; None for other text."""
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
    """Return the parts of a URL; None if its host is invalid (`//[::1`)."""
    try:
        return urlsplit(url)
    except ValueError:
        return None
