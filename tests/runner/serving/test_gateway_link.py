"""A gateway is told nothing that its version of the data plane does not know."""

from __future__ import annotations

from bus.wire.data_frames import pack_to_gateway, unpack_to_gateway
from bus.wire.ids import NodeId, RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import (
    Accepted,
    AnswerSoFar,
    ChoiceEnd,
    Failed,
    Finished,
    StepEntries,
    Suspended,
    Traced,
)
from bus.wire.messages.traces import RankTraced
from runner.serving.gateway_link import convert

RID = RequestId("r")


def test_what_has_no_effect_is_told_from_version_6_on_and_left_out_where_it_is_nothing() -> None:
    said = Accepted(RID, 1, 2, ("tools.strict",))
    assert convert(said, 6) is said
    assert convert(said, 5) == Accepted(RID, 1, 2)
    plain = Accepted(RID, 1, 2)
    assert convert(plain, 5) is plain
    assert unpack_to_gateway(pack_to_gateway(said)) == said
    assert pack_to_gateway(plain)[0] == 0x94, "an array of four, as before"
    assert unpack_to_gateway(pack_to_gateway(plain)) == plain


def test_an_end_for_want_of_memory_is_one_at_a_limit_for_versions_before_10() -> None:
    ends = tuple(
        ChoiceEnd(RID, seq, seq, reason, None)
        for seq, reason in enumerate(("stop", "memory_pressure", "length"))
    )
    said = StepEntries(7, ends)
    assert convert(said, 10) is said
    older = convert(said, 9)
    assert isinstance(older, StepEntries) and older.step == 7
    assert [one.finish_reason for one in older.entries if isinstance(one, ChoiceEnd)] == [
        "stop",
        "length",
        "length",
    ]
    assert unpack_to_gateway(pack_to_gateway(said)) == said


def test_ranks_tell_of_a_traced_request_from_version_11_on() -> None:
    said = Traced(RID, 1.0, 2.0, 3.0, 1, (), (NodeId("n1"), NodeId("n2")))
    assert convert(said, 11) is said
    alone = Traced(RID, 1.0, 2.0, 3.0, 1, ())
    assert convert(said, 10) == alone
    assert pack_to_gateway(alone)[0] == 0x97, "an array of seven, as before"
    assert unpack_to_gateway(pack_to_gateway(said)) == said
    rank = RankTraced(RID, 1, 0.5, 0.25, None)
    assert convert(rank, 11) is rank
    assert convert(rank, 10) is None
    assert unpack_to_gateway(pack_to_gateway(rank)) == rank


def test_older_gateways_get_the_counts_of_drafts_that_their_version_has() -> None:
    totals = Usage(completion_tokens=9, drafts=3, drafted_tokens=8, accepted_tokens=5)
    counts = {"drafters": {"ngram": (1, 4, 4), "grammar": (2, 4, 1)}}
    before, newer = totals.model_copy(update=counts), {"block": (1, 4, 0)}
    newest = {"drafters": {**counts["drafters"], **newer}, "proposals": {"block": (1, 4096)}}
    usage = totals.model_copy(update=newest)
    ends = Finished(RID, 0, usage), Failed(RequestId("f"), 0, "internal", "why", usage, {})
    expected = {17: usage, 16: before, 15: totals, 12: totals, 11: Usage(completion_tokens=9)}
    for version, known in expected.items():
        sent = convert(StepEntries(1, ends), version)
        assert isinstance(sent, StepEntries)
        assert [end.usage for end in sent.entries if isinstance(end, Finished | Failed)] == [
            known,
            known,
        ]
        assert unpack_to_gateway(pack_to_gateway(sent)) == sent
        suspended = convert(Suspended(RID, AnswerSoFar((1,), 9, (), usage)), version)
        assert isinstance(suspended, Suspended) and suspended.so_far.usage == known
