"""Adverts of nodes on the local network, and which of them to try.

Pure: time arrives as `now`. An advert (mDNS, RFC 6762 and 6763) is a hint and proves nothing:
anyone can send one, and the advert of a killed node outlives it. An advert makes no node a voter or
a member. It only gives an address that `bus.membership.membership` dials and that may be wrong.
Adverts of other namespaces or keys are not dialled. The number of stored adverts is limited. An
address is tried for a moment, then again after ever longer pauses, and dropped after `MAX_TRIES`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from bus.membership.member_types import SILENT_S
from bus.wire.ids import NodeId
from bus.wire.topology import ip_in

SERVICE = "_shoal._tcp.local."
MAX_HINTS = 64
MAX_ADDRESSES = 8
"""Maximum addresses of one advert."""
MAX_TRIED = 8
"""Maximum number of addresses that are tried at the same time."""
MAX_TRIES = 10
TRY_S = SILENT_S
REST_S, MAX_REST_S = 5.0, 300.0
MAX_KEYS = 4
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_NAMESPACE_LENGTH = 64
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Advert:
    """A node's announcement of its addresses. `keys`: the fingerprints of its cluster's valid keys;
    empty if it has none. `addresses`: the `ip:port`s at which it accepts hellos."""

    node: NodeId
    namespace: str
    keys: tuple[str, ...]
    boot: str
    addresses: tuple[str, ...] = ()

    @property
    def service_name(self) -> str:
        """Return the name of this advert's service in mDNS; the node id makes the name unique."""
        return f"{self.node}.{SERVICE}"

    def properties(self) -> dict[str, str]:
        """Return the TXT record. It contains the process's boot id, so that a restarted node sends
        a new advert."""
        return {"ns": self.namespace, "keys": ",".join(self.keys), "boot": self.boot}

    def is_kin(self, other: Advert) -> bool:
        """Return whether both adverts claim the same cluster."""
        shared = bool(set(self.keys) & set(other.keys)) or not (self.keys or other.keys)
        return self.namespace == other.namespace and shared


def node_in(service_name: str) -> NodeId | None:
    """Return the node in a service's name; None if the service is not ours."""
    name = service_name.removesuffix("." + SERVICE)
    return NodeId(name) if name != service_name and _NODE.fullmatch(name) else None


def parse_advert(
    service_name: str,
    properties: Mapping[bytes, bytes | None],
    ips: Iterable[str],
    port: int | None,
) -> Advert | None:
    """Parse a record; None if it is malformed. Its content is not trusted."""
    node = node_in(service_name)
    fields = (properties.get(key) or b"" for key in (b"ns", b"keys", b"boot"))
    if node is None or port is None or not 0 < port < 65536:
        return None
    try:
        namespace, keys, boot = (field.decode() for field in fields)
    except UnicodeDecodeError:
        return None
    named = tuple(keys.split(",")) if keys else ()
    if not 0 < len(namespace) <= _NAMESPACE_LENGTH or len(named) > MAX_KEYS:
        return None
    if any(not _FINGERPRINT.fullmatch(key) for key in named):
        return None
    addresses = tuple(dict.fromkeys(f"{ip}:{port}" for ip in ips if _is_dialled(ip)))
    if not addresses:
        return None
    return Advert(node, namespace, named, boot[:64], addresses[:MAX_ADDRESSES])


def _is_dialled(ip: str) -> bool:
    """Return whether `ip` is an IPv4 address of a single machine."""
    address = ip_in(ip)
    if not isinstance(address, IPv4Address):
        return False
    return not (address.is_multicast or address.is_unspecified or ip == "255.255.255.255")


@dataclass(slots=True)
class Hint:
    """The last advert of a node. So far `tries` attempts were made to connect to its addresses.
    `tried` is the address that is tried now, until `until` (monotonic seconds); None: none."""

    advert: Advert
    tries: int = 0
    next_at: float = 0.0
    tried: str | None = None
    until: float = 0.0


class Hints:
    """The stored adverts whose addresses may still be tried, at most `MAX_HINTS`."""

    def __init__(self) -> None:
        self.of: dict[NodeId, Hint] = {}

    def hear(self, advert: Advert, now: float) -> None:
        """Store an advert of a node of our own cluster. A changed advert is tried at once."""
        hint = self.of.get(advert.node)
        if hint is not None and hint.advert == advert:
            return
        if hint is None and len(self.of) >= MAX_HINTS:
            worst = max(self.of.values(), key=lambda hint: hint.tries)
            if not worst.tries:
                return
            del self.of[worst.advert.node]
        until, tried = (0.0, None) if hint is None else (hint.until, hint.tried)
        self.of[advert.node] = Hint(advert, next_at=now, tried=tried, until=until)

    def lose(self, node: NodeId) -> None:
        """Drop the advert of a node, which was withdrawn or has expired. A running try
        continues."""
        hint = self.of.get(node)
        if hint is not None:
            hint.tries, hint.next_at = MAX_TRIES, hint.until

    def named(self, address: str) -> bool:
        """Return whether a stored advert has this address."""
        return any(address in hint.advert.addresses for hint in self.of.values())

    def tired(self, now: float, met: Collection[NodeId]) -> list[str]:
        """Return the addresses whose attempt ends now, because its time is over or because their
        node is among `met` (nodes that are linked by now). Drop the adverts of `met` nodes and
        adverts that were tried too often. Call this before `due`."""
        addresses: list[str] = []
        for node, hint in list(self.of.items()):
            if hint.tried is not None and (now >= hint.until or node in met):
                addresses.append(hint.tried)
                hint.tried = None
            if node in met or (hint.tried is None and hint.tries >= MAX_TRIES):
                del self.of[node]
        return addresses

    def due(self, now: float) -> list[str]:
        """Return addresses to try now, each for `TRY_S`."""
        room = MAX_TRIED - sum(hint.tried is not None for hint in self.of.values())
        chosen: list[str] = []
        for hint in self.of.values():
            if hint.tried is not None or now < hint.next_at:
                continue
            if room <= 0:
                break
            room -= 1
            addresses = hint.advert.addresses
            hint.tried, hint.until = addresses[hint.tries % len(addresses)], now + TRY_S
            hint.next_at = hint.until + min(MAX_REST_S, REST_S * 2**hint.tries)
            hint.tries += 1
            chosen.append(hint.tried)
        return chosen
