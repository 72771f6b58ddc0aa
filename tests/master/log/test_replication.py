from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import CommandId, NodeId
from bus.wire.messages.commands import Acknowledged
from master.log.replication import REPLICATED_WITHIN_S, Acks, Answers, LogSafety

ME = NodeId("v0")


@given(st.lists(st.integers(0, 50), min_size=3, max_size=7), st.integers(1, 50))
def test_committed_is_what_a_majority_has_and_of_this_term(have: list[int], opened: int) -> None:
    voters = [NodeId(f"v{n}") for n in range(len(have))]
    acks = Acks(opened=opened, durable=have[0])
    for voter, index in zip(voters[1:], have[1:], strict=True):
        acks.record(voter, index)
    acks.record(NodeId("guest"), 99)
    committed = acks.committed(voters, ME)
    majority = len(have) // 2 + 1
    best = max(i for i in range(51) if sum(index >= i for index in have) >= majority)
    assert committed == (best if best >= opened else 0)


def test_an_acknowledgement_that_comes_late_takes_nothing_back() -> None:
    acks = Acks(opened=1, durable=9)
    acks.record(NodeId("v1"), 8)
    acks.record(NodeId("v1"), 5)
    assert acks.replicated() == 8
    assert acks.committed([ME, NodeId("v1"), NodeId("v2")], ME) == 8


def standing(**fields: object) -> LogSafety:
    usual = {"committed": None, "replicated": 0, "durable": 5, "degraded": False, "helped": False}
    return LogSafety(**{**usual, **fields})  # type: ignore[arg-type]


def test_with_votes_only_a_majority_counts_and_it_is_waited_for() -> None:
    assert standing(committed=4, replicated=9, durable=9).worth(5, 99.0) is None
    assert standing(committed=5).worth(5, 0.0) == "majority"


def test_without_votes_another_disk_is_waited_for_while_another_lives() -> None:
    late = REPLICATED_WITHIN_S
    assert standing(replicated=5).worth(5, 0.0) == "replicated"
    assert standing(replicated=5, durable=4).worth(5, 0.0) is None, "our own has to have it too"
    assert standing(helped=True).worth(5, late / 2) is None
    assert standing(helped=True).worth(5, late) == "local"
    assert standing().worth(5, 0.0) == "local"
    assert standing().worth(6, 0.0) is None, "not yet on the disk"
    assert standing(degraded=True, durable=0).worth(5, 0.0) == "volatile"


def test_an_answer_is_given_once_to_each_asker_and_what_was_lost_with_the_term_is_not() -> None:
    answers = Answers()
    done = Acknowledged(command_id=CommandId("c"), term=1, index=5, durability="volatile")
    for asker in (b"x", b"x", b"y"):
        answers.add(asker, done, 1.0)
    assert answers.ripe(standing(committed=4), 1.1) == []
    given_now = answers.ripe(standing(committed=5), 1.2)
    assert [(asker, answer.durability) for asker, answer in given_now] == [
        (b"x", "majority"),
        (b"y", "majority"),
    ]
    assert answers.ripe(standing(committed=5), 1.3) == []
    answers.add(b"x", done, 2.0)
    answers.drop()
    assert answers.ripe(standing(committed=9), 2.1) == []


def test_an_asker_that_repeats_does_not_wait_anew() -> None:
    answers = Answers()
    done = Acknowledged(command_id=CommandId("c"), term=1, index=5, durability="volatile")
    answers.add(b"x", done, 1.0)
    answers.add(b"x", done, 1.2)
    (one,) = answers.ripe(standing(helped=True), 1.0 + REPLICATED_WITHIN_S)
    assert one[1].durability == "local"
