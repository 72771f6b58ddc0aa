"""Nodes that find each other: many memberships over a simulated network, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bus.membership.mdns_hints import Advert
from bus.membership.member_types import (
    SILENT_S,
    Action,
    Dial,
    Follow,
    HangUp,
    Say,
    SayHello,
    Unfollow,
)
from bus.membership.membership import REFUSED_S, Membership
from bus.membership.peer_table import MAX_TURNED_AWAY, TURNED_AWAY_S, PeerTable
from bus.wire.codec import Envelope, decode, encode
from bus.wire.ids import Boot, NodeId
from bus.wire.messages.peers import PeerGoodbye, PeerHello, PeerPorts, PeerRefused, PeerWelcome
from bus.wire.messages.wire import Message

TICK_S = 0.25
Letter = PeerHello | PeerWelcome | PeerRefused | PeerGoodbye


def myself(name: str, *addresses: str, boot: str = "b1", namespace: str = "shoal") -> PeerHello:
    return PeerHello(
        node=NodeId(f"n-{name}"),
        name=name,
        boot=Boot(boot),
        namespace=namespace,
        protocol_min=1,
        protocol_max=1,
        addresses=addresses or (f"{name}:1",),
        ports=PeerPorts(control=2, telemetry=3, candidate=4),
    )


@dataclass
class Seat:
    """One node of the simulation."""

    membership: Membership
    alive: bool = True
    follows: dict[NodeId, str] = field(default_factory=dict[NodeId, str])
    dialled: set[str] = field(default_factory=set[str])
    said: list[str] = field(default_factory=list[str])


class Net:
    """Letters take a while, and some are lost. `doors` says whose each address is."""

    def __init__(self, seed: int = 0, loss: float = 0.0, delay_s: float = 0.05) -> None:
        self.chance = random.Random(seed)
        self.loss = loss
        self.delay_s = delay_s
        self.now = 100.0
        self.seats: dict[str, Seat] = {}
        self.doors: dict[str, str] = {}
        self.cut: set[tuple[str, str]] = set()
        self.post: list[tuple[float, int, str, str, str, bytes]] = []
        self.count = 0

    def add(
        self, me: PeerHello, seeds: Iterable[str] = (), *, as_: str | None = None
    ) -> Membership:
        name = as_ or me.name
        self.seats[name] = Seat(Membership(me, seeds))
        for address in me.addresses:
            self.doors.setdefault(address, name)
        return self.seats[name].membership

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / TICK_S)):
            self.now += TICK_S
            for name, seat in list(self.seats.items()):
                if seat.alive:
                    self.do(name, seat.membership.tick(self.now))
            due = sorted(letter for letter in self.post if letter[0] <= self.now)
            self.post = [letter for letter in self.post if letter[0] > self.now]
            for _, _, to, address, back, data in due:
                self.deliver(to, address, back, decode(data).message)

    def send(self, who: str, to: str, address: str, back: str, letter: Letter) -> None:
        if self.chance.random() < self.loss or (who, to) in self.cut:
            return
        self.count += 1
        at = self.now + self.delay_s * self.chance.random()
        data = encode(Envelope(letter.node, "bus", Boot("b"), self.count, letter))
        self.post.append((at, self.count, to, address, back, data))

    def deliver(self, to: str, address: str, back: str, letter: Message) -> None:
        seat = self.seats.get(to)
        if seat is None or not seat.alive:
            return
        membership = seat.membership
        match letter:
            case PeerHello():
                answer, actions = membership.heard_hello(letter, self.now)
                self.send(to, back, address, to, answer)
                self.do(to, actions)
            case PeerWelcome():
                self.do(to, membership.heard_welcome(address, letter, self.now))
            case PeerRefused():
                self.do(to, membership.heard_refused(address, letter, self.now))
            case PeerGoodbye():
                self.do(to, membership.heard_goodbye(letter, self.now))
            case _:
                raise AssertionError(f"{letter!r} is said by no membership")

    def do(self, name: str, actions: list[Action]) -> None:
        seat = self.seats[name]
        for action in actions:
            match action:
                case Dial(address=address):
                    assert address not in seat.dialled, "one line an address"
                    seat.dialled.add(address)
                case HangUp(address=address):
                    seat.dialled.remove(address)
                case SayHello(address=address, hello=hello):
                    assert address in seat.dialled
                    if address in self.doors:
                        self.send(name, self.doors[address], address, name, hello)
                case Follow(node=node, host=host):
                    seat.follows[node] = host
                case Unfollow(node=node):
                    del seat.follows[node]
                case Say(message=message):
                    seat.said.append(message)

    def linked(self, name: str) -> set[str]:
        peers = self.seats[name].membership.peers.values()
        return {peer.name for peer in peers if peer.status == "linked"}

    def status(self, who: str, of: str) -> str:
        return self.seats[who].membership.peers[NodeId(f"n-{of}")].status


@given(st.integers(2, 9), st.integers(0, 10_000), st.sampled_from([0.0, 0.2, 0.4]))
@settings(max_examples=30)
def test_one_seed_that_answers_is_enough_for_everybody(count: int, seed: int, loss: float) -> None:
    net = Net(seed, loss)
    names = [f"m{i}" for i in range(count)]
    for i, name in enumerate(names):
        known = net.chance.choice(names[:i] or ["m1"])
        net.add(myself(name), [f"{known}:1"])
    net.run(40.0 if loss else 8.0)
    net.loss = 0.0
    net.run(4.0)
    for name in names:
        assert net.linked(name) == set(names) - {name}
        assert len(net.seats[name].dialled) == count - 1, "one line to each"
        assert set(net.seats[name].follows) == {NodeId(f"n-{n}") for n in names if n != name}


@given(st.integers(2, 7), st.integers(0, 10_000))
@settings(max_examples=20)
def test_adverts_alone_are_enough_however_many_of_them_are_stale_or_wrong(
    count: int, seed: int
) -> None:
    net = Net(seed, 0.1)
    names = [f"m{i}" for i in range(count)]
    told: list[Advert] = []
    for name in names:
        net.add(myself(name))
        told.append(Advert(NodeId(f"n-{name}"), "shoal", (), "b1", (f"{name}:1",)))
    for i in range(net.chance.randrange(12)):
        where = net.chance.choice(["dead:1", "m0:1", "m1:1"])
        told.append(Advert(NodeId(f"n-ghost{i}"), "shoal", (), "b1", (where,)))
    net.chance.shuffle(told)
    for name in names:
        for advert in told:
            net.seats[name].membership.heard_advert(advert, net.now)
    net.run(60.0)
    net.loss = 0.0
    net.run(6.0)
    for name in names:
        membership = net.seats[name].membership
        assert net.linked(name) == set(names) - {name}
        assert set(membership.peers) == {NodeId(f"n-{n}") for n in names if n != name}
        tried = {one.tried for one in membership.hints.of.values()}
        assert len(net.seats[name].dialled - tried) <= count - 1


def test_a_node_that_dies_is_silent_and_linked_again_when_it_is_back() -> None:
    net = Net()
    net.add(myself("a"), ["b:1"])
    net.add(myself("b"))
    net.run(3.0)
    net.seats["b"].alive = False
    net.run(SILENT_S + 2)
    assert net.status("a", "b") == "silent"
    net.add(myself("b", boot="b2"))
    net.run(3.0)
    assert net.linked("a") == {"b"}
    assert net.linked("b") == {"a"}, "a dials b, b dials back"


def test_a_quick_restart_is_no_double() -> None:
    net = Net()
    net.add(myself("a"), ["b:1"])
    net.add(myself("b"))
    net.run(3.0)
    net.add(myself("b", boot="b2"), ["a:1"])
    net.run(1.5)
    assert net.linked("b") == {"a"}
    assert not [text for text in net.seats["a"].said if "refused" in text]


def test_a_node_that_says_goodbye_is_not_dialled_until_it_speaks_again() -> None:
    net = Net()
    net.add(myself("a"))
    net.add(myself("b"), ["a:1"])
    net.run(3.0)
    net.seats["b"].alive = False
    net.deliver("a", "", "b", PeerGoodbye(node=NodeId("n-b"), boot=Boot("b1")))
    assert net.status("a", "b") == "left"
    net.run(5.0)
    assert net.status("a", "b") == "left"
    assert net.seats["a"].dialled == set()
    net.add(myself("b", boot="b2"), ["a:1"])
    net.run(4.0)
    assert net.linked("a") == {"b"}


def test_a_seed_that_was_a_member_is_told_of_once_and_one_that_never_was_as_a_stranger() -> None:
    net = Net()
    net.add(myself("a"))
    net.add(myself("b"), ["a:1", "nobody:1"])
    net.run(3.0)
    net.seats["a"].alive = False
    net.run(60.0)
    found = net.seats["b"].membership
    assert net.status("b", "a") == "silent"
    assert found.strangers(net.now) == ("nobody:1: no answer",)
    goodbye = PeerGoodbye(node=NodeId("n-a"), boot=Boot("b1"))
    net.do("b", found.heard_goodbye(goodbye, net.now))
    net.run(60.0)
    assert net.status("b", "a") == "left"
    assert found.strangers(net.now) == ("nobody:1: no answer",)


def test_a_late_goodbye_of_an_earlier_boot_changes_nothing() -> None:
    net = Net()
    net.add(myself("a"), ["b:1"])
    net.add(myself("b", boot="b2"))
    net.run(3.0)
    net.deliver("a", "", "b", PeerGoodbye(node=NodeId("n-b"), boot=Boot("b1")))
    assert net.linked("a") == {"b"}


def test_a_copied_home_is_refused_and_told_why() -> None:
    net = Net()
    net.add(myself("a"))
    net.add(myself("b"), ["a:1"])
    net.run(3.0)
    copy = myself("b", "copy:1", boot="b9").model_copy(update={"name": "copy"})
    net.add(copy, ["a:1"], as_="copy")
    net.run(6.0)
    assert net.linked("a") == {"b"}
    assert any("copying a home" in text for text in net.seats["copy"].said)
    assert any("copying a home" in text for text in net.seats["a"].said)
    assert net.linked("b") == {"a"}, "the first one is undisturbed"


def test_other_clusters_and_other_protocols_are_refused_by_name() -> None:
    net = Net()
    net.add(myself("a"))
    net.add(myself("b", namespace="lab"), ["a:1"])
    net.add(myself("c").model_copy(update={"protocol_min": 7, "protocol_max": 9}), ["a:1"])
    net.run(5.0)
    assert net.linked("a") == set()
    (cluster,) = [text for text in net.seats["b"].said if "refused" in text]
    assert "'shoal'" in cluster
    assert "'lab'" in cluster
    (protocol,) = [text for text in net.seats["c"].said if "refused" in text]
    assert "7 to 9" in protocol
    assert "a protocol 1" in protocol
    assert net.seats["b"].membership.strangers(net.now) != ()


def refused_at(net: Net, name: str) -> dict[str, str]:
    readings = net.seats[name].membership.peers.readings(net.now)
    return {one.node: one.why for one in readings if one.status == "refused"}


OF_TWO = {"protocol_min": 2, "protocol_max": 2}
VERSIONS = "b speaks protocol 2, a protocol 1: upgrade the older one"


def test_both_sides_of_a_refusal_tell_of_it_while_it_lasts() -> None:
    net = Net()
    net.add(myself("a"))
    net.add(myself("b").model_copy(update=OF_TWO), ["a:1"])
    net.run(4.0)
    assert refused_at(net, "a") == {"n-b": VERSIONS}
    assert refused_at(net, "b") == {"n-a": VERSIONS}
    assert net.seats["a"].membership.peers.known_peers() == (), "neither is remembered as a peer"
    net.seats["b"].alive = False
    net.run(TURNED_AWAY_S + REFUSED_S)
    assert refused_at(net, "a") == {}


def test_a_peer_that_comes_back_with_another_version_is_no_peer_until_it_is_alike() -> None:
    net = Net()
    net.add(myself("a"), ["b:1"])
    net.add(myself("b"), ["a:1"])
    net.run(3.0)
    assert net.seats["a"].follows != {}
    newer = myself("b", boot="b2").model_copy(update=OF_TWO)
    net.add(newer, ["a:1"])
    net.run(REFUSED_S)
    assert net.linked("a") == set() and net.seats["a"].follows == {}
    assert "b protocol 2: upgrade the older one" in refused_at(net, "a")["n-b"]
    net.add(myself("b", boot="b3"), ["a:1"])
    net.run(2 * REFUSED_S)
    assert net.linked("a") == {"b"} and net.linked("b") == {"a"}
    assert net.seats["a"].follows == {"n-b": "b"}


def test_a_copied_home_of_another_version_takes_no_link_away() -> None:
    net = Net()
    net.add(myself("a"), ["b:1"])
    net.add(myself("b"))
    net.run(3.0)
    copy = myself("b", "copy:1", boot="b9").model_copy(update={**OF_TWO, "name": "copy"})
    net.add(copy, ["a:1"], as_="copy")
    net.run(10.0)
    assert net.linked("a") == {"b"} and refused_at(net, "a") == {}


def test_no_more_than_some_are_told_of_as_turned_away() -> None:
    table = PeerTable(NodeId("n-a"))
    for number in range(3 * MAX_TURNED_AWAY):
        table.turn_away(NodeId(f"n-{number}"), "no", 0.0)
    assert len(table.readings(1.0)) == MAX_TURNED_AWAY
    table.turn_away(NodeId("n-late"), "no", TURNED_AWAY_S)
    assert [one.node for one in table.readings(TURNED_AWAY_S)] == ["n-late"]


def test_the_lowest_common_protocol_is_spoken() -> None:
    net = Net()
    net.add(myself("old").model_copy(update={"protocol_max": 2}))
    net.add(myself("new").model_copy(update={"protocol_min": 2, "protocol_max": 4}), ["old:1"])
    net.run(4.0)
    assert net.seats["old"].membership.peers[NodeId("n-new")].protocol == 2
    assert net.seats["new"].membership.peers[NodeId("n-old")].protocol == 2


def test_an_address_that_does_not_answer_is_followed_by_the_next() -> None:
    net = Net()
    net.add(myself("a"))
    net.add(myself("b", "dead:1", "wifi:1", "cable:1"), ["a:1"])
    del net.doors["dead:1"]
    net.run(8.0)
    assert net.linked("a") == {"b"}
    assert net.seats["a"].follows[NodeId("n-b")] == "wifi"
    del net.doors["wifi:1"]
    net.run(3 * SILENT_S + 4)
    assert net.linked("a") == {"b"}
    assert net.seats["a"].follows[NodeId("n-b")] == "cable"


@pytest.mark.parametrize("boot", ["b1", "b2"], ids=["while it runs", "with a restart"])
def test_a_node_whose_only_address_changes_is_found_at_the_new_one(boot: str) -> None:
    net = Net()
    net.add(myself("a"), ["b:1"] if boot == "b1" else [])
    moved = net.add(myself("b", "old:1"), ["a:1"])
    net.run(3.0)
    assert net.seats["a"].follows[NodeId("n-b")] == "old"
    del net.doors["old:1"]
    net.doors["new:1"] = "b"
    if boot == "b1":
        moved.me = moved.me.model_copy(update={"addresses": ("new:1",)})
    else:
        net.add(myself("b", "new:1", boot=boot), ["a:1"])
    net.run(3 * SILENT_S)
    assert net.linked("a") == {"b"}
    assert net.seats["a"].follows[NodeId("n-b")] == "new"


def test_a_node_is_not_its_own_peer_under_any_name() -> None:
    net = Net()
    net.add(myself("a"), ["a:1", "alias:1"])
    net.doors["alias:1"] = "a"
    net.run(5.0)
    assert net.seats["a"].membership.peers == {}
    assert net.seats["a"].dialled == set()


def test_a_seed_under_another_name_is_one_line_in_the_end() -> None:
    net = Net()
    net.add(myself("a"), ["alias:1"])
    net.add(myself("b"), ["a:1"])
    net.doors["alias:1"] = "b"
    net.run(6.0)
    assert net.linked("a") == {"b"}
    assert len(net.seats["a"].dialled) == 1


def test_a_seed_is_dialled_again_when_its_node_is_silent_and_not_while_it_is_linked() -> None:
    net = Net()
    net.add(myself("a"), ["alias:1"])
    net.add(myself("b"), ["a:1"])
    net.run(3.0)
    assert net.linked("a") == {"b"}
    net.doors["alias:1"] = "b"
    net.run(3.0)
    for _ in range(8):
        net.run(TICK_S)
        assert net.seats["a"].dialled == {"b:1"}, "the seed leads to the same node"
    del net.doors["b:1"]
    net.run(2 * SILENT_S)
    assert net.linked("a") == {"b"}
    assert net.seats["a"].follows[NodeId("n-b")] == "alias"


def test_a_forgotten_node_stays_away_until_it_is_remembered() -> None:
    net = Net()
    net.add(myself("a"), ["b:1"])
    net.add(myself("b"), ["a:1"])
    net.run(3.0)
    net.do("a", net.seats["a"].membership.leave_out([NodeId("n-b")]))
    net.run(8.0)
    assert net.linked("a") == set()
    assert net.seats["a"].follows == {}
    assert any("forgotten" in text for text in net.seats["b"].said)
    net.do("a", net.seats["a"].membership.leave_out([]))
    net.run(8.0)
    assert net.linked("a") == {"b"}


STATES = st.lists(
    st.tuples(
        st.sets(st.sampled_from("abcd"), max_size=2),
        st.sets(st.sampled_from("abcd"), max_size=3),
        st.booleans(),
    ),
    max_size=5,
)


@given(STATES, st.sets(st.sampled_from("abcd"), max_size=2))
@settings(max_examples=40)
def test_whoever_missed_what_is_linked_in_the_end_as_the_last_state_says(
    story: list[tuple[set[str], set[str], bool]], last: set[str]
) -> None:
    """Of some states each reaches some nodes alone, and one that missed it may begin anew from what
    it remembers; the last one reaches those that are of the cluster, one of the two among them
    whom all know from the start."""
    assume(not last >= {"a", "c"})
    net = Net()
    names = "abcd"
    for name in names:
        net.add(myself(name), [f"{names[0]}:1", f"{names[2]}:1"])
    net.run(4.0)
    boot = 1
    for forgotten, missed, anew in story:
        for name in names:
            if name not in missed | forgotten:
                tell(net, name, forgotten)
            elif anew:
                boot += 1
                old = net.seats[name].membership.peers
                net.seats[name] = Seat(
                    Membership(myself(name, boot=f"b{boot}"), ["a:1", "c:1"], old.known_peers())
                )
                net.seats[name].membership.leave_out(old.forgotten)
        net.run(2.0)
    rest = set(names) - last
    for name in rest:
        tell(net, name, last)
    net.run(25.0)
    for name in rest:
        assert net.linked(name) == rest - {name}, (name, last)
        assert set(net.seats[name].follows) == {f"n-{other}" for other in rest - {name}}


def tell(net: Net, name: str, forgotten: Iterable[str]) -> None:
    known = [NodeId(f"n-{one}") for one in sorted(forgotten)]
    net.do(name, net.seats[name].membership.leave_out(known))


def test_what_is_remembered_over_a_restart_finds_the_cluster_without_seeds() -> None:
    net = Net()
    net.add(myself("a"), ["b:1"])
    net.add(myself("b"))
    net.run(3.0)
    known = net.seats["a"].membership.peers.known_peers()
    net.seats["a"] = Seat(Membership(myself("a", boot="b2"), (), known))
    net.run(3.0)
    assert net.linked("a") == {"b"}


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_after_partitions_and_restarts_everybody_is_linked_again(seed: int) -> None:
    net = Net(seed, 0.1)
    names = ["a", "b", "c", "d"]
    for name in names:
        net.add(myself(name), ["a:1", "c:1"])
    boots = dict.fromkeys(names, 1)
    for _ in range(6):
        one, other = net.chance.sample(names, 2)
        match net.chance.randrange(3):
            case 0:
                net.cut |= {(one, other), (other, one)}
            case 1:
                boots[one] += 1
                net.add(myself(one, boot=f"b{boots[one]}"), ["a:1", "c:1"])
            case _:
                net.seats[one].alive = not net.seats[one].alive
        net.run(net.chance.uniform(0.5, 5.0))
    net.cut.clear()
    net.loss = 0.0
    for name in names:
        net.seats[name].alive = True
    net.run(15.0)
    for name in names:
        assert net.linked(name) == set(names) - {name}


def test_a_peers_clock_is_read_half_way_of_the_round_trip() -> None:
    here = Membership(myself("a"), ["b:1"])
    there = Membership(myself("b"))
    [hello] = [one for one in here.tick(100.0) if isinstance(one, SayHello)]
    welcome, _ = there.heard_hello(hello.hello, 5.0)
    assert isinstance(welcome, PeerWelcome)
    here.heard_welcome("b:1", welcome.model_copy(update={"wall_s": 1_060.1}), 100.2, 1_000.2)
    [peer] = here.peers.readings(100.2)
    assert peer.clock_offset_s is not None
    assert abs(peer.clock_offset_s - 60.0) < 1e-6


def test_a_peer_that_does_not_tell_its_clock_has_no_offset() -> None:
    here = Membership(myself("a"), ["b:1"])
    there = Membership(myself("b"))
    [hello] = [one for one in here.tick(100.0) if isinstance(one, SayHello)]
    welcome, _ = there.heard_hello(hello.hello, 5.0)
    assert isinstance(welcome, PeerWelcome)
    here.heard_welcome("b:1", welcome, 100.2, 1_000.2)
    assert [one.clock_offset_s for one in here.peers.readings(100.2)] == [None]
