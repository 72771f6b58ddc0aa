"""Who may come in: API keys by their hashes, Host names, web origins.

Pure. Keys are long and random, so one SHA-256 is enough to keep them by (there is nothing to
guess); a comparison takes the same time for every mistake. A browser's page may call only from
an origin that is ours or listed, and only by a Host name that no stranger's DNS can point here.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

from bus.process.endpoints import is_loopback
from bus.wire.errors import ConfigError

OPEN_PATHS = frozenset({"/", "/health", "/livez", "/readyz"})
"""Answered without a key: they tell nothing but that somebody is here."""


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


def check_exposure(host: str, hashes: Collection[str]) -> None:
    """Refuse to listen beyond this machine without keys. Raises ConfigError."""
    if not is_loopback(host) and not hashes:
        raise ConfigError(
            f"http_host {host!r} can be reached from other machines, so at least one API key is "
            "needed: set api_keys in shoal.toml (or SHOAL_API_KEYS), or http_host = '127.0.0.1'"
        )


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


def _split(url: str) -> SplitResult | None:
    """Return the parts of a URL, None for one whose host is none (`//[::1`)."""
    try:
        return urlsplit(url)
    except ValueError:
        return None
