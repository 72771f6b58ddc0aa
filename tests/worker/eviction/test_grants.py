"""Which node may delete its copy: the exchange of two by hand, and random ones of many nodes over a
network that loses, repeats, delays and reorders, while nodes stand still and start anew. Whatever
happens, a whole copy is left."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field

import pytest

from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.weights import KeepAnswered, KeepAsked
from worker.eviction import Granted, Grants, NotGranted
from worker.eviction.grants import Content

M = ModelId("someone/model")
A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
WINDOW_S = 6.0


def of(node: NodeId) -> Grants:
    count = itertools.count()
    return Grants(node, lambda: f"{node}-{next(count)}")


def asks(grants: Grants, now: float) -> KeepAsked:
    due = grants.due(now)
    assert due is not None
    return due[1]


def test_who_is_granted_it_may_delete_within_the_window_of_its_first_asking() -> None:
    a, b = of(A), of(B)
    a.wish(M, "d", [B], 10.0, content=Content("c"))
    asked = asks(a, 10.0)
    assert (asked.model, asked.digest, asked.content, asked.asker) == (M, "d", "c", A)
    assert a.due(10.1) is None and asks(a, 11.0) == asked
    a.answered(b.answer(asked, ""), 12.0)
    assert a.verdict == Granted(B, 10.0 + WINDOW_S)


def test_an_answer_that_comes_late_deletes_nothing() -> None:
    a, b = of(A), of(B)
    a.wish(M, "d", [B], 10.0)
    answer = b.answer(asks(a, 10.0), "")
    a.answered(answer, 10.0 + WINDOW_S)
    assert a.verdict is None
    assert a.due(10.0 + WINDOW_S) is None
    assert a.verdict == NotGranted("b did not answer")


def test_of_two_that_ask_each_other_the_greater_id_deletes_whatever_comes_first() -> None:
    for order in itertools.permutations("ab"):
        a, b = of(A), of(B)
        a.wish(M, "d", [B], 10.0)
        b.wish(M, "d", [A], 10.0)
        questions = {"a": asks(a, 10.0), "b": asks(b, 10.0)}
        for who in order:
            if who == "a":
                a.answered(b.answer(questions["a"], ""), 11.0)
            else:
                b.answered(a.answer(questions["b"], ""), 11.0)
        assert isinstance(a.verdict, NotGranted) and b.verdict == Granted(A, 10.0 + WINDOW_S)


def test_who_deletes_its_own_copy_grants_nothing_and_the_next_is_asked() -> None:
    a, b, c = of(A), of(B), of(C)
    a.wish(M, "d", [B], 10.0)
    a.answered(b.answer(asks(a, 10.0), ""), 10.0)
    c.wish(M, "d", [A, B], 10.0)
    c.answered(a.answer(asks(c, 10.0), ""), 10.0)
    assert c.verdict is None
    c.answered(b.answer(asks(c, 10.0), ""), 10.0)
    assert c.verdict == Granted(B, 10.0 + WINDOW_S)
    a.forget()
    assert a.answer(KeepAsked(question="q", asker=C, model=M), "").keeps


def test_who_has_no_whole_copy_says_so() -> None:
    a, b = of(A), of(B)
    a.wish(M, "d", [B, C], 10.0)
    a.answered(b.answer(asks(a, 10.0), "the node does not have all of the files"), 10.0)
    due = a.due(10.0)
    assert due is not None and due[0] == C
    a.answered(KeepAnswered(question=due[1].question, node=C, keeps=False, why="no"), 10.0)
    words = "b refused: the node does not have all of the files; c refused: no"
    assert a.verdict == NotGranted(words)


class Careless(Grants):
    """Grants whatever it has, also while it wants to delete that itself."""

    def answer(self, asked: KeepAsked, lacks: str) -> KeepAnswered:
        """Return that it keeps its copy."""
        return KeepAnswered(question=asked.question, node=self._me, keeps=not lacks)


@dataclass
class Node:
    """One node of the simulation. `goes_at`: it was granted, and deletes then, if it still may."""

    name: NodeId
    grants: Grants
    has: bool
    goes_at: float | None = None
    stands_until: float = 0.0


@dataclass
class World:
    """Nodes that want to delete all the time, and a network."""

    dice: random.Random
    kind: type[Grants] = Grants
    now: float = 0.0
    nodes: dict[NodeId, Node] = field(default_factory=dict[NodeId, Node])
    flying: list[tuple[float, int, NodeId, KeepAsked | KeepAnswered]] = field(
        default_factory=list[tuple[float, int, NodeId, KeepAsked | KeepAnswered]]
    )
    counted: itertools.count[int] = field(default_factory=lambda: itertools.count())
    deleted: int = 0

    def start(self, name: NodeId, *, has: bool) -> None:
        """Start a node, or start it anew: it has forgotten what it wanted and granted."""
        self.nodes[name] = Node(name, self.kind(name, lambda: f"q{next(self.counted)}"), has)

    def send(self, to: NodeId, message: KeepAsked | KeepAnswered) -> None:
        """Lose a message, or let it come once or twice, sooner or later."""
        for _ in range(self.dice.choice((0, 1, 1, 1, 2))):
            late_s = self.dice.choice((0.01, 0.3, 2.0, 5.0, 15.0)) * self.dice.random()
            heapq.heappush(self.flying, (self.now + late_s, next(self.counted), to, message))

    def step(self) -> None:
        """Let a moment pass."""
        self.now += self.dice.choice((0.01, 0.1, 0.5, 2.0))
        while self.flying and self.flying[0][0] <= self.now:
            _, _, to, message = heapq.heappop(self.flying)
            self._comes(self.nodes[to], message)
        for node in list(self.nodes.values()):
            if self.now >= node.stands_until:
                self._acts(node)
        assert any(node.has for node in self.nodes.values()), "the last copy is gone"

    def _comes(self, node: Node, message: KeepAsked | KeepAnswered) -> None:
        if self.now < node.stands_until:
            self.send(node.name, message)
        elif isinstance(message, KeepAsked):
            lacks = "" if node.has else "the node does not have all of the files"
            self.send(message.asker, node.grants.answer(message, lacks))
        else:
            node.grants.answered(message, self.now)

    def _acts(self, node: Node) -> None:
        dice, verdict = self.dice, node.grants.verdict
        if dice.random() < 0.01:
            self.start(node.name, has=node.has)
        elif dice.random() < 0.02:
            node.stands_until = self.now + 30.0 * dice.random()
        elif isinstance(verdict, Granted):
            if node.goes_at is None:
                node.goes_at = self.now + 8.0 * dice.random() ** 3
            elif self.now >= node.goes_at:
                if self.now < verdict.until_at and node.has:
                    node.has, self.deleted = False, self.deleted + 1
                node.goes_at = None
                node.grants.forget()
        elif isinstance(verdict, NotGranted):
            node.grants.forget()
        elif due := node.grants.due(self.now):
            self.send(*due)
        elif verdict is None and node.has and dice.random() < 0.2:
            keepers = [one for one in self.nodes if one != node.name]
            dice.shuffle(keepers)
            node.grants.wish(M, "d", keepers, self.now)


def played(seed: int, kind: type[Grants] = Grants) -> World:
    """Play the story of a seed. Copies come back now and then, while there is one to copy."""
    world = World(random.Random(seed), kind)
    names = [NodeId(name) for name in "abcde"[: world.dice.randint(2, 5)]]
    for name in names:
        world.start(name, has=True)
    for _ in range(1500):
        world.step()
        if world.dice.random() < 0.02:
            world.nodes[world.dice.choice(names)].has = True
    return world


@pytest.mark.parametrize("seed", range(60))
def test_no_loss_no_order_and_no_restart_deletes_the_last_copy(seed: int) -> None:
    assert played(seed).deleted > 0


def test_the_simulation_finds_nodes_that_grant_what_they_want_to_delete() -> None:
    lost = 0
    for seed in range(20):
        try:
            played(seed, Careless)
        except AssertionError:
            lost += 1
    assert lost >= 3
