"""Adverts: what is read, what is tried, and that neither can hurt."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.membership.mdns_hints import (
    MAX_ADDRESSES,
    MAX_HINTS,
    MAX_REST_S,
    MAX_TRIED,
    MAX_TRIES,
    SERVICE,
    TRY_S,
    Advert,
    Hints,
    node_in,
    parse_advert,
)
from bus.membership.member_types import Dial, HangUp
from bus.membership.membership import Membership
from bus.wire.ids import Boot, NodeId
from bus.wire.messages.peers import PeerHello, PeerPorts, PeerRefused, PeerWelcome

KEY = "0123456789abcdef"
PORTS = PeerPorts(control=2, telemetry=3, candidate=4)


def advert(name: str, *addresses: str, boot: str = "b1") -> Advert:
    return Advert(NodeId(f"n-{name}"), "shoal", (KEY,), boot, addresses or (f"10.0.0.1:{name}",))


def raw(said: Advert) -> dict[bytes, bytes | None]:
    return {key.encode(): value.encode() for key, value in said.properties().items()}


def test_an_advert_is_read_as_it_was_written() -> None:
    said = advert("a", "10.0.0.1:7", "10.0.0.2:7")
    assert node_in(said.service_name) == "n-a"
    read = parse_advert(said.service_name, raw(said), ["10.0.0.1", "10.0.0.2"], 7)
    assert read == said
    keyless = replace(said, keys=())
    assert parse_advert(said.service_name, raw(keyless), ["10.0.0.1", "10.0.0.2"], 7) == keyless


@given(
    st.text(max_size=80),
    st.dictionaries(
        st.sampled_from([b"ns", b"keys", b"boot", b"x", b"y", b"z"]),
        st.none() | st.binary(max_size=90) | st.text(max_size=70).map(str.encode),
        max_size=1,
    ),
    st.lists(st.ip_addresses(v=4).map(str), max_size=20),
    st.lists(st.text(max_size=20) | st.ip_addresses().map(str), max_size=3),
    st.integers(1, 65_535) | st.none() | st.integers(-5, 70_000),
)
def test_no_record_however_strange_is_more_than_well_formed_addresses(
    name: str, strange: dict[bytes, bytes | None], ips: list[str], more: list[str], port: int | None
) -> None:
    """Good records that have been tampered with, in one field and among their addresses."""
    for service in (name, f"{name}.{SERVICE}", f"n1.{SERVICE}"):
        found = parse_advert(service, raw(advert("a")) | strange, [*more, *ips, "10.0.0.1"], port)
        if found is not None:
            assert 0 < len(found.namespace) <= 64
            assert 0 < len(found.addresses) <= MAX_ADDRESSES
            assert all(
                one.rpartition(":")[0] in [*ips, *more, "10.0.0.1"] for one in found.addresses
            )
            assert all(len(key) == 16 for key in found.keys)


def test_names_keys_and_addresses_out_of_bounds_are_no_adverts() -> None:
    said = advert("a", "10.0.0.1:7")
    name, good = said.service_name, raw(said)
    assert parse_advert(f"../x.{SERVICE}", good, ["10.0.0.1"], 7) is None
    assert parse_advert("n-a._other._tcp.local.", good, ["10.0.0.1"], 7) is None
    assert parse_advert(name, {**good, b"ns": b""}, ["10.0.0.1"], 7) is None
    assert parse_advert(name, {**good, b"ns": b"\xff"}, ["10.0.0.1"], 7) is None
    assert parse_advert(name, {**good, b"keys": b"shoal1-SECRET"}, ["10.0.0.1"], 7) is None
    assert parse_advert(name, good, ["224.0.0.1", "0.0.0.0", "::1"], 7) is None
    for port, read in ((None, False), (0, False), (1, True), (65535, True), (65536, False)):
        assert (parse_advert(name, good, ["10.0.0.1"], port) is not None) is read


def test_kin_have_the_namespace_and_a_key_in_common() -> None:
    mine = advert("a")
    assert mine.is_kin(advert("b"))
    assert mine.is_kin(replace(advert("b"), keys=("f" * 16, KEY))), "in a rotation"
    assert not mine.is_kin(replace(advert("b"), keys=("f" * 16,)))
    assert not mine.is_kin(replace(advert("b"), keys=()))
    assert not mine.is_kin(replace(advert("b"), namespace="lab"))
    assert replace(mine, keys=()).is_kin(replace(advert("b"), keys=()))


def test_what_does_not_answer_is_tried_after_longer_rests_and_then_forgotten() -> None:
    hints, now, tried = Hints(), 0.0, list[float]()
    hints.hear(advert("a"), now)
    while hints.of:
        hints.tired(now, set())
        if hints.due(now):
            tried.append(now)
        hints.hear(advert("a"), now) if hints.of else None
        now += 0.25
    rests = [after - before for before, after in pairwise(tried)]
    assert len(tried) == MAX_TRIES
    assert rests == sorted(rests)
    assert rests[0] >= TRY_S and rests[-1] <= MAX_REST_S + TRY_S + 0.25


def test_a_restarted_node_is_tried_at_once_and_a_withdrawn_one_no_more() -> None:
    hints = Hints()
    hints.hear(advert("a"), 0.0)
    assert hints.due(0.0) and not hints.due(0.1)
    hints.tired(TRY_S, set())
    hints.hear(advert("a", boot="b2"), TRY_S)
    assert hints.due(TRY_S)
    hints.lose(NodeId("n-a"))
    assert hints.tired(2 * TRY_S, set()) == ["10.0.0.1:a"]
    assert not hints.of


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), max_size=400), st.data())
@settings(max_examples=50)
def test_a_flood_is_bounded_and_what_was_dialled_is_hung_up(
    flood: list[tuple[int, int]], data: st.DataObject
) -> None:
    hints, now = Hints(), 0.0
    open_lines: list[str] = []
    for number, boot in flood:
        now += data.draw(st.sampled_from([0.0, 0.1, 2.0]))
        hints.hear(advert(f"{number}", boot=f"{boot}"), now)
        for address in hints.tired(now, set()):
            open_lines.remove(address)
        open_lines += hints.due(now)
        assert len(hints.of) <= MAX_HINTS
        assert len(open_lines) <= 2 * MAX_TRIED
    for _ in range(MAX_TRIES * 2):
        now += MAX_REST_S + TRY_S
        for address in hints.tired(now, set()):
            open_lines.remove(address)
    assert open_lines == []


def membership() -> Membership:
    me = PeerHello(
        node=NodeId("n-me"),
        name="me",
        boot=Boot("b"),
        namespace="shoal",
        protocol_min=1,
        protocol_max=1,
        addresses=("10.0.0.9:1",),
        ports=PORTS,
    )
    return Membership(me)


def test_a_hint_makes_no_member_and_a_stale_one_is_let_go() -> None:
    found = membership()
    found.heard_advert(advert("a", "10.0.0.1:1"), 0.0)
    found.heard_advert(Advert(NodeId("n-me"), "shoal", (KEY,), "b", ("10.0.0.8:1",)), 0.0)
    assert [one.address for one in found.tick(0.0) if isinstance(one, Dial)] == ["10.0.0.1:1"]
    assert found.peers == {} and found.peers.known_peers() == () and found.peers.readings(0.0) == ()
    hung_up = [one for one in found.tick(TRY_S) if isinstance(one, HangUp)]
    assert hung_up == [HangUp("10.0.0.1:1")]
    assert found.lines == {} and found.strangers(TRY_S) == ()


def test_a_hint_that_answers_becomes_a_peer_found_by_mdns() -> None:
    found = membership()
    found.heard_advert(advert("a", "10.0.0.1:1"), 0.0)
    found.tick(0.0)
    welcome = PeerWelcome(
        node=NodeId("n-a"), name="a", boot=Boot("x"), protocol=1, addresses=("10.0.0.1:1",),
        ports=PORTS,
    )  # fmt: skip
    found.heard_welcome("10.0.0.1:1", welcome, 0.1)
    (reading,) = found.peers.readings(0.1)
    assert (reading.status, reading.found_by) == ("linked", "mdns")
    found.tick(0.2)
    assert set(found.lines) == {"10.0.0.1:1"} and not found.hints.of
    found.heard_advert(advert("a", "10.0.0.1:1"), 1.0)
    assert not [one for one in found.tick(1.0) if isinstance(one, Dial)], "it is linked"


def test_a_hint_at_which_somebody_refuses_us_is_not_kept() -> None:
    found = membership()
    found.heard_advert(advert("a", "10.0.0.1:1"), 0.0)
    found.tick(0.0)
    refused = PeerRefused(node=NodeId("n-a"), reason="namespace", message="no")
    found.heard_refused("10.0.0.1:1", refused, 0.1)
    found.tick(TRY_S)
    assert found.lines == {} and found.peers == {}
