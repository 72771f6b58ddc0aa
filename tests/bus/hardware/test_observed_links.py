"""Which way is the best of those that were seen to work, and what a measurement is worth."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bus.hardware.observed_links import address_at, believed, measured_links, reaches
from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeerReading, PeersReading
from bus.wire.messages.readings import LinkReading, MeasuredLink
from bus.wire.topology import PRIORS, RANKING, THUNDERBOLT, LinkCost, NodeAddress

A, B = NodeId("n-a"), NodeId("n-b")
WIFI = NodeAddress(ip="192.168.0.2", medium="wifi")
CABLE = NodeAddress(ip="169.254.0.2", medium="thunderbolt", thunderbolt=5)
VPN = NodeAddress(ip="100.64.0.2", medium="vpn")


def measured(host: str, rate: float = 0.1e9, *, at_least: bool = False) -> MeasuredLink:
    return MeasuredLink(peer=B, host=host, latency_s=1e-4, bytes_per_s=rate, at_least=at_least)


def reading(*links: MeasuredLink) -> LinkReading:
    return LinkReading(node=A, links=links, measured_at_s=0.0)


def test_a_way_is_one_that_was_linked_or_measured_and_nothing_that_was_only_announced() -> None:
    linked = PeerReading(node=B, name="b", status="linked", host=VPN.ip, addresses=(CABLE.ip,))
    silent = PeerReading(node=B, name="b", status="silent", host=WIFI.ip)
    ips = (WIFI, CABLE, VPN)
    found = reaches(A, B, ips, peers=PeersReading(node=A, peers=(linked,)))
    assert [(one.ip, one.medium) for one in found] == [(VPN.ip, "vpn")]
    assert reaches(A, B, ips, peers=PeersReading(node=A, peers=(silent,))) == []
    assert reaches(B, A, ips, peers=PeersReading(node=A, peers=(linked,))) == [], "another's"
    both = reaches(
        A, B, ips, peers=PeersReading(node=A, peers=(linked,)), links=reading(measured(WIFI.ip))
    )
    assert [one.ip for one in both] == [VPN.ip, WIFI.ip]


def test_a_host_is_known_by_its_nodes_account_else_by_its_looks() -> None:
    assert address_at(CABLE.ip, (WIFI, CABLE)) == CABLE
    assert address_at("100.64.9.9", ()).medium == "vpn"
    assert address_at("127.0.0.1", ()).medium == "loopback"
    assert address_at("studio.local", ()).medium == "unknown"


def test_the_measurement_of_the_best_way_counts_not_the_fastest_figure() -> None:
    cable, wifi = measured(CABLE.ip, 0.4e9, at_least=True), measured(WIFI.ip, 0.9e9)
    found = measured_links(reading(wifi, cable, measured(VPN.ip, 5e9)), {B: (VPN, WIFI, CABLE)})
    assert found == {B: LinkCost(1e-4, THUNDERBOLT[5].bytes_per_s)}
    assert measured_links(reading(measured(VPN.ip, 1e6)), {B: (VPN, CABLE)}) == {
        B: LinkCost(1e-4, 1e6)
    }
    unnamed = measured("")
    assert measured_links(reading(unnamed), {}) == {B: LinkCost(1e-4, 0.1e9)}


@given(st.sampled_from(RANKING), st.floats(1e3, 1e11), st.booleans())
def test_a_lower_bound_never_makes_a_link_slower_than_its_prior(
    medium: str, rate: float, at_least: bool
) -> None:
    address = NodeAddress.model_validate({"ip": "10.0.0.1", "medium": medium})
    link = believed(measured("10.0.0.1", rate, at_least=at_least), address)
    assert link.latency_s == 1e-4
    assert link.bytes_per_s >= rate
    assert (link.bytes_per_s == rate) or (
        at_least and link.bytes_per_s == PRIORS[address.medium].bytes_per_s
    )
