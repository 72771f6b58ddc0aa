"""Speaks everything that may cross a wire once: every kind in its envelope, every data frame,
every frame between ranks.

Kinds and their fields come from the table of kinds, so that none can be forgotten. Frames are
written out here; `untold` names those types of which none is. What is made is bytes, by wire tag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, get_args

from bus.calls import CALLS
from bus.wire.codec import KINDS, Envelope, encode, pack_body, unpack
from bus.wire.data_frames import pack_ids, pack_to_gateway, pack_to_runner
from bus.wire.errors import FailReason, FinishReason, Refusal
from bus.wire.ids import Boot, InstanceId, ModelId, NodeId, RequestId, TokenId
from bus.wire.messages.requests import GenerationRequest, Sampling, Usage
from bus.wire.messages.tokens import (
    Accepted,
    AnswerSoFar,
    Begun,
    Cancel,
    ChoiceEnd,
    ChoiceSoFar,
    Credit,
    Displaced,
    Entry,
    Failed,
    Finished,
    Goodbye,
    Hello,
    Ping,
    Pong,
    PrefillProgress,
    PromptAnswer,
    PromptTokens,
    Recall,
    Refused,
    SpanName,
    StepEntries,
    Submit,
    Suspended,
    ToGateway,
    TokenDelta,
    TokenLogprob,
    ToolCallDelta,
    ToRunner,
    Traced,
    TraceSpan,
    Vectors,
    Welcome,
)
from bus.wire.messages.traces import (
    RANK_PARTS,
    Crosses,
    RankCrossing,
    RankPart,
    RankSpans,
    RankTotal,
    RankTraced,
    RankTurn,
    RankTurnName,
)
from bus.wire.proposals import (
    Attach,
    Attached,
    FromProposer,
    ProposalRefused,
    Propose,
    Proposed,
    ToProposer,
    Withdraw,
)
from runner.engine import (
    EntryId,
    PrefillChunk,
    PrefixHit,
    PrefixInsert,
    RowId,
    RowSpec,
    StepPlan,
)
from runner.group.lockstep import Agreement, RankFacts, SharedPlan
from runner.group.rank_frames import (
    AskTrace,
    FormNow,
    RankBeat,
    RankGone,
    RankHello,
    RankMemory,
    RankPing,
    RankPong,
    RankTrace,
    ToLead,
    ToRank,
    pack_rank,
)
from tests.recorded.specimens import full, least, specimens

FAILS: list[FailReason] = sorted(get_args(FailReason))
FINISHES: list[FinishReason] = sorted(get_args(FinishReason))
RID = RequestId("req-n0123456789-h0-b00f0001-1a")
BOOT = Boot("b00f0001")
SENDER = (NodeId("n0123456789"), "runner:03", BOOT, 4711)
Recorded = dict[str, list[bytes]]


def kinds() -> Recorded:
    """Encode specimens of every kind that may travel in an envelope."""
    apart = tuple(KINDS.values())
    return {
        kind: [encode(Envelope(*SENDER, message)) for message in specimens(cls, apart)]
        for kind, cls in sorted(KINDS.items())
    }


def calls() -> dict[str, Recorded]:
    """Pack specimens of the request and the reply of every call between gateways."""
    return {
        part: {
            name: [pack_body(message) for message in specimens(getattr(call, part))]
            for name, call in sorted(CALLS.items())
        }
        for part in ("request", "reply")
    }


def runner_messages() -> list[ToRunner]:
    """List what a gateway process may send to a runner."""
    requests = specimens(GenerationRequest)
    return [
        Hello("n0123456789/h0", BOOT, 1, 3),
        *(Submit(request, 7, 64, 119_500) for request in requests),
        Submit(least(GenerationRequest), 1, 0, 0),
        Submit(least(GenerationRequest), 1, 0, 0, ("", "me", "10.0.0.7", "10.0.0.7:4711")),
        Submit(least(GenerationRequest), 1, 0, 0, ("", "me"), 1500),
        Submit(least(GenerationRequest), 1, 0, 0, ("", "me"), 1500, so_far()),
        Submit(least(GenerationRequest), 1, 0, 0, resumes=True),
        Submit(least(GenerationRequest), 1, 0, 0, ("", "me"), 1500, so_far(), True, 2, True),
        Recall(RID, begun=True),
        Credit(RID, 2, 32),
        *(Cancel(RID, why) for why in ("client", "deadline", "shutdown")),
        Ping(BOOT),
    ]


def verifier_messages() -> list[ToProposer]:
    """List what a runner may send to one that drafts for it, beside `Hello` and `Ping`."""
    return [
        Attach(ModelId("drafts"), 3, "5f0c"),
        *(
            Propose(7, 4, 12, pack_ids((1, 70_000)), 9, 8, 0, 2**64 - 1, sampling, 60_000)
            for sampling in specimens(Sampling)
        ),
        Withdraw(4),
    ]


def proposer_messages() -> list[FromProposer]:
    """List what a runner may send to one that it drafts for, beside `Welcome` and `Pong`."""
    return [
        Attached(4096),
        Proposed(7, pack_ids((1, 70_000)), 2, 3, 1 << 30),
        *(ProposalRefused(7, refusal, 5) for refusal in specimens(Refusal)),
        ProposalRefused(0, least(Refusal), 0),
    ]


def gateway_messages() -> list[ToGateway]:
    """List what a runner may send to a gateway process; entries come in `entries`."""
    return [
        Welcome(InstanceId("inst-4f1c9a02"), 3, BOOT, 1),
        Goodbye("this runner is leaving"),
        Accepted(RID, 2, 4096),
        Accepted(RID, 0, 0),
        Accepted(RID, 2, 4096, ("tools.strict",)),
        *(Refused(RID, refusal) for refusal in specimens(Refusal)),
        Displaced(RID),
        Suspended(RID, so_far()),
        Accepted(RID, 0, 4096, (), True),
        Begun(RID, pack_ids((1, 2, 70_000)), 400, (2**64 - 1, -(2**63)), 2),
        Traced(RID, 12.5, 12.75, 13.5, 1, ()),
        Traced(RID, 12.5, 12.75, 13.5, 2, tuple(trace_spans())),
        Traced(RID, 12.5, 12.75, 13.5, 1, (), (NodeId("n0123456789"), NodeId("n2"))),
        RankTraced(RID, 1, -0.5, 0.25, rank_spans()),
        RankTraced(RID, 2, 0.0, 0.0, None),
        Pong(BOOT, 1 << 33, True),
        Pong(BOOT, 0, False),
        StepEntries(1 << 20, ()),
        StepEntries(17, tuple(entries())),
    ]


def so_far() -> AnswerSoFar:
    """Return an answer of two choices that was begun, one of which tells log-probabilities."""
    logprobs = ((-0.5, ((7, -0.5), (9, -1.0))), (-2.0, ()))
    begun, not_yet = ChoiceSoFar(2**64 - 1, (7, 8), 1, logprobs), ChoiceSoFar(-(2**63), (), 0)
    return AnswerSoFar((1, 2, 3), 400, (begun, not_yet), Usage(prompt_tokens=3, decode_s=0.5))


def trace_spans() -> list[TraceSpan]:
    """List a span of each name."""
    names = sorted(get_args(SpanName))
    return [
        TraceSpan(name, n % 2, n / 8, n / 8 + 0.125, n, n, 0.0625, 0.25)
        for n, name in enumerate(names)
    ]


def rank_spans() -> RankSpans:
    """Return what a rank tells, with each part, each turn and each kind of crossing."""
    seconds = tuple(n / 16 for n in range(len(RANK_PARTS)))
    return RankSpans(
        12.5,
        4.0,
        tuple(
            RankTurn(name, n, 1 + n, n / 4, n / 4 + 0.25, 7 * n, seconds)
            for n, name in enumerate(sorted(get_args(RankTurnName)))
        ),
        tuple(RankPart(name, n / 8, n / 8 + 0.125) for n, name in enumerate(RANK_PARTS)),
        tuple(
            RankCrossing(what, 70_000, n, n, n == 1, 4096 * n, n / 8)
            for n, what in enumerate(sorted(get_args(Crosses)))
        ),
        (RankTotal("hidden", 1, True, 300, 1 << 33), RankTotal("tokens", 0, False, 0, 0)),
    )


def entries() -> list[Entry]:
    """List every entry of a step, with and without what may be left out."""
    top = ((5, " a", -0.5), (70_000, "é\n", -12.25))
    logprobs = (TokenLogprob(5, " a", -0.5, top), TokenLogprob(6, "", -1.0, ()))
    spent, none = full(Usage), Usage()
    return [
        TokenDelta(RID, 1, 0, "text", "Fish 🐟", 1),
        TokenDelta(RID, 2, 1, "reasoning", "", 0),
        TokenDelta(RID, 3, 0, "text", " a", 2, logprobs),
        PromptTokens(RID, 4, 0, 0, "a", (TokenLogprob(5, "a", 0.0, ()), *logprobs)),
        PromptTokens(RID, 5, 0, 64, "", ()),
        ToolCallDelta(RID, 4, 0, 1, "call_1", "look", '{"a":', 3),
        ToolCallDelta(RID, 5, 0, 1, None, None, " 1}", 0),
        TokenDelta(RID, 3, 0, "text", " a", 2, (), pack_ids((5, 70_000))),
        TokenDelta(RID, 3, 0, "text", " a", 2, logprobs, pack_ids((5, 6)), ((-0.5, ((5, -1.0),)),)),
        ToolCallDelta(RID, 4, 0, 1, "call_1", "look", '{"a":', 1, pack_ids((5,))),
        ToolCallDelta(RID, 4, 0, 1, None, None, "1", 1, pack_ids((6,)), ((-0.5, ()),)),
        ChoiceEnd(RID, 6, 0, "stop", "\n\n"),
        *(ChoiceEnd(RID, 7, 2, finish, None) for finish in FINISHES),
        PrefillProgress(RID, 8, 512, 70_000),
        Finished(RID, 9, spent),
        Finished(RID, 10, none),
        Finished(RID, 13, none, PromptAnswer((5, 70_000), "", 4096)),
        Finished(RID, 14, none, PromptAnswer((), "<s>Fish 🐟\n", 0)),
        Vectors(RID, 15, 0, 0, (bytes(range(16)), b"\0" * 16), (1,)),
        Vectors(RID, 16, 0, 2, (), ()),
        *(Failed(RID, 11, reason, "it ended", spent, {"field": "n", "x": [1]}) for reason in FAILS),
        Failed(RID, 12, "internal", "", none, {}),
    ]


def follower_messages() -> list[ToRank]:
    """List what a lead may send to a follower."""
    row = RowSpec(RowId(8), (TokenId(1), TokenId(70_000)), Sampling(temperature=0.0), seed=0)
    scored = RowSpec(RowId(11), (TokenId(3),), Sampling(temperature=0.0), seed=0, prompt_logprobs=0)
    traced = RowSpec(RowId(12), (TokenId(3),), Sampling(temperature=0.0), seed=0, traced=RID)
    resumed = RowSpec(RowId(9), (TokenId(2),), Sampling(temperature=0.0), seed=0, made=1)
    plan = StepPlan(
        step=70_001,
        release=(RowId(1), RowId(2)),
        preempt=(RowId(3),),
        evict=(EntryId(4), EntryId(300)),
        admit=(row, resumed),
        hits=(PrefixHit(RowId(8), EntryId(5), 1),),
        prefill=((PrefillChunk(RowId(8), 1, 2), PrefillChunk(RowId(9), 0, 1)), ()),
        decode=(RowId(6), RowId(7)),
        insert=(PrefixInsert(EntryId(6), RowId(8), 2),),
        digest=0xFEDCBA98,
    )
    return [
        SharedPlan(plan, covers=69_999, barred=(RowId(10),)),
        SharedPlan(StepPlan(step=1), covers=0),
        SharedPlan(StepPlan(step=2, admit=(scored,)), covers=0),
        SharedPlan(StepPlan(step=3, admit=(traced,)), covers=0),
        FormNow(),
        Agreement(1 << 33, 1 << 34, 4096, 512, 32_768, 151_936, True, False, True),
        Agreement(0, 0, 0, 0, 0, 0, False, True, False),
        RankBeat(70_000),
        RankPing(12.5),
        AskTrace(RID, 70_000),
        RankGone("told to", True),
        RankGone("lost", False),
    ]


def lead_messages() -> list[ToLead]:
    """List what a follower may send to its lead."""
    return [
        RankHello(1, 7, bytes(range(32))),
        RankMemory(32, 5_000_000_000, 4_000_000_000),
        RankFacts(1, "ab" * 32, "bfloat16", 1 << 33, 1 << 34, 4096, 512, 9, 11, True, False, True),
        RankFacts(0, "", "", 0, 0, 0, 0, 0, 0, False, True, False),
        RankBeat(0),
        RankPong(12.5, 70.25, 70.5),
        RankTrace(RID, rank_spans()),
        RankTrace(RID, None),
        RankGone("told to", True),
        RankGone("lost", False),
    ]


def frames() -> dict[str, Recorded]:
    """Pack every data frame and every frame between ranks, by direction and tag."""
    return {
        "to_runner": _tagged(map(pack_to_runner, runner_messages())),
        "to_gateway": _tagged(map(pack_to_gateway, gateway_messages())),
        "to_proposer": _tagged(map(pack_to_runner, verifier_messages())),
        "to_verifier": _tagged(map(pack_to_gateway, proposer_messages())),
        "to_rank": _tagged(map(pack_rank, follower_messages())),
        "to_lead": _tagged(map(pack_rank, lead_messages())),
    }


def entry_tags() -> list[str]:
    """List the tags of entries that the recorded steps hold."""
    return sorted({row[0] for row in unpack(pack_to_gateway(gateway_messages()[-1]))[2]})


def untold() -> set[str]:
    """Name the types of frames and entries of which nothing here is an example."""
    told: list[tuple[Any, Callable[[], Iterable[Any]]]] = [
        (ToRunner, runner_messages),
        (ToGateway, gateway_messages),
        (ToProposer, verifier_messages),
        (FromProposer, proposer_messages),
        (Entry, entries),
        (ToRank, follower_messages),
        (ToLead, lead_messages),
    ]
    return {
        kind.__name__
        for union, examples in told
        for kind in set(get_args(union)) - {type(one) for one in examples()}
    }


def _tagged(packed: Iterable[bytes]) -> Recorded:
    found: Recorded = {}
    for data in packed:
        found.setdefault(unpack(data)[0], []).append(data)
    return dict(sorted(found.items()))
