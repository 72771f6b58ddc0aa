"""Classifies addresses for a fetch. A public address may be dialled, some other kinds only if the
operator lists them, and the remaining kinds never.

Pure. The tables follow IANA's registries of special addresses. `ipaddress.is_global` is not used:
it allows multicast and IPv4 addresses inside IPv6.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Literal, NamedTuple

from gateway.fetching.url import Address

Opens = Literal["always", "listed", "alone", "never"]
"""When a connection to an address is allowed: always, if the operator lists its network, only if
the operator lists this single address, or never."""
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressKind(NamedTuple):
    """A kind of address, described in words, and when an address of this kind may be dialled."""

    what: str
    opens: Opens


PUBLIC = AddressKind("a public address", "always")
OWN = AddressKind("an address of this machine", "listed")
_METADATA = AddressKind("a cloud metadata service", "alone")
_WRAPPED = AddressKind("an IPv4 address inside an IPv6 address", "never")
_RESERVED = AddressKind("a reserved address", "never")
_DOCUMENTED = AddressKind("an address reserved for documentation", "never")
_MULTICAST = AddressKind("a multicast address", "never")
_LOOPBACK = AddressKind("this machine", "listed")
_PRIVATE = AddressKind("a private network", "listed")
_LINK = AddressKind("the local link", "listed")
_SHARED = AddressKind("a carrier's shared network", "listed")


def _table(rows: Iterable[tuple[str, AddressKind]]) -> tuple[tuple[Network, AddressKind], ...]:
    return tuple((ipaddress.ip_network(network), kind) for network, kind in rows)


_KINDS = {
    4: _table((
        *((f"{address}/32", _METADATA) for address in (
            "169.254.169.254", "169.254.169.123", "169.254.169.253", "169.254.170.2",
            "169.254.170.23", "100.100.100.200", "168.63.129.16", "192.0.0.192",
        )),
        ("0.0.0.0/8", _RESERVED), ("10.0.0.0/8", _PRIVATE), ("100.64.0.0/10", _SHARED),
        ("127.0.0.0/8", _LOOPBACK), ("169.254.0.0/16", _LINK), ("172.16.0.0/12", _PRIVATE),
        ("192.0.0.0/24", _RESERVED), ("192.0.2.0/24", _DOCUMENTED), ("192.31.196.0/24", _RESERVED),
        ("192.52.193.0/24", _RESERVED), ("192.88.99.0/24", _WRAPPED),
        ("192.168.0.0/16", _PRIVATE), ("192.175.48.0/24", _RESERVED),
        ("198.18.0.0/15", _PRIVATE), ("198.51.100.0/24", _DOCUMENTED),
        ("203.0.113.0/24", _DOCUMENTED), ("224.0.0.0/4", _MULTICAST), ("240.0.0.0/4", _RESERVED),
        ("0.0.0.0/0", PUBLIC),
    )),
    6: _table((
        *((f"{address}/128", _METADATA) for address in (
            "fd00:ec2::254", "fd00:ec2::123", "fd00:ec2::253", "fd00:ec2::23", "fd20:ce::254",
        )),
        ("::1/128", _LOOPBACK), ("::/96", _WRAPPED), ("::ffff:0:0/96", _WRAPPED),
        ("::ffff:0:0:0/96", _WRAPPED), ("64:ff9b:1::/48", _WRAPPED), ("2001::/32", _WRAPPED),
        ("2001::/23", _RESERVED), ("2001:db8::/32", _DOCUMENTED), ("2002::/16", _WRAPPED),
        ("2620:4f:8000::/48", _RESERVED), ("3ffe::/16", _RESERVED), ("3fff::/20", _DOCUMENTED),
        ("fc00::/7", _PRIVATE), ("ff00::/8", _MULTICAST),
        ("2000::/3", PUBLIC), ("::/0", _RESERVED),
    )),
}  # fmt: skip
"""The networks of each IP version. The first network that contains an address decides its kind."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)
"""Marks of ISATAP addresses. The upper half of the last 64 bits has one of these values, and the
lower half is an IPv4 address."""


def kind_of(address: Address) -> AddressKind:
    """Return the kind of an address. A NAT64 address (an IPv4 address inside IPv6) has the kind of
    its IPv4 address if that is public, because a network without IPv4 reaches all IPv4 hosts that
    way."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return _RESERVED
        if address in _NAT64:
            inner = kind_of(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
            return inner if inner.opens == "always" else _WRAPPED
        if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
            return _WRAPPED
    return next(kind for network, kind in _KINDS[address.version] if address in network)
