from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import NodeId
from bus.wire.topology import (
    PRIORS,
    RANKING,
    THUNDERBOLT,
    Medium,
    NodeAddress,
    Reach,
    medium_of,
    observed_address,
    prior,
    ranked,
    rdma_mesh,
    shared_prior,
)

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def address(medium: Medium, ip: str = "10.0.0.1", thunderbolt: int = 0) -> NodeAddress:
    return NodeAddress(ip=ip, medium=medium, thunderbolt=thunderbolt)


@pytest.mark.parametrize(
    ("ip", "interface", "port", "medium"),
    [
        ("127.0.0.1", "lo", "", "loopback"),
        ("::1", "lo0", "", "loopback"),
        ("100.64.0.1", "en0", "Ethernet", "vpn"),
        ("100.127.255.254", "x", "", "vpn"),
        ("100.128.0.1", "eth0", "", "ethernet"),
        ("fd7a:115c:a1e0::53", "en0", "", "vpn"),
        ("fd7a:115c:a1e1::53", "eth0", "", "ethernet"),
        ("10.8.0.2", "wg0", "", "vpn"),
        ("10.8.0.2", "utun4", "", "vpn"),
        ("169.254.3.4", "bridge0", "Thunderbolt Bridge", "thunderbolt"),
        ("169.254.3.4", "thunderbolt0", "", "thunderbolt"),
        ("192.168.1.4", "en0", "Wi-Fi", "wifi"),
        ("192.168.1.4", "wlp3s0", "", "wifi"),
        ("192.168.1.4", "en0", "Ethernet", "ethernet"),
        ("192.168.1.4", "en7", "USB 10/100/1000 LAN", "maybe_ethernet"),
        ("192.168.1.4", "en4", "Ethernet Adapter (en4)", "maybe_ethernet"),
        ("192.168.1.4", "enp4s0", "", "ethernet"),
        ("fe80::1%eth0", "eth0", "", "ethernet"),
        ("192.168.1.4", "iPhone", "iPhone USB", "unknown"),
    ],
)
def test_what_an_address_lies_on(ip: str, interface: str, port: str, medium: str) -> None:
    assert medium_of(ip, interface, port) == medium


def test_what_is_no_address_is_an_error() -> None:
    with pytest.raises(ValueError, match="nowhere"):
        medium_of("nowhere", "eth0")


@given(st.permutations(list(RANKING)))
def test_addresses_are_ranked_and_overlay_networks_only_used_for_want_of_others(
    media: list[Medium],
) -> None:
    found = ranked(address(medium) for medium in media)
    assert tuple(one.medium for one in found) == RANKING[:-1]
    assert ranked([address("vpn")]) == [address("vpn")]


def test_links_are_believed_to_be_worth_their_generation_until_measured() -> None:
    assert [THUNDERBOLT[n].bytes_per_s for n in (3, 4, 5)] == [2.1e9, 4.5e9, 8.05e9]
    assert {link.latency_s for link in THUNDERBOLT.values()} == {25.5e-6}
    assert prior(address("thunderbolt", thunderbolt=5)) == THUNDERBOLT[5]
    assert prior(address("thunderbolt")) == THUNDERBOLT[3]


def test_two_nodes_share_the_best_medium_that_both_have_at_the_slower_of_its_ends() -> None:
    both = [address("wifi"), address("thunderbolt", thunderbolt=5)]
    other = [address("thunderbolt", thunderbolt=4), address("ethernet")]
    assert shared_prior(both, other, same_machine=False) == THUNDERBOLT[4]
    assert shared_prior([address("wifi")], other, same_machine=False) == PRIORS["unknown"]
    loop = [address("loopback", "127.0.0.1")]
    assert shared_prior(loop, loop, same_machine=False) == PRIORS["unknown"]
    assert shared_prior(loop, loop, same_machine=True) == PRIORS["loopback"]


def reach(node: NodeId, peer: NodeId, ip: str, medium: Medium) -> Reach:
    return Reach(node=node, peer=peer, ip=ip, medium=medium)


def test_a_pair_takes_the_best_address_that_was_seen_to_work() -> None:
    seen = [
        reach(A, B, "192.168.0.2", "wifi"),
        reach(A, B, "169.254.0.2", "thunderbolt"),
        reach(B, C, "100.64.0.3", "vpn"),
        reach(B, C, "192.168.0.3", "wifi"),
        reach(C, A, "100.64.0.1", "vpn"),
    ]
    pairs = ((A, B), (B, C), (C, A), (C, B))
    found = [observed_address(node, peer, seen) for node, peer in pairs]
    assert [one and one.ip for one in found] == [
        "169.254.0.2",
        "192.168.0.3",
        "100.64.0.1",
        None,
    ]


def test_jaccl_needs_a_device_from_everyone_to_everyone() -> None:
    devices = {A: {"b": "rdma_en2", "c": "rdma_en3"}, B: {"a": "rdma_en2"}, C: {}}
    assert rdma_mesh([A, B], devices)
    assert not rdma_mesh([A, B, C], devices)
    assert not rdma_mesh([A], devices)
