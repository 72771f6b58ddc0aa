"""Talks to the local network by mDNS: advertises this node and receives adverts of other nodes. No
other module uses zeroconf.

Adverts are hints (`bus.membership.mdns_hints`). Zeroconf waits for the network when it registers a
service, so it has its own thread; the switchboard calls `take_news` for the received adverts.
Adverts contain no secret: namespace, node id, port, addresses, and fingerprints of the cluster's
keys.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address

from zeroconf import (
    Error,
    InterfaceChoice,
    IPVersion,
    ServiceBrowser,
    ServiceInfo,
    ServiceListener,
    Zeroconf,
)

from bus.membership.mdns_hints import SERVICE, Advert, node_in, parse_advert
from bus.process.endpoints import WILDCARDS
from bus.process.logs import Log
from bus.wire.ids import NodeId
from bus.wire.topology import ip_in

REFRESH_S = 5.0
RETRY_S = 30.0
ASK_MS = 1_000
TTL_S = 120
"""How long other nodes keep the record of a killed node."""
MAX_NAMES = 256
"""Maximum number of other nodes' services to follow; further services are ignored."""
LAST_WORDS_S = 2.0

News = tuple[NodeId, Advert | None]
"""The current advert of a node; None: the node has withdrawn it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where this node listens. `listen` is a host; a wildcard such as 0.0.0.0 means all of the
    machine's addresses."""

    listen: str
    port: int


class Discovery:
    """Advertises this node and receives adverts of other nodes, until it is closed. A thread calls
    `advert` regularly to get the current advert of this node."""

    def __init__(self, place: Place, advert: Callable[[], Advert], log: Log) -> None:
        self._place = place
        self._advert = advert
        self._log = log
        self._heard: deque[News] = deque(maxlen=MAX_NAMES)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="discovery", daemon=True)
        self._thread.start()

    def take_news(self) -> list[News]:
        """Return the adverts received since the last call, oldest first. If there are too many,
        only the latest `MAX_NAMES` are returned."""
        return [self._heard.popleft() for _ in range(len(self._heard))]

    def close(self) -> None:
        """Withdraw the advert, and wait a moment while it is sent."""
        self._stop.set()
        self._thread.join(LAST_WORDS_S)

    def _run(self) -> None:
        last_error = ""
        while not self._stop.is_set():
            try:
                self._serve()
            except (OSError, Error, RuntimeError) as error:
                if last_error != str(error):
                    last_error = str(error)
                    self._log.warning(
                        "cannot advertise this node by mDNS; trying again", why=last_error
                    )
            self._stop.wait(RETRY_S)

    def _serve(self) -> None:
        mine = self._advert()
        every = self._place.listen in WILDCARDS
        listen = InterfaceChoice.All if every else [socket.gethostbyname(self._place.listen)]
        zeroconf = Zeroconf(interfaces=listen, ip_version=IPVersion.V4Only)
        try:
            ServiceBrowser(zeroconf, SERVICE, listener=Ears(mine.node, self._heard))
            is_announced = self._say(zeroconf, mine, first=True)
            while not self._stop.wait(REFRESH_S):
                if every:
                    zeroconf.update_interfaces()
                now = self._advert()
                if now != mine:
                    mine = now
                    is_announced = self._say(zeroconf, mine, first=not is_announced) or is_announced
        finally:
            zeroconf.close()

    def _say(self, zeroconf: Zeroconf, advert: Advert, *, first: bool) -> bool:
        """Send this node's advert. Return False if the advert has no IPv4 address."""
        hosts = (address.rpartition(":")[0] for address in advert.addresses)
        ips = [host for host in hosts if isinstance(ip_in(host), IPv4Address)]
        if not ips:
            self._log.warning("cannot advertise this node by mDNS: it has no IPv4 address")
            return False
        info = ServiceInfo(
            SERVICE,
            advert.service_name,
            port=self._place.port,
            properties=advert.properties(),
            server=f"{advert.node}.local.",
            addresses=[socket.inet_aton(ip) for ip in ips],
            host_ttl=TTL_S,
            other_ttl=TTL_S,
        )
        if first:
            # The name is unique, so other nodes need not be asked about it (1.7 s).
            zeroconf.register_service(info, cooperating_responders=True)
        else:
            zeroconf.update_service(info)
        return True


class Ears(ServiceListener):
    """Receives zeroconf's callbacks, in zeroconf's own thread."""

    def __init__(self, me: NodeId, heard: deque[News]) -> None:
        self._me = me
        self._heard = heard
        self._names: set[NodeId] = set()

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """Record the advert of another node's service."""
        node = node_in(name)
        if node is None or node == self._me:
            return
        if node not in self._names and len(self._names) >= MAX_NAMES:
            return
        self._names.add(node)
        info = zc.get_service_info(type_, name, timeout=ASK_MS)
        if info is None:
            return
        ips = info.parsed_addresses(IPVersion.V4Only)
        self._heard.append((node, parse_advert(name, info.properties, ips, info.port)))

    def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """Record that another node's advert has changed."""
        self.add_service(zc, type_, name)

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """Record that a node has withdrawn its advert."""
        node = node_in(name)
        if node is not None and node in self._names:
            self._names.discard(node)
            self._heard.append((node, None))
