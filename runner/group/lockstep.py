"""Ranks of a group in one order: what the lead shares of a step, and how a follower checks it.

Pure. The lead alone decides. It sends every plan, numbered, before it computes it; a follower
computes plans in their order and nothing else. All that an engine would decide by what only the
lead knows (which rows failed, which it refused) is in the `SharedPlan`. A slip in order would
corrupt silently, so a follower checks the number, and where tokens reach it the running digest
of all that the lead had committed; `OutOfStep` is fatal to the group. Before the first plan the
ranks agree: on what every one of them can do, and on the memory of the tightest.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Literal, Protocol

from bus.wire.array_frames import ArrayFrame
from runner.engine import EngineFacts, RowId, SampledToken, StepPlan
from runner.group.rank_recorder import RankRecorder

NOT_EVERYWHERE = "not every node of its group has this adapter; give all of them the same files"
_DIGEST = struct.Struct("<qi")


class OutOfStep(Exception):
    """A follower was given a plan that does not follow from what it has computed."""


class Disagreement(Exception):
    """The ranks do not hold parts of one model; the text names a rank and what differs."""


def digested(digest: int, row: RowId, token: int) -> int:
    """Return the running CRC-32 of committed tokens, with one more."""
    return zlib.crc32(_DIGEST.pack(row, token), digest)


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """A plan as a follower gets it.

    `covers` is the last step that `plan.digest` covers. `barred` rows take no part in it: those
    that failed in the step before, and those of `plan.admit` that the lead refused.
    """

    plan: StepPlan
    covers: int
    barred: tuple[RowId, ...] = ()


@dataclass(slots=True)
class Lockstep:
    """What a follower remembers. `hears` False: tokens do not reach this rank, and numbers alone
    are checked. `read` is the last step whose tokens are known here."""

    hears: bool
    issued: int = 0
    read: int = 0
    _covered: int = 0
    _digest: int = 0
    _made: dict[int, tuple[SampledToken, ...]] = field(
        default_factory=dict[int, tuple[SampledToken, ...]]
    )
    _lost: dict[int, frozenset[RowId]] = field(default_factory=dict[int, frozenset[RowId]])

    def take(self, shared: SharedPlan) -> None:
        """Take the next plan; every step up to `shared.covers` has been read. OutOfStep."""
        step = shared.plan.step
        if step != self.issued + 1:
            raise OutOfStep(f"plan {step} came after plan {self.issued}")
        if not self._covered <= shared.covers <= self.read:
            raise OutOfStep(f"plan {step} covers step {shared.covers} of {self.read}")
        self._lost[self.issued] = frozenset(shared.barred)
        self.issued = step
        while self._covered < shared.covers:
            self._covered += 1
            lost = self._lost.pop(self._covered)
            for sampled in self._made.pop(self._covered):
                if sampled.row not in lost:
                    self._digest = digested(self._digest, sampled.row, sampled.token)
        if self.hears and self._digest != shared.plan.digest:
            raise OutOfStep(
                f"other tokens than the lead's up to step {shared.covers} "
                f"(digest {self._digest:08x}, the lead's is {shared.plan.digest:08x})"
            )

    def made(self, step: int, tokens: Sequence[SampledToken]) -> None:
        """Take the tokens of the next step in order. OutOfStep."""
        if step != self.read + 1:
            raise OutOfStep(f"step {step} was read after step {self.read}")
        self.read = step
        self._made[step] = tuple(tokens)


class RankFacts(ArrayFrame, tag="facts", frozen=True):
    """What one rank found when it had loaded its part.

    `config` is the SHA-256 of its config.json, `precision` what it computes in. `groups`: chunks
    of several rows can be one batch; `slabs`: all of its layers keep ordinary KV. `adapters` are
    those that it holds, each with a digest of what it is; said only where there are some.
    """

    rank: int
    config: str
    precision: str
    weights_bytes: int
    memory_limit_bytes: int
    kv_bytes_per_token: int
    kv_bytes_fixed: int
    context_tokens: int
    vocabulary: int
    batches_ragged: bool
    groups: bool
    slabs: bool
    adapters: tuple[tuple[str, str], ...] = ()

    @property
    def spare_bytes(self) -> int:
        """Return the memory that is left beside the weights."""
        return max(self.memory_limit_bytes - self.weights_bytes, 0)


class Agreement(ArrayFrame, tag="agreed", frozen=True):
    """What all ranks go by. The bytes are in the measure of the tightest rank. `adapters` are those
    that every rank holds; said only where there are some."""

    weights_bytes: int
    memory_limit_bytes: int
    kv_bytes_per_token: int
    kv_bytes_fixed: int
    context_tokens: int
    vocabulary: int
    batches_ragged: bool
    groups: bool
    slabs: bool
    adapters: tuple[str, ...] = ()

    def applied(self, facts: EngineFacts) -> EngineFacts:
        """Return a rank's own facts, with what was agreed in their place."""
        alone = sorted(facts.adapters - set(self.adapters))
        return replace(
            facts,
            weights_bytes=self.weights_bytes,
            memory_limit_bytes=self.memory_limit_bytes,
            kv_bytes_per_token=self.kv_bytes_per_token,
            kv_bytes_fixed=self.kv_bytes_fixed,
            context_tokens=self.context_tokens,
            vocabulary=self.vocabulary,
            batches_ragged=self.batches_ragged,
            trims=self.slabs,
            adapters=frozenset(self.adapters),
            refused_adapters={**facts.refused_adapters, **dict.fromkeys(alone, NOT_EVERYWHERE)},
        )


def agree(ranks: Sequence[RankFacts]) -> Agreement:
    """Return what all ranks go by, from their facts in rank order. Disagreement where they cannot
    be one group.

    Rank r has room for n rows of L tokens if n (L p_r + f_r) <= s_r. With P and F the largest p_r /
    s_r and f_r / s_r, n (L P + F) <= 1 suffices for all; it is stated in bytes of the rank whose p
    / s is P.
    """
    lead = ranks[0]
    for one in ranks[1:]:
        if one.config != lead.config:
            raise Disagreement(f"rank {one.rank} has another config.json than rank 0")
        if one.precision != lead.precision:
            raise Disagreement(
                f"rank {one.rank} computes in {one.precision}, rank 0 in {lead.precision}: "
                "choose one dtype for the model"
            )
    for one in ranks:
        if one.spare_bytes == 0:
            raise Disagreement(f"rank {one.rank} has no memory left beside its weights")
    tightest = max(ranks, key=lambda one: one.kv_bytes_per_token / one.spare_bytes)
    fixed = max(one.kv_bytes_fixed / one.spare_bytes for one in ranks)
    return Agreement(
        weights_bytes=tightest.weights_bytes,
        memory_limit_bytes=tightest.memory_limit_bytes,
        kv_bytes_per_token=tightest.kv_bytes_per_token,
        kv_bytes_fixed=ceil(fixed * tightest.spare_bytes),
        context_tokens=min(one.context_tokens for one in ranks),
        vocabulary=lead.vocabulary,
        batches_ragged=all(one.batches_ragged for one in ranks),
        groups=all(one.groups for one in ranks),
        slabs=all(one.slabs for one in ranks),
        adapters=tuple(
            name
            for name, digest in lead.adapters
            if all((name, digest) in one.adapters for one in ranks)
        ),
    )


class CountsBytes(Protocol):
    """Counts what crosses between this rank and another."""

    def add_sent(self, count: int) -> None:
        """Count bytes that went to the other."""
        ...

    def add_received(self, count: int) -> None:
        """Count bytes that came from the other."""
        ...


@dataclass(frozen=True, slots=True)
class RankContext:
    """One rank's place in its group, and its engine's way to the others.

    `first_layer` up to (not including) `last_layer` are its own. `agree` waits until every rank
    has spoken and the lead has answered; `tell` (the lead's) sends a plan to all followers and
    does not wait; `met` notes that all ranks have proved to be the group's; `spans` has what this
    rank does for traced requests; `ways` count, by rank, what stages exchange with those on
    other nodes. All are called from the engine's thread.
    """

    rank: int
    size: int
    generation: int
    sharding: Literal["pipeline", "tensor"]
    backend: Literal["ring", "jaccl"]
    first_layer: int
    last_layer: int
    secret: str
    agree: Callable[[RankFacts], Agreement]
    tell: Callable[[SharedPlan], None]
    met: Callable[[], None]
    spans: RankRecorder
    ways: Mapping[int, CountsBytes]
