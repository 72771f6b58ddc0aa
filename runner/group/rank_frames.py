"""The frames that ranks of a group exchange over the plan socket, separately from MLX's ring. A
frame is an array `[tag, *fields]`.

Pure. Followers talk to the lead over its plan socket and the lead answers. Tensors never travel in
these frames. A follower needs only parts of a `RowSpec`: the tokens, whether they are scored, the
adapter, and the request id if it is traced. Only the lead needs the parts for sampling and
grammars. An invalid frame raises `BadMessage`.
"""

from __future__ import annotations

from array import array
from typing import cast

from bus.wire.array_frames import ArrayFrame, astuple, packer, reader
from bus.wire.errors import BadMessage
from bus.wire.ids import RequestId, TokenId
from bus.wire.messages.requests import Sampling
from bus.wire.messages.traces import RankSpans
from runner import engine
from runner.group.lockstep import Agreement, RankFacts, SharedPlan

GREEDY = Sampling(temperature=0.0)


class RankHello(ArrayFrame, tag="hello", frozen=True):
    """Sent by a follower when it connects. `proof` is the `greeting` of its rank."""

    rank: int
    generation: int
    proof: bytes


class FormNow(ArrayFrame, tag="form", frozen=True):
    """Sent by the lead when all ranks have said hello: each rank joins the ring."""


class RankBeat(ArrayFrame, tag="beat", frozen=True):
    """Sent by either side: a heartbeat. `step` is the last step that the sender has computed."""

    step: int


class RankMemory(ArrayFrame, tag="memory", frozen=True):
    """Sent by a follower: its used and allowed memory after `step`. It is sent while the memory
    exceeds the limit, and once when it no longer does."""

    step: int
    used_bytes: int
    limit_bytes: int


class RankGone(ArrayFrame, tag="gone", frozen=True):
    """Sent by either side: the sender is leaving, for this reason, and the group ends. `is_final`:
    retrying cannot help."""

    why: str
    is_final: bool


class RankPing(ArrayFrame, tag="ping", frozen=True):
    """Sent by the lead while a request is traced. The follower answers immediately, so that the
    clocks can be compared."""

    sent_at: float


class RankPong(ArrayFrame, tag="pong", frozen=True):
    """Sent by a follower in answer to a ping: by the follower's clock, the ping arrived at `had_at`
    and was answered at `replied_at`."""

    sent_at: float
    had_at: float
    replied_at: float


class AskTrace(ArrayFrame, tag="ask", frozen=True):
    """Sent by the lead: the request's last step was `step`, and the follower sends its spans."""

    request_id: RequestId
    step: int


class RankTrace(ArrayFrame, tag="trace", frozen=True):
    """Sent by a follower: the spans of a request; None if it has none."""

    request_id: RequestId
    spans: RankSpans | None


class AdmittedRow(ArrayFrame, frozen=True):
    """The part of a `RowSpec` that a follower needs. `tokens` are int32 in the machine's byte
    order. `scored`: log-probabilities of the prompt are requested. Trailing fields are left out if
    they have their defaults."""

    row: engine.RowId
    tokens: bytes
    made: int
    scored: bool = False
    adapter: str = ""
    traced: str = ""


class PlanFrame(ArrayFrame, tag="plan", frozen=True):
    """A `SharedPlan` as a frame: its fields, in wire order."""

    step: int
    covers: int
    digest: int
    barred: tuple[engine.RowId, ...]
    release: tuple[engine.RowId, ...]
    preempt: tuple[engine.RowId, ...]
    evict: tuple[engine.EntryId, ...]
    admit: tuple[AdmittedRow, ...]
    hits: tuple[engine.PrefixHit, ...]
    prefill: tuple[engine.PrefillGroup, ...]
    decode: tuple[engine.RowId, ...]
    insert: tuple[engine.PrefixInsert, ...]


ToRank = FormNow | Agreement | SharedPlan | RankBeat | RankPing | AskTrace | RankGone
ToLead = RankHello | RankFacts | RankBeat | RankMemory | RankPong | RankTrace | RankGone

_pack = packer()
_read_to_rank = reader(
    FormNow | Agreement | PlanFrame | RankBeat | RankPing | AskTrace | RankGone, "a follower"
)
_read_to_lead = reader(ToLead, "a lead")


def pack_rank(message: ToRank | ToLead) -> bytes:
    if isinstance(message, SharedPlan):
        return _pack(_framed(message))
    if isinstance(message, RankFacts | Agreement) and not message.adapters:
        # As earlier builds read it: its last field says nothing.
        tag = "facts" if isinstance(message, RankFacts) else "agreed"
        return _pack((tag, *astuple(message)[:-1]))
    return _pack(message)


def unpack_to_rank(data: bytes) -> ToRank:
    """Return the message in a frame that a follower received. Raises BadMessage."""
    message = _read_to_rank(data)
    return _shared(message) if isinstance(message, PlanFrame) else message


def unpack_to_lead(data: bytes) -> ToLead:
    """Return the message in a frame that the lead received. Raises BadMessage."""
    return _read_to_lead(data)


def _framed(shared: SharedPlan) -> PlanFrame:
    plan = shared.plan
    return PlanFrame(
        plan.step,
        shared.covers,
        plan.digest,
        shared.barred,
        plan.release,
        plan.preempt,
        plan.evict,
        tuple(map(_admitted, plan.admit)),
        plan.hits,
        plan.prefill,
        plan.decode,
        plan.insert,
    )


def _admitted(spec: engine.RowSpec) -> AdmittedRow:
    """Return the part of a row that followers need, without trailing defaults, so that earlier
    builds can read the bytes."""
    plain = (spec.row, array("i", spec.tokens).tobytes(), spec.made)
    scored = spec.prompt_logprobs is not None
    if spec.traced:
        return AdmittedRow(*plain, scored, spec.adapter, spec.traced)
    if spec.adapter:
        return cast(AdmittedRow, (*plain, scored, spec.adapter))
    return cast(AdmittedRow, (*plain, True) if scored else plain)


def _shared(frame: PlanFrame) -> SharedPlan:
    plan = engine.StepPlan(
        step=frame.step,
        release=frame.release,
        preempt=frame.preempt,
        evict=frame.evict,
        admit=tuple(_spec(admitted) for admitted in frame.admit),
        hits=frame.hits,
        prefill=frame.prefill,
        decode=frame.decode,
        insert=frame.insert,
        digest=frame.digest,
    )
    return SharedPlan(plan, covers=frame.covers, barred=frame.barred)


def _spec(admitted: AdmittedRow) -> engine.RowSpec:
    ids = array("i")
    try:
        ids.frombytes(admitted.tokens)
    except ValueError as error:
        raise BadMessage(f"not a plan: {error}") from error
    tokens = tuple(map(TokenId, ids))
    return engine.RowSpec(
        admitted.row,
        tokens,
        GREEDY,
        seed=0,
        made=admitted.made,
        prompt_logprobs=0 if admitted.scored else None,
        adapter=admitted.adapter,
        traced=admitted.traced,
    )
