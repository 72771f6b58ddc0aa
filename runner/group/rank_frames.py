"""What ranks of a group say to each other beside the ring: `[tag, *fields]` arrays.

Pure. Followers speak to the lead over its plan socket and it answers; tensors never pass here.
A follower needs only a row's tokens of its `RowSpec`: sampling and grammar are the lead's. What
does not fit raises `BadMessage`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from typing import Any, TypeVar, cast

from bus.wire.codec import MAX_DATA_BYTES, pack, unpack
from bus.wire.errors import BadMessage
from bus.wire.ids import TokenId
from bus.wire.messages.requests import Sampling
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


@dataclass(frozen=True, slots=True)
class RankHello:
    """Follower: I am here, and my proof is that rank's `greeting`."""

    rank: int
    generation: int
    proof: bytes


@dataclass(frozen=True, slots=True)
class FormNow:
    """Lead: all ranks are here; join the ring."""


@dataclass(frozen=True, slots=True)
class RankBeat:
    """Either: I live. `step` is the last one computed."""

    step: int


@dataclass(frozen=True, slots=True)
class RankGone:
    """Either: I am leaving, and why; the group is over. `is_final`: trying again will not help."""

    why: str
    is_final: bool = False


_T = TypeVar("_T", RankFacts, Agreement)
ToRank = FormNow | Agreement | SharedPlan | RankBeat | RankGone
ToLead = RankHello | RankFacts | RankBeat | RankGone


def pack_rank(message: ToRank | ToLead) -> bytes:
    """One frame."""
    match message:
        case SharedPlan():
            return pack(["plan", *_plan_fields(message)])
        case RankHello(rank, generation, proof):
            return pack(["hello", rank, generation, proof])
        case FormNow():
            return pack(["form"])
        case RankBeat(step):
            return pack(["beat", step])
        case RankGone(why, is_final):
            return pack(["gone", why, is_final])
        case RankFacts():
            return pack(["facts", *astuple(message)])
        case Agreement():
            return pack(["agreed", *astuple(message)])


def unpack_to_rank(data: bytes) -> ToRank:
    """A follower's incoming frame, checked, or `BadMessage`."""
    tag, items = _tagged(data)
    match tag, items:
        case "plan", [*_]:
            return _checked(_shared_plan, items)
        case "form", []:
            return FormNow()
        case "beat", [int(step)]:
            return RankBeat(step)
        case "gone", [str(why), bool(is_final)]:
            return RankGone(why, is_final)
        case "agreed", [*_]:
            return _record(Agreement, items)
        case _:
            raise BadMessage(f"not a frame for a follower: {tag!r} with {len(items)} fields")


def unpack_to_lead(data: bytes) -> ToLead:
    """A lead's incoming frame, checked, or `BadMessage`."""
    tag, items = _tagged(data)
    match tag, items:
        case "hello", [int(rank), int(generation), bytes(proof)]:
            return RankHello(rank, generation, proof)
        case "beat", [int(step)]:
            return RankBeat(step)
        case "gone", [str(why), bool(is_final)]:
            return RankGone(why, is_final)
        case "facts", [*_]:
            return _record(RankFacts, items)
        case _:
            raise BadMessage(f"not a frame for a lead: {tag!r} with {len(items)} fields")


def _tagged(data: bytes) -> tuple[str, list[Any]]:
    raw = unpack(data, limit_bytes=MAX_DATA_BYTES)
    if not isinstance(raw, list) or not raw:
        raise BadMessage("a frame between ranks is a non-empty array")
    items = cast(list[Any], raw)
    if not isinstance(items[0], str):
        raise BadMessage("a frame between ranks begins with its tag")
    return items[0], items[1:]


def _record(kind: type[_T], items: list[Any]) -> _T:
    wanted = [str(one.type) for one in fields(kind)]
    found = [type(item).__name__ for item in items]
    if wanted != found:
        raise BadMessage(f"{kind.__name__}: fields {found} where {wanted} are due")
    return kind(*items)


def _checked(read: Callable[[list[Any]], SharedPlan], items: list[Any]) -> SharedPlan:
    try:
        return read(items)
    except (TypeError, ValueError) as error:
        raise BadMessage(f"not a plan: {error}") from error


def _plan_fields(shared: SharedPlan) -> list[Any]:
    plan = shared.plan
    return [
        plan.step,
        shared.covers,
        plan.digest,
        shared.barred,
        plan.release,
        plan.preempt,
        plan.evict,
        [[spec.row, array("i", spec.tokens).tobytes(), spec.made] for spec in plan.admit],
        [[hit.row, hit.entry, hit.length] for hit in plan.hits],
        [[[c.row, c.start, c.stop] for c in group] for group in plan.prefill],
        plan.decode,
        [[insert.entry, insert.row, insert.length] for insert in plan.insert],
    ]


def _shared_plan(items: list[Any]) -> SharedPlan:
    step, covers, digest, barred, release, preempt, evict, *rest = items
    admit, hits, prefill, decode, insert = rest
    return SharedPlan(
        StepPlan(
            step=_number(step),
            release=_rows(release),
            preempt=_rows(preempt),
            evict=tuple(EntryId(_number(entry)) for entry in evict),
            admit=tuple(_spec(*spec) for spec in admit),
            hits=tuple(
                PrefixHit(RowId(row), EntryId(entry), length)
                for row, entry, length in map(_numbers, hits)
            ),
            prefill=tuple(
                tuple(PrefillChunk(RowId(r), start, stop) for r, start, stop in map(_numbers, g))
                for g in prefill
            ),
            decode=_rows(decode),
            insert=tuple(
                PrefixInsert(EntryId(entry), RowId(row), length)
                for entry, row, length in map(_numbers, insert)
            ),
            digest=_number(digest),
        ),
        covers=_number(covers),
        barred=_rows(barred),
    )


def _spec(row: object, tokens: object, made: object) -> RowSpec:
    if not isinstance(tokens, bytes):
        raise TypeError("tokens are bytes")
    ids = array("i")
    ids.frombytes(tokens)
    return RowSpec(
        RowId(_number(row)),
        tuple(TokenId(token) for token in ids),
        Sampling(temperature=0.0),
        seed=0,
        made=_number(made),
    )


def _rows(items: list[Any]) -> tuple[RowId, ...]:
    return tuple(RowId(_number(item)) for item in items)


def _numbers(items: list[Any]) -> list[int]:
    return [_number(item) for item in items]


def _number(item: object) -> int:
    if type(item) is not int:
        raise TypeError(f"{item!r} is not a whole number")
    return item
