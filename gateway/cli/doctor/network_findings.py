"""Findings about addresses, keys, ports, peers and clocks.

Pure: facts in, `Finding`s out. A dialled address answers with ZMTP's greeting (64 bytes,
rfc.zeromq.org/spec/23). The greeting names the mechanism: CURVE if the node has a cluster key, NULL
if it has none. Only the running node can tell whether a key is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bus.links.cluster_key import ClusterKeys
from bus.process.endpoints import WILDCARDS, host_of, is_loopback
from bus.wire.messages.peers import PeerReading
from bus.wire.topology import NodeAddress, ranked
from gateway.cli.doctor.check import Finding

CLOCK_S = 1.0
"""A peer's clock may differ from this node's clock by this many seconds. A larger difference is a
warning, because logs of several nodes are merged by time."""
GREETING_BYTES = 64
SIGNATURE = b"\xff" + bytes(8) + b"\x7f" + b"\x03"
"""The first bytes of a ZMTP greeting: the signature and the major version. A ZMTP 3 socket that
receives these bytes replies with its whole greeting."""
Outcome = Literal["open", "closed", "silent", "unknown", "unreachable"]


@dataclass(frozen=True, slots=True)
class PeerLook:
    """The check of one address that this node dials. `problem` is what the running node reports
    about the address (empty: no problem, or no node runs). `linked`: the node has a link through
    this address. `outcome` and `greeting` describe a connection that doctor made just now. If that
    connection failed, `why` is the system's error."""

    address: str
    linked: bool
    problem: str = ""
    outcome: Outcome = "open"
    greeting: bytes = b""
    why: str = ""


def mechanism(greeting: bytes) -> str | None:
    """Return NULL, CURVE or PLAIN from a ZMTP 3 greeting; None for other bytes."""
    if len(greeting) < 32 or greeting[0] != 0xFF or not greeting[9] & 1 or greeting[10] < 3:
        return None
    return greeting[12:32].rstrip(b"\x00").decode("ascii", "replace")


def reach_check(listen: str, peers: Sequence[str], addresses: Iterable[NodeAddress]) -> Finding:
    """Check whether others can dial this node. `listen` and `peers` are the settings."""
    own = ranked(address for address in addresses if address.medium != "loopback")
    there = (
        ", ".join(f"{address.ip} ({address.medium.replace('_', ' ')})" for address in own) or "none"
    )
    name = "addresses"
    if not listen:
        return Finding(
            name,
            "ok",
            f"other nodes cannot join (cluster.listen is empty); this machine has: {there}",
        )
    if is_loopback(listen):
        abroad = [peer for peer in peers if not is_loopback(peer.rpartition(":")[0])]
        if abroad:
            text = f"listens at {listen}, which {abroad[0]} cannot reach; this machine has: {there}"
            return Finding(
                name,
                "warn",
                text,
                "run `shoal up --listen ADDRESS`, or 0.0.0.0 for every address",
            )
        return Finding(
            name,
            "ok",
            f"other machines cannot reach this node ({listen}); this machine has: {there}",
        )
    if not own:
        remedy = "plug in a cable, or turn Wi-Fi on"
        return Finding(name, "warn", "this machine has only a loopback address", remedy)
    literal = listen[0].isdigit() or ":" in listen
    if listen not in WILDCARDS and literal and listen not in {address.ip for address in own}:
        remedy = "set cluster.listen to an address of this machine, or to 0.0.0.0"
        return Finding(
            name,
            "error",
            f"{listen} is not an address of this machine, which has {there}",
            remedy,
        )
    return Finding(name, "ok", f"listens at {listen}; this machine has, best first: {there}")


def key_check(keys: ClusterKeys | None, trouble: str, *, beyond: bool) -> Finding:
    """Check the cluster key.

    `beyond`: the settings let this node connect to nodes on other machines. `trouble` says why the
    key file cannot be used.
    """
    name = "cluster key"
    if trouble:
        return Finding(
            name, "error", trouble, "correct the file, then check with `shoal keys show`"
        )
    if keys is None:
        if beyond:
            remedy = (
                "run `shoal keys init` on the cluster's first node and `shoal keys join` on "
                "the others"
            )
            return Finding(
                name, "error", "no cluster key, and nodes on other machines need one", remedy
            )
        return Finding(
            name, "ok", "no cluster key; one is needed only if the cluster spans several machines"
        )
    if keys.phase != "settled":
        remedy = "see `shoal keys show` for the next step"
        return Finding(name, "warn", f"a key rotation is in progress ({keys.phase})", remedy)
    return Finding(name, "ok", f"fingerprint {keys.current.fingerprint}, the same on every node")


def ports_check(taken: Mapping[str, str], listen: str, span: str) -> Finding:
    """Check whether the ports that other nodes dial are free. `taken` maps the use of each port
    that is not free to the problem."""
    name = "cluster ports"
    if not taken:
        return Finding(name, "ok", f"{span} are free at {listen}")
    text = "; ".join(f"{use}: {problem}" for use, problem in taken.items())
    return Finding(
        name,
        "error",
        text,
        "stop the programs that use them, or move all ports with `shoal up --base-port`",
    )


def door_check(address: str, closed: Mapping[str, str]) -> Finding:
    """Check whether this running node listens on the ports that other nodes dial. `closed` maps the
    use of each port without a listener to the problem."""
    name = "cluster port"
    if not closed:
        return Finding(name, "ok", f"other nodes reach it at {address}")
    text = "; ".join(f"{use}: {problem}" for use, problem in closed.items())
    remedy = (
        "stop the program that uses it, or run `shoal down` and `shoal up --base-port "
        "PORT`; see `shoal logs`"
    )
    return Finding(name, "error", text, remedy)


def peer_check(look: PeerLook, *, has_key: bool, macos: bool) -> Finding:
    """Check the connection from this node to an address that it dials."""
    name = f"peer {look.address}"
    if look.linked:
        return Finding(name, "ok", "linked")
    host, _, port = look.address.rpartition(":")
    if look.outcome == "open":
        return _judge_answer(name, look, has_key=has_key)
    if look.outcome == "unknown":
        remedy = "use its IP address, or correct the name (`.local` names need mDNS)"
        return Finding(name, "error", f"no such host ({look.why})", remedy)
    if look.outcome == "closed":
        remedy = (
            f"start the node there with `--listen`; check with `shoal config show` there that its "
            f"port is {port}"
        )
        return Finding(
            name, "error", "the machine answers, but nothing listens on this port", remedy
        )
    if look.outcome == "unreachable" and macos:
        remedy = (
            "allow the program that started shoal in System Settings, Privacy & Security, Local "
            "Network, or run it as a service (`shoal service install`), which needs no permission"
        )
        return Finding(
            name,
            "error",
            f"{look.why}: macOS may block this program from the local network",
            remedy,
        )
    remedy = (
        f"check that {host} is awake and on this network, and that no firewall blocks port {port}"
    )
    return Finding(name, "error", look.why or "no answer", remedy)


def refused_check(peer: PeerReading) -> Finding:
    """Report why this node and a peer reject each other."""
    remedy = "see `shoal nodes` on that node; until they agree, each node works alone"
    return Finding(f"node {peer.name or peer.node}", "error", peer.why, remedy)


def _judge_answer(name: str, look: PeerLook, *, has_key: bool) -> Finding:
    spoken = mechanism(look.greeting)
    if spoken is None:
        remedy = "use the `peers` port of that node (base port + 4), not its HTTP port"
        return Finding(name, "error", "the program that answers is not a shoal node", remedy)
    is_here = is_loopback(host_of(look.address))
    if spoken == "CURVE" and not has_key and not is_here:
        remedy = "run `shoal keys join` with that cluster's key"
        return Finding(name, "error", "that node requires a cluster key; this one has none", remedy)
    if spoken == "NULL" and has_key:
        remedy = "run `shoal keys join` there, then `shoal down` and `shoal up`"
        return Finding(name, "error", "that node has no cluster key; this one has one", remedy)
    if look.problem and "no answer" not in look.problem:
        return Finding(
            name, "error", f"that node rejects this node: {look.problem}", "see `shoal logs bus`"
        )
    if look.problem and has_key:
        remedy = "compare the fingerprints in `shoal keys show` here and there, then `shoal up`"
        return Finding(name, "error", "that node rejects this node's cluster key", remedy)
    if look.problem and spoken == "CURVE":
        text = (
            "that node rejects this machine's key, because it has a cluster key or another user "
            "runs it"
        )
        return Finding(name, "error", text, "run `shoal keys join` with that cluster's key")
    if look.problem:
        return Finding(
            name, "error", "that node listens but does not answer", "see `shoal logs` there"
        )
    return Finding(
        name, "ok", f"that node listens ({spoken}); `shoal up` shows whether it accepts this node"
    )


def clock_check(peers: Iterable[PeerReading]) -> Finding | None:
    """Check whether the clocks of linked peers agree with this node's clock. Returns None if no
    peer reports its clock."""
    offsets = [
        (peer, peer.clock_offset_s)
        for peer in peers
        if peer.status == "linked" and peer.clock_offset_s is not None
    ]
    if not offsets:
        return None
    off = [(peer, s) for peer, s in offsets if abs(s) - (peer.round_trip_s or 0.0) / 2 > CLOCK_S]
    if not off:
        worst = max(abs(s) for _, s in offsets)
        return Finding(
            "clocks", "ok", f"at most {max(worst, 0.001):.3f} s from {len(offsets)} other node(s)"
        )
    text = ", ".join(
        f"{peer.name or peer.node} is {abs(s):.1f} s {'ahead' if s > 0 else 'behind'}"
        for peer, s in off
    )
    remedy = (
        "synchronize both with a time server: `sudo timedatectl set-ntp true`; on "
        "macOS System Settings, "
        "General, Date & Time"
    )
    return Finding("clocks", "warn", f"{text}; the limit is {CLOCK_S:g} s", remedy)
