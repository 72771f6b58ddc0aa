"""Cards that travel through other nodes: over random graphs, and over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.client import Speaker
from bus.links.cluster_key import ClusterKey
from bus.membership.card_book import withdrawal
from bus.membership.card_exchange import DOUBLE_S, LATE_S, RELAY_S, SETTLE_S, CardExchange
from bus.process.clock import wall
from bus.process.identity import new_boot
from bus.wire.codec import Envelope, decode, encode
from bus.wire.ids import Boot, NodeId
from bus.wire.messages.peers import PeerReading, PeersReading, PeerStatus
from bus.wire.messages.readings import CardReading, DemandReading
from tests.harness.fleets import NOW_S, card
from tests.harness.joined_switchboards import JoinedSwitchboards, boards
from tests.harness.ports import free_port

PERIOD_S = 30.0
Links = dict[NodeId, set[NodeId]]


@dataclass
class Island:
    """One node: its exchange, its clock's error, and the cards that it has announced."""

    node: NodeId
    skew_s: float
    exchange: CardExchange
    boot: Boot = field(default_factory=new_boot)
    seq: int = 0

    def announced(self, now: float, *, leaves: bool = False) -> Envelope:
        self.seq += 1
        each = card(NOW_S + now + self.skew_s, f"{self.node} {self.seq}", self.node)
        each = withdrawal(each, NOW_S + now + self.skew_s) if leaves else each
        return Envelope(self.node, "worker", self.boot, self.seq, CardReading(card=each))


class Sea:
    """Nodes and links between them. A message takes one turn of `RELAY_S` for a hop."""

    def __init__(self, links: Links, skews: dict[NodeId, float]) -> None:
        self.links, self.now, self.sent = links, 0.0, 0
        self.islands = {n: Island(n, skews.get(n, 0.0), CardExchange(n)) for n in links}

    def tell(self, to: NodeId, source: NodeId, payload: bytes) -> str:
        island = self.islands[to]
        wall_s = NOW_S + self.now + island.skew_s
        return island.exchange.take(decode(payload), payload, source, self.now, wall_s)

    def announce(self, node: NodeId, *, leaves: bool = False) -> None:
        payload = encode(self.islands[node].announced(self.now, leaves=leaves))
        for to in {node, *self.links[node]}:
            self.tell(to, node, payload)

    def turn(self) -> None:
        """A second: each node lists its peers, then passes cards on."""
        self.now += RELAY_S
        for node, linked in self.links.items():
            rows = tuple(PeerReading(node=n, name=n, status="linked") for n in sorted(linked))
            for to in {node, *linked}:
                self.islands[to].exchange.take_peers(PeersReading(node=node, peers=rows), self.now)
        passed = [(n, due) for n, i in self.islands.items() for due in i.exchange.due(self.now)]
        for node, (_, payload) in passed:
            for to in self.links[node]:
                self.sent += 1
                self.tell(to, node, payload)

    def settle(self) -> None:
        """Long enough for a node's first card, which waits at each hop for links to be made."""
        for _ in range(self.diameter * (int(SETTLE_S) + 2)):
            self.turn()

    def meet(self) -> None:
        for node in self.links:
            self.announce(node)
        self.settle()
        assert all(view.keys() == self.links.keys() for view in self.views())

    def views(self) -> list[dict[NodeId, str]]:
        return [
            {n: each.name for n, each in island.exchange.book.living(self.now).items()}
            for island in self.islands.values()
        ]

    @property
    def diameter(self) -> int:
        return max(max(self._far(node).values()) for node in self.links)

    def _far(self, node: NodeId) -> dict[NodeId, int]:
        far, edge = {node: 0}, [node]
        while edge:
            near = {n: far[e] + 1 for e in edge for n in self.links[e] if n not in far}
            far |= near
            edge = list(near)
        return far


@st.composite
def seas(draw: st.DrawFn) -> Sea:
    """Connected nodes: a random tree and further links, with clocks that differ by an hour."""
    names = [NodeId(f"n{number}") for number in range(draw(st.integers(2, 8)))]
    links: Links = {name: set() for name in names}
    pairs = [(name, names[draw(st.integers(0, at))]) for at, name in enumerate(names[1:])] + draw(
        st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=8)
    )
    for first, second in pairs:
        if first != second:
            links[first].add(second)
            links[second].add(first)
    skew = st.floats(-3600, 3600, allow_nan=False)
    return Sea(links, {name: draw(skew) for name in names})


@settings(max_examples=40, deadline=None)
@given(seas())
def test_every_connected_graph_converges_within_its_diameter_and_then_falls_silent(
    sea: Sea,
) -> None:
    sea.meet()
    for period in (2, 3):
        for node in sea.links:
            sea.announce(node)
        for _ in range(sea.diameter):
            sea.turn()
        names = {node: f"{node} {period}" for node in sea.links}
        assert sea.views() == [names] * len(sea.links)
        before = sea.sent
        for _ in range(5):
            sea.turn()
        degrees = sum(len(linked) for linked in sea.links.values())
        assert sea.sent - before <= degrees * len(sea.links), "the last hop's own echo at most"
        before = sea.sent
        for _ in range(5):
            sea.turn()
        assert sea.sent == before, "nothing circulates"
        sea.now += PERIOD_S


@settings(max_examples=20, deadline=None)
@given(seas(), st.data())
def test_a_goodbye_reaches_every_node(sea: Sea, data: st.DataObject) -> None:
    sea.meet()
    gone = data.draw(st.sampled_from(sorted(sea.links)))
    sea.announce(gone, leaves=True)
    for _ in range(sea.diameter):
        sea.turn()
    assert all(gone not in view for view in sea.views())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("link"), st.integers(0, 7), st.integers(0, 7)),
        st.tuples(st.just("restart"), st.integers(0, 7), st.integers(0, 1)),
        st.tuples(st.just("announce"), st.integers(0, 7), st.just(0)),
        st.tuples(st.just("turns"), st.integers(1, 6), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(seas(), STEPS)
def test_after_links_break_and_nodes_restart_the_next_cards_reach_every_node(
    sea: Sea, steps: list[tuple[str, int, int]]
) -> None:
    names = sorted(sea.links)
    whole = {name: set(linked) for name, linked in sea.links.items()}
    for step, first, second in steps:
        here, there = names[first % len(names)], names[second % len(names)]
        match step:
            case "link" if here != there:
                sea.links[here] ^= {there}
                sea.links[there] ^= {here}
            case "restart":
                island = sea.islands[here]
                island.boot, island.seq = new_boot(), 0
                if second:
                    island.exchange = CardExchange(here)
            case "announce":
                sea.announce(here)
            case _:
                for _ in range(first):
                    sea.turn()
    sea.links = {name: whole[name] | sea.links[name] for name in names}
    sea.settle()
    for _ in range(2):
        sea.now += PERIOD_S
        for name in names:
            sea.announce(name)
        sea.settle()
    latest = {name: f"{name} {island.seq}" for name, island in sea.islands.items()}
    assert sea.views() == [latest] * len(names)
    before = sea.sent
    for _ in range(10):
        sea.turn()
    assert sea.sent == before, "nothing circulates"


def test_a_late_copy_dated_ahead_is_taken_once_and_the_next_card_replaces_it() -> None:
    exchange, p, q = CardExchange(NodeId("me")), NodeId("p"), NodeId("q")
    old, new = (envelope("x", boot, 5, NOW_S + 9_000) for boot in "ab")
    assert exchange.take(new, b"new", p, 0.0, NOW_S) == "taken"
    assert exchange.take(old, b"old", q, 1.0, NOW_S + 1) == "taken", "it looks newer by its date"
    for at in (2.0, 3.0):
        assert exchange.take(new, b"new", p, at, NOW_S + at) == "old"
        assert exchange.take(old, b"old", q, at, NOW_S + at) == "old", "so nothing chases around"
    assert exchange.take(envelope("x", "b", 6, NOW_S + 9_030), b"", p, 30.0, NOW_S + 30) == "taken"


@given(st.integers(2, 9))
def test_nothing_is_passed_on_where_every_node_is_linked_with_every_other(size: int) -> None:
    names = [NodeId(f"n{number}") for number in range(size)]
    sea = Sea({name: set(names) - {name} for name in names}, {})
    sea.turn()
    sea.meet()
    assert sea.sent == 0


def test_one_node_passes_a_card_on_where_several_could() -> None:
    a, b, c, d = (NodeId(name) for name in "abcd")
    sea = Sea({a: {b, c}, b: {a, c, d}, c: {a, b, d}, d: {b, c}}, {})
    sea.settle()
    sea.announce(a)
    sea.settle()
    assert a in sea.islands[d].exchange.book
    assert sea.sent == len(sea.links[b]), "b alone, although c is as near"


def test_a_flood_of_cards_is_passed_on_once_a_second() -> None:
    a, b, c = (NodeId(name) for name in "abc")
    sea = Sea({a: {b}, b: {a, c}, c: {b}}, {})
    sea.meet()
    exchange, sent = sea.islands[b].exchange, 0
    for _ in range(50):
        sea.now += 0.1
        sea.announce(a)
        sent += len(exchange.due(sea.now))
    assert 4 <= sent <= 6


def envelope(node: str, boot: str, seq: int, at_s: float) -> Envelope:
    message = CardReading(card=card(at_s, node=node))
    return Envelope(NodeId(node), "worker", Boot(boot), seq, message)


def listed(node: str, **statuses: PeerStatus) -> PeersReading:
    rows = tuple(PeerReading(node=NodeId(n), name=n, status=s) for n, s in statuses.items())
    return PeersReading(node=NodeId(node), peers=rows)


def test_a_nodes_own_card_comes_only_from_itself() -> None:
    exchange, me, peer = CardExchange(NodeId("me")), NodeId("me"), NodeId("p")
    mine = envelope("me", "a", 1, NOW_S)
    assert exchange.take(mine, b"1", me, 0.0, NOW_S) == "taken"
    forged = envelope("me", "b", 9, NOW_S + 9)
    assert exchange.take(forged, b"2", peer, 1.0, NOW_S + 1) == "own"
    assert exchange.book[me].card == mine.message.card  # type: ignore[attr-defined]


def test_the_card_of_a_linked_node_comes_only_from_that_node() -> None:
    exchange = CardExchange(NodeId("me"))
    exchange.take_peers(listed("me", p="linked", o="linked"), 0.0)
    o, p = NodeId("o"), NodeId("p")
    assert exchange.take(envelope("o", "a", 1, NOW_S), b"", p, 0.0, NOW_S) == "old"
    assert exchange.take(envelope("o", "a", 1, NOW_S), b"", o, 0.0, NOW_S) == "taken"


def test_senders_that_may_not_send_a_card_are_refused() -> None:
    exchange, me, peer = CardExchange(NodeId("me")), NodeId("me"), NodeId("p")
    other = Envelope(peer, "worker", Boot("a"), 1, CardReading(card=card(NOW_S, node="x")))
    assert exchange.take(other, b"", peer, 0.0, NOW_S) == "refused", "another name inside"
    assert exchange.take(envelope("x", "a", 1, NOW_S), b"", me, 0.0, NOW_S) == "refused"
    exchange.forgotten = {NodeId("x")}
    assert exchange.take(envelope("x", "a", 1, NOW_S), b"", peer, 0.0, NOW_S) == "refused"
    demand = Envelope(peer, "g", Boot("a"), 2, DemandReading(node=peer, process="g"))
    assert exchange.take(demand, b"", peer, 0.0, NOW_S) == "refused"


def test_two_nodes_with_one_id_are_reported_and_a_restarted_one_is_not() -> None:
    exchange, p, q = CardExchange(NodeId("me")), NodeId("p"), NodeId("q")
    for at, boot, seq in ((0, "a", 1), (30, "a", 2), (40, "b", 1), (41, "a", 3), (70, "b", 2)):
        exchange.take(envelope("x", boot, seq, NOW_S + at), b"", p, float(at), NOW_S + at)
    assert not exchange.doubles(70.0), "the last card of the old process came a little late"
    twin = envelope("x", "a", 4, NOW_S - 5000)
    assert exchange.take(twin, b"", q, 41 + LATE_S, NOW_S + 61) == "old"
    assert exchange.doubles(62.0) == {"x"}, "although its clock is behind and its card never counts"
    assert not exchange.doubles(62.0 + DOUBLE_S)


# --- real sockets -----------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[JoinedSwitchboards]:
    with boards() as made:
        yield made


def start_chain(cluster: JoinedSwitchboards, key: ClusterKey | None) -> None:
    """a and c reach b only, because nobody answers at the addresses that they give to others."""
    for name in "abc":
        cluster.ports[name] = free_port()
    nowhere = ("127.8.8.8",)
    cluster.start("b", "a", "c", key=key, measures=False)
    cluster.start("a", "b", key=key, measures=False, hosts=nowhere)
    cluster.start("c", "b", key=key, measures=False, hosts=nowhere)
    cluster.until(lambda: cluster.linked("b") == {"a", "c"}, "b is linked with both")
    cluster.until(lambda: cluster.linked("a") == {"b"} == cluster.linked("c"), "the ends with b")


@pytest.mark.parametrize("key", [None, ClusterKey(bytes(range(32)))], ids=["plain", "keys"])
def test_the_ends_of_a_chain_of_three_learn_each_others_cards_and_goodbyes(
    cluster: JoinedSwitchboards, key: ClusterKey | None
) -> None:
    start_chain(cluster, key)
    cards: dict[str, dict[str, str]] = {name: {} for name in "abc"}
    demands: list[str] = []

    def take(name: str, topic: str, heard: Envelope) -> None:
        assert isinstance(heard.message, CardReading)
        state = "gone" if heard.message.card.ttl_s < 1 else topic.partition(".")[0]
        cards[name][heard.message.card.node] = state

    for name in "abc":
        client = cluster.client(name, "gateway")
        for topic in ("card", "relayed"):
            client.hear(topic, lambda topic, heard, name=name: take(name, topic, heard))
    cluster.client("c", "hearer").hear("reading.demand", lambda topic, _: demands.append(topic))
    workers = {name: cluster.client(name, "worker") for name in "abc"}
    cluster.settle()
    for name, worker in workers.items():
        node = worker.speaker.node
        worker.publish(f"card.{node}", CardReading(card=card(wall(), name, node)))
        worker.publish(f"reading.demand.{node}.g", DemandReading(node=node, process="g"))
    everyone = {"n-a", "n-b", "n-c"}
    cluster.until(lambda: all(set(seen) == everyone for seen in cards.values()), "all cards")
    assert cards["a"] == {"n-a": "card", "n-b": "card", "n-c": "relayed"}
    assert cards["b"] == dict.fromkeys(everyone, "card")
    assert "reading.demand.n-b.g" in demands
    assert "reading.demand.n-a.g" not in demands, "only cards are passed on"
    cluster.boards.pop("c").close()
    cluster.until(lambda: cards["a"]["n-c"] == "gone", "the goodbye")


def test_a_peer_cannot_speak_for_another_node(cluster: JoinedSwitchboards) -> None:
    cluster.start("a", measures=False)
    cluster.start("b", "a", measures=False)
    cluster.until(lambda: cluster.linked("a") == {"b"}, "linked")
    topics: list[str] = []
    hearer = cluster.client("a", "hearer")
    for topic in ("card", "relayed", "reading.demand"):
        hearer.hear(topic, lambda topic, _: topics.append(topic))
    liar = cluster.client("b", "liar")
    liar._letters._speaker = Speaker(NodeId("n-z"), "liar", new_boot())  # type: ignore[attr-defined]
    honest = cluster.client("b", "gateway")
    cluster.settle()
    liar.publish("reading.demand.n-z.g", DemandReading(node=NodeId("n-z"), process="g"))
    liar.publish("card.n-z", CardReading(card=card(wall(), node="n-z")))
    honest.publish("card.n-z", CardReading(card=card(wall(), node="n-b")))
    honest.publish("reading.demand.n-b.g", DemandReading(node=NodeId("n-b"), process="g"))
    cluster.until(lambda: "reading.demand.n-b.g" in topics, "what is its own arrives")
    assert topics == ["reading.demand.n-b.g"]
