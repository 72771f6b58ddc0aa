"""Nodes that find each other by mDNS on this machine's loopback, without any `--peers`."""

from __future__ import annotations

import random
import secrets
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from zeroconf import IPVersion, ServiceInfo, Zeroconf

from bus.links.cluster_key import ClusterKey
from bus.membership.discovery import Ears, News
from bus.membership.mdns_hints import SERVICE
from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeersReading
from tests.harness.joined_switchboards import JoinedSwitchboards, boards
from tests.harness.seeds import seed_for

SITE = f"site-{secrets.token_hex(4)}"
"""Other runs of these tests may be on this machine, too."""


@pytest.fixture
def cluster() -> Iterator[JoinedSwitchboards]:
    with boards() as made:
        yield made


@contextmanager
def advertising(node: str, port: int, properties: dict[str, str]) -> Iterator[None]:
    """A record that anybody could send."""
    zeroconf = Zeroconf(interfaces=["127.0.0.1"], ip_version=IPVersion.V4Only)
    info = ServiceInfo(
        SERVICE, f"{node}.{SERVICE}", port=port, properties=properties,
        server=f"{node}.local.", addresses=[socket.inet_aton("127.0.0.1")],
    )  # fmt: skip
    try:
        zeroconf.register_service(info, cooperating_responders=True)
        yield
    finally:
        zeroconf.close()


def names(found: JoinedSwitchboards) -> dict[str, set[str]]:
    return {name: found.linked(name) for name in found.boards}


def test_nodes_with_one_key_find_each_other_without_seeds(cluster: JoinedSwitchboards) -> None:
    key = ClusterKey(secrets.token_bytes(32))
    for name in "ab":
        cluster.start(name, key=key, namespace=SITE, discovery=True)
    cluster.until(lambda: names(cluster) == {"a": {"b"}, "b": {"a"}}, "they find each other")
    got: list[PeersReading] = []
    cluster.client("a", "hearer").hear("reading.peers.n-a", lambda _, one: got.append(one.message))
    cluster.until(lambda: got and got[-1].peers, "a reading")
    assert got[-1].peers[0].found_by in ("mdns", "hello"), "whoever was first"
    cluster.boards.pop("b").close()
    cluster.until(lambda: not cluster.linked("a"), "b has left")
    cluster.start("b", key=key, namespace=SITE, discovery=True)
    cluster.until(lambda: cluster.linked("a") == {"b"}, "b is back")


def test_other_namespaces_and_other_keys_are_not_dialled(cluster: JoinedSwitchboards) -> None:
    cluster.start("a", namespace=SITE, discovery=True)
    cluster.start("x", namespace=f"{SITE}-other", discovery=True)
    cluster.start("b", namespace=SITE, discovery=True)
    key = ClusterKey(secrets.token_bytes(32))
    cluster.start("k", namespace=SITE, discovery=True, key=key)
    cluster.until(lambda: cluster.linked("a") == {"b"}, "kin")
    cluster.settle(100)
    assert names(cluster) == {"a": {"b"}, "b": {"a"}, "x": set(), "k": set()}
    assert all("refused" not in log.getvalue() for log in cluster.logs.values()), "nobody called"


def test_bad_and_stale_records_do_no_harm(
    cluster: JoinedSwitchboards,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bus.membership.mdns_hints.TRY_S", 0.3)
    monkeypatch.setattr("bus.membership.mdns_hints.REST_S", 0.01)
    monkeypatch.setattr("bus.membership.mdns_hints.MAX_TRIES", 2)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        good = {"ns": SITE, "keys": "", "boot": "gone"}
        with (
            advertising("n-killed", port, good),
            advertising("n-long", port, {**good, "ns": "x" * 200}),
            advertising("n-key", port, {**good, "keys": "not-a-key"}),
        ):
            board = cluster.start("a", namespace=SITE, discovery=True)
            peers = board.peers
            assert peers is not None
            seen: set[NodeId] = set()

            def heard() -> bool:
                seen.update(peers.membership.hints.of)
                return NodeId("n-killed") in seen

            cluster.until(heard, "the record of a killed node")
            cluster.until(lambda: not peers.membership.hints.of, "it is forgotten")
            assert seen == {NodeId("n-killed")}
            assert peers.membership.peers == {} and peers.membership.lines == {}


def test_a_node_that_may_not_use_the_network_says_so_and_serves(
    cluster: JoinedSwitchboards,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**_: object) -> None:
        raise OSError("no such device")

    monkeypatch.setattr("bus.membership.discovery.Zeroconf", refuse)
    cluster.start("a", namespace=SITE, discovery=True)
    log = cluster.logs["a"]
    cluster.until(lambda: "cannot advertise this node by mDNS" in log.getvalue(), "it is said")
    cluster.start("b", "a", namespace=SITE)
    cluster.until(lambda: cluster.linked("a") == {"b"}, "seeds suffice")


def test_garbage_on_the_multicast_address_disturbs_nobody(cluster: JoinedSwitchboards) -> None:
    chance = random.Random(seed_for("GARBAGE", 3))
    cluster.start("a", namespace=SITE, discovery=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as rude:
        rude.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        for size in range(300):
            rude.sendto(chance.randbytes(1 + size * 4), ("224.0.0.251", 5353))
            cluster.settle(1)
    cluster.start("b", namespace=SITE, discovery=True)
    cluster.until(lambda: names(cluster) == {"a": {"b"}, "b": {"a"}}, "they find each other")


def test_of_too_many_names_no_more_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.membership.discovery.MAX_NAMES", 2)
    heard: deque[News] = deque()
    zeroconf = Zeroconf(interfaces=["127.0.0.1"], ip_version=IPVersion.V4Only)
    ears = Ears(NodeId("n-me"), heard)
    good = {"ns": SITE, "keys": "", "boot": "b"}
    try:
        with advertising("n-1", 7, good), advertising("n-2", 7, good), advertising("n-3", 7, good):
            for name in ("n-me", "n-1", "n-1", "n-2", "n-3"):
                ears.add_service(zeroconf, SERVICE, f"{name}.{SERVICE}")
            assert [node for node, _ in heard] == ["n-1", "n-1", "n-2"]
            ears.remove_service(zeroconf, SERVICE, f"n-1.{SERVICE}")
            ears.remove_service(zeroconf, SERVICE, f"n-unknown.{SERVICE}")
            ears.add_service(zeroconf, SERVICE, f"n-3.{SERVICE}")
        assert heard[-2] == ("n-1", None)
        node, advert = heard[-1]
        assert node == "n-3" and advert is not None and advert.addresses == ("127.0.0.1:7",)
    finally:
        zeroconf.close()
