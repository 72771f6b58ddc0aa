"""When a store is looked at, and which clients wait for what came of it."""

from __future__ import annotations

from bus.wire.ids import NodeId
from bus.wire.messages.weights import PurgeAsked
from worker.eviction.rounds import ENDED_S, LEASE_S, ROUND_S, StoreRounds


def asked(question: str, *, leaves: bool = False) -> PurgeAsked:
    return PurgeAsked(question=question, asker=NodeId("n1"), leaves=leaves)


def test_a_start_and_an_unloading_begin_a_round_that_waits_for_what_is_held() -> None:
    rounds = StoreRounds(100, 0.0)
    assert rounds.current and rounds.current.cause == "the worker started"
    rounds.exhausted((), 1.0, waits=False)
    assert rounds.current is None
    rounds.begin("a model was unloaded", 2.0)
    rounds.exhausted((), 2.0 + ROUND_S - 1, waits=True)
    assert rounds.current and rounds.current.limit_bytes == 100
    rounds.exhausted((), 2.0 + ROUND_S, waits=True)
    assert rounds.current is None


def test_a_limit_below_nothing_begins_none_but_a_purge() -> None:
    rounds = StoreRounds(-1, 0.0)
    rounds.begin("a model was unloaded", 1.0)
    assert rounds.current is None
    rounds.ask(asked("q"), 2.0)
    assert rounds.current and (rounds.current.cause, rounds.current.limit_bytes) == ("purged", 0)


def test_who_asks_meanwhile_joins_and_all_hear_how_it_ended() -> None:
    rounds = StoreRounds(-1, 0.0)
    for at_s, question in ((1.0, "a"), (2.0, "b"), (3.0, "a")):
        rounds.ask(asked(question), at_s)
    (purge,) = rounds.purges
    assert purge.state.questions == ("a", "b") and purge.state.phase == "waiting"
    rounds.exhausted((), 4.0, waits=True)
    assert rounds.current is None and purge.state.phase == "done"
    rounds.tick(4.0 + ENDED_S - 1)
    assert rounds.purges
    rounds.tick(4.0 + ENDED_S)
    assert not rounds.purges


def test_a_purge_that_no_client_waits_for_is_over() -> None:
    rounds = StoreRounds(-1, 0.0)
    rounds.ask(asked("a"), 0.0)
    rounds.ask(asked("b"), 5.0)
    rounds.ask(asked("b", leaves=True), 6.0)
    rounds.tick(LEASE_S - 0.1)
    assert rounds.current
    rounds.tick(LEASE_S)
    assert rounds.current is None and not rounds.purges
