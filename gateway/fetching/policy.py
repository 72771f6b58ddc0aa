"""The policy: which pages may be fetched for clients. By default none may; otherwise the operator's
list decides, within limits of size and time.

Pure. An entry of the list may be a name (`example.org`, `*.example.org`, `*`); pages of that name
are fetched at public addresses only. Or the entry is a network or an address (`10.0.0.0/8`); pages
at these addresses are fetched under any name, even if the addresses are private. Both kinds of
entry may have a port; without a port, 80 and 443 are allowed. A single name with a port is fetched
at a private address too, because an operator who writes `nas.lan:8080` intends that.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bus.wire.errors import ConfigError
from gateway.fetching.addresses import OWN, PUBLIC, AddressKind, Network, kind_of
from gateway.fetching.refusals import FetchRefused
from gateway.fetching.url import Address, FetchUrl, read_name, read_url

USUAL_PORTS = (80, 443)
SEARCH_BYTES = 2 << 20
"""Maximum size of a search engine's answer, in bytes."""
READ_TYPES = (
    "text/*", "application/json", "application/xhtml+xml", "application/xml",
    "application/*+json", "application/*+xml",
)  # fmt: skip
"""Content types of pages that may be read, unless the settings name others."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """An entry of the operator's list: names or a network, and the port if the entry has one."""

    name: str = ""
    network: Network | None = None
    port: int | None = None

    def fits_url(self, url: FetchUrl) -> bool:
        """Return whether the entry may allow a URL. The URL's addresses are not known yet."""
        ports = USUAL_PORTS if self.port is None else (self.port,)
        return url.port in ports and (self.network is not None or self._names(url.host))

    def fits(self, url: FetchUrl, address: Address, kind: AddressKind) -> bool:
        """Return whether the entry allows a URL at an address of that kind."""
        if not self.fits_url(url):
            return False
        if kind.opens in ("always", "never"):
            opened = kind.opens == "always"
            return opened and (self.network is None or address in self.network)
        if self.network is not None:
            is_alone = self.network.num_addresses == 1
            return address in self.network and (is_alone or kind.opens == "listed")
        return kind.opens == "listed" and self.port is not None and "*" not in self.name

    def _names(self, host: str) -> bool:
        if self.name.startswith("*."):
            return host.endswith(self.name[1:])
        return self.name in ("*", host)


def read_allowance(text: str) -> Allowance:
    """Parse an entry of the list. Raises ConfigError."""
    whole = text.strip()
    host, mark, port = whole.rpartition(":")
    if not mark or ("]" in port) or (":" in host and not host.startswith("[")):
        host, port = whole, ""
    if port and not (port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigError(f"fetch.allow: {text!r}: the port is invalid")
    number = int(port) if port else None
    try:
        network = ipaddress.ip_network(host.strip("[]"), strict=False)
        return Allowance(network=network, port=number)
    except ValueError:
        pass
    stem = host.removeprefix("*.")
    try:
        name = "*" if host == "*" else host[: len(host) - len(stem)] + read_name(stem)
    except FetchRefused as error:
        raise ConfigError(
            f"fetch.allow: {text!r} is neither a host such as example.org or *.example.org, nor an "
            f"address or network such as 10.0.0.0/8, nor one of these with a port: {error}"
        ) from None
    return Allowance(name=name, port=number)


@dataclass(frozen=True, slots=True)
class FetchPolicy:
    """Which pages may be fetched, and the limits for each page. `types` are content types with `*`
    as a wildcard."""

    enabled: bool = False
    allow: tuple[Allowance, ...] = (Allowance(name="*"),)
    largest_bytes: int = 5 << 20
    whole_s: float = 20.0
    redirects: int = 5
    types: tuple[str, ...] = READ_TYPES

    def check_url(self, url: FetchUrl) -> None:
        """Raise FetchRefused if no entry allows the URL. The name of such a URL is never
        resolved."""
        if not self.enabled:
            raise FetchRefused(
                "disabled", "fetching is off on this node; its operator can set fetch.enabled"
            )
        if any(entry.fits_url(url) for entry in self.allow):
            return
        raise FetchRefused("not_allowed", f"fetch.allow has no entry for {url.authority}")

    def check_addresses(
        self, url: FetchUrl, addresses: Sequence[Address], own: Collection[Address]
    ) -> None:
        """Raise FetchRefused unless connections to all addresses of a URL are allowed. `own` are
        this machine's addresses."""
        for address in addresses:
            kind = kind_of(address)
            if kind is PUBLIC and address in own:
                kind = OWN
            if any(entry.fits(url, address, kind) for entry in self.allow):
                continue
            if kind is PUBLIC:
                raise FetchRefused("not_allowed", f"fetch.allow has no entry for {url.authority}")
            raise FetchRefused(
                "address", f"{url.host} is {kind.what}, and fetching from it is not allowed"
            )


def policy_of_search(url: str) -> FetchPolicy:
    """Return a policy that allows only the host and port of a search engine. Raises ConfigError."""
    try:
        at = read_url(url)
    except FetchRefused as error:
        raise ConfigError(f"tools.search_url: {error}") from None
    host = f"[{at.host}]" if ":" in at.host else at.host
    return FetchPolicy(
        enabled=True,
        allow=(read_allowance(f"{host}:{at.port}"),),
        largest_bytes=SEARCH_BYTES,
        redirects=0,
        types=("application/json", "text/html"),
    )
