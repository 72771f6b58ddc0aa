"""Talks to the network: the checks between this node and other nodes.

A running node reports its peers. This command connects to an address itself only if the node has no
link to it. It closes the connection after ZMTP's greeting; the node at that address may log the
attempt once.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from bus.links.cluster_key import ClusterKeys
from bus.links.keyring import read_keys
from bus.membership.peer_table import SAME_ID
from bus.process.endpoints import WILDCARDS, host_of, is_loopback
from bus.process.interfaces import addresses_up
from bus.wire.errors import BadKey
from bus.wire.messages.peers import PeerReading, PeersReading
from bus.wire.topology import NodeAddress
from conf.ports import PORTS
from conf.settings import Settings
from gateway.cli.doctor.check import Finding
from gateway.cli.doctor.fixes import fix_by_adding
from gateway.cli.doctor.network_findings import (
    GREETING_BYTES,
    SIGNATURE,
    Outcome,
    PeerLook,
    clock_check,
    door_check,
    key_check,
    peer_check,
    ports_check,
    reach_check,
    refused_check,
)
from gateway.cli.node import processes
from gateway.cli.node.node_state import NodeState

DIAL_S = 3.0
GREETING_S = 2.0
UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


def network_checks(settings: Settings, state: NodeState | None) -> Iterator[Finding]:
    """Yield the findings about this node's connections to other nodes. Findings about causes come
    before findings about their effects.

    `state` is the running node's; None if no node answers.
    """
    cluster = settings.cluster
    card = next((c for c in state.cards if c.node == state.node), None) if state else None
    yield reach_check(cluster.listen, cluster.peers, card.ips if card else own_addresses())
    hosts = (cluster.listen, *(host_of(peer) for peer in cluster.peers))
    beyond = any(host and not is_loopback(host) for host in hosts)
    keys, trouble = _keys(settings)
    yield key_check(keys, trouble, beyond=beyond)
    if cluster.listen:
        yield _door(settings, running=state is not None)
    reading = state.peers.get(state.node) if state else None
    for peer in refused_peers(reading):
        yield refused_check(peer)
    for address in addresses_to_dial(cluster.peers, reading):
        look = _look(address, reading)
        yield peer_check(look, has_key=keys is not None, macos=sys.platform == "darwin")
    clocks = clock_check(reading.peers) if reading else None
    if clocks is not None:
        yield clocks


def addresses_to_dial(peers: tuple[str, ...], reading: PeersReading | None) -> list[str]:
    """Return the addresses to check: those in the setting `peers`, and according to `reading`,
    addresses at which no member answered and addresses of silent peers. Addresses of nodes known to
    be of another cluster or version are left out."""
    reasons = {peer.why for peer in refused_peers(reading)}
    strangers = [stranger.partition(": ") for stranger in (reading.strangers if reading else ())]
    apart = {address for address, _, why in strangers if why in reasons}
    lost = [
        peer.addresses[0]
        for peer in (reading.peers if reading else ())
        if peer.status == "silent" and peer.addresses
    ]
    vain = [address for address, _, _ in strangers]
    return [peer for peer in dict.fromkeys((*peers, *vain, *lost)) if peer not in apart]


def refused_peers(reading: PeersReading | None) -> list[PeerReading]:
    """Return the nodes that this node rejects or that reject this node, and nodes whose id another
    running node has."""
    return [
        peer
        for peer in (reading.peers if reading else ())
        if peer.status == "refused" or peer.why.startswith(SAME_ID)
    ]


def _keys(settings: Settings) -> tuple[ClusterKeys | None, str]:
    try:
        return read_keys(settings.key_files.key), ""
    except BadKey as error:
        return None, str(error)


def _door(settings: Settings, *, running: bool) -> Finding:
    listen, first = settings.cluster.listen, settings.port_of("peers")
    if running:
        near = "127.0.0.1" if listen in WILDCARDS else listen
        return door_check(f"{near}:{first}", _but_http(processes.closed_ports(settings)))
    uses = [(use, row) for use, row in PORTS.items() if use != "http"]
    last = max(settings.port_of(use) + row.count - 1 for use, row in uses)
    span = f"{settings.port_of('control')} to {last}"
    return ports_check(_but_http(processes.unusable_ports(settings)), listen, span)


def _but_http(ports: dict[str, str]) -> dict[str, str]:
    return {use: problem for use, problem in ports.items() if use != "http"}


def _look(address: str, reading: PeersReading | None) -> PeerLook:
    strangers = (stranger.partition(": ") for stranger in (reading.strangers if reading else ()))
    problem = {where: why for where, _, why in strangers}.get(address, "")
    peer = _peer_at(address, reading)
    if peer is not None and not problem:
        if peer.status == "linked":
            return PeerLook(address, linked=True)
        problem = peer.why
    return replace(dial(address), problem=problem)


def _peer_at(address: str, reading: PeersReading | None) -> PeerReading | None:
    peers = reading.peers if reading else ()
    exact = [peer for peer in peers if address in peer.addresses]
    near = [peer for peer in peers if peer.host == address.rpartition(":")[0]]
    return next(iter((*exact, *near)), None)


def dial(address: str) -> PeerLook:
    """Connect to `host:port` and read the greeting of ZMTP. Waits up to DIAL_S and GREETING_S
    seconds."""
    where, _, port = address.rpartition(":")
    try:
        with socket.create_connection((where.strip("[]"), int(port)), timeout=DIAL_S) as line:
            return PeerLook(address, linked=False, greeting=_greeting(line))
    except OSError as error:
        return PeerLook(
            address, linked=False, outcome=_outcome(error), why=error.strerror or str(error)
        )


def _greeting(line: socket.socket) -> bytes:
    line.settimeout(GREETING_S)
    greeting = b""
    with contextlib.suppress(OSError):
        line.sendall(SIGNATURE)
        while len(greeting) < GREETING_BYTES and (
            more := line.recv(GREETING_BYTES - len(greeting))
        ):
            greeting += more
    return greeting


def _outcome(error: OSError) -> Outcome:
    if isinstance(error, socket.gaierror):
        return "unknown"
    if isinstance(error, ConnectionRefusedError):
        return "closed"
    return "unreachable" if error.errno in UNREACHABLE else "silent"


def own_addresses() -> tuple[NodeAddress, ...]:
    """Return the IPv4 addresses of interfaces that are up, as a running node announces them."""
    return tuple(address for address in addresses_up() if ":" not in address.ip)


def traces(settings: Settings, _running: bool) -> Finding:
    """Check that traces can be exported, and that something listens at otlp.endpoint."""
    endpoint = settings.otlp.endpoint
    if not endpoint:
        return Finding("traces", "ok", "not exported (otlp.endpoint is not set)")
    names = ("opentelemetry", "opentelemetry.proto")
    if not all(importlib.util.find_spec(name) for name in names):
        text = f"otlp.endpoint is {endpoint}, but the extra `otlp` is not installed"
        fix = fix_by_adding("opentelemetry-proto")
        remedy = f"run `shoal doctor --fix`, or {fix.words}, then `shoal restart`"
        return Finding("traces", "error", text, remedy, fix)
    url = urlsplit(endpoint)
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        socket.create_connection((url.hostname or "", port), DIAL_S).close()
    except OSError as error:
        text = f"cannot connect to {endpoint}: {error}"
        return Finding("traces", "warn", text, "start the collector, or correct otlp.endpoint")
    return Finding("traces", "ok", f"exported to {endpoint}")
