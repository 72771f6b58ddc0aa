"""What is read off macOS's tools, and which cables make a ring of bridges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.hardware.thunderbolt import (
    ThunderboltPort,
    bridge_loops,
    bridge_service,
    ports_in,
    reading_of,
)
from bus.wire.ids import NodeId
from bus.wire.messages.readings import ThunderboltReading
from tests.harness.thunderbolt_samples import bus, profile, services


def test_a_port_tells_its_domain_its_cable_and_who_is_at_the_other_end() -> None:
    text = profile(bus(2, "D-2", dock=True), bus(1, "D-1", "E-1", speed="40 Gb/s"), bus(0, "D-0"))
    assert ports_in(text) == (
        ThunderboltPort("3", "D-2", (), 80),
        ThunderboltPort("2", "D-1", ("E-1",), 40),
        ThunderboltPort("1", "D-0", (), 0),
    )


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"SPThunderboltDataType": null}', "{}"])
def test_what_is_no_profile_has_no_ports(text: str) -> None:
    assert ports_in(text) == ()


def test_the_bridge_is_found_by_its_port_whatever_it_is_called() -> None:
    assert bridge_service(services()) == "Thunderbolt Bridge"
    assert bridge_service(services(name="Cable to the attic")) == "Cable to the attic"
    assert bridge_service(services(bridge="(*)")) is None
    assert bridge_service("") is None


def test_a_reading_is_made_of_both_tools_words() -> None:
    text = profile(bus(1, "D-1", "E-1"), bus(0, "D-0", "F-0"))
    assert reading_of(text, services()) == ThunderboltReading(
        bridged=True, domains=("D-1", "D-0"), peers=("E-1", "F-0")
    )


def site(cables: list[tuple[str, str]], bridged: str) -> dict[NodeId, ThunderboltReading]:
    """Macs by letter; each end of a cable takes a port of its own."""
    domains: dict[str, list[str]] = {}
    peers: dict[str, list[str]] = {}
    for number, (one, other) in enumerate(cables):
        for here, there in ((one, other), (other, one)):
            domains.setdefault(here, []).append(f"{here}{number}")
            peers.setdefault(here, []).append(f"{there}{number}")
    return {
        NodeId(mac): ThunderboltReading(
            bridged=mac in bridged, domains=tuple(domains[mac]), peers=tuple(peers[mac])
        )
        for mac in domains
    }


@pytest.mark.parametrize(
    ("cables", "bridged", "loops"),
    [
        (["ab"], "ab", []),
        (["ab", "ab"], "ab", []),
        (["ab", "bc"], "abc", []),
        (["ab", "bc", "ca"], "abc", ["abc"]),
        (["ab", "bc", "ca"], "ab", []),
        (["ab", "bc", "ca", "cd"], "abcd", ["abc"]),
        (["ab", "bc", "cd", "da"], "abcd", ["abcd"]),
        (["ab", "bc", "ca", "de", "ef", "fd"], "abcdef", ["abc", "def"]),
    ],
)
def test_a_ring_of_more_than_two_bridges_is_a_loop(
    cables: list[str], bridged: str, loops: list[str]
) -> None:
    found = bridge_loops(site([(one[0], one[1]) for one in cables], bridged))
    assert ["".join(one) for one in found] == loops


def test_one_ends_word_is_enough() -> None:
    readings = site([("a", "b"), ("b", "c"), ("c", "a")], "abc")
    readings[NodeId("a")] = readings[NodeId("a")].model_copy(update={"peers": ()})
    assert bridge_loops(readings) == (("a", "b", "c"),)


MACS = st.sampled_from("abcdef")


@given(st.lists(st.tuples(MACS, MACS).filter(lambda pair: pair[0] != pair[1]), max_size=12))
def test_without_more_cables_than_a_tree_has_there_is_no_loop(
    cables: list[tuple[str, str]],
) -> None:
    """Against union-find: a ring is there exactly when a cable joins what was joined already."""
    parent = {mac: mac for mac in "abcdef"}

    def root(mac: str) -> str:
        return mac if parent[mac] == mac else root(parent[mac])

    ring = False
    for one, other in {tuple(sorted(pair)) for pair in cables}:
        ring = ring or root(one) == root(other)
        parent[root(one)] = root(other)
    assert bool(bridge_loops(site(cables, "abcdef"))) == ring
