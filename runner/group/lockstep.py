"""Keep the ranks of a group in the same order. This module defines what the lead shares about each
step, and how followers check that.

Pure. Only the lead decides. It sends every plan, numbered, before it computes it; a follower
computes plans in order and does nothing else. Decisions that depend on the lead's knowledge (which
rows failed or were refused) are in the `SharedPlan`. If a rank computed plans in a wrong order, the
results would be wrong without any error. So a follower checks the number and, if tokens reach it,
the running digest of all tokens committed by the lead. `OutOfStep` is fatal to the group. Before
the first plan the ranks agree on the features that all of them have, and on the memory of the rank
with the least.
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

NOT_EVERYWHERE = "not every node of its group has this adapter; copy the same files to all of them"
_DIGEST = struct.Struct("<qi")


class OutOfStep(Exception):
    """A follower received a plan that does not fit the steps that it has computed."""


class Disagreement(Exception):
    """The ranks do not hold parts of one model; the text names a rank and the difference."""


def digested(digest: int, row: RowId, token: int) -> int:
    """Return the running CRC-32 `digest` after one more token of a row."""
    return zlib.crc32(_DIGEST.pack(row, token), digest)


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """A plan as sent to a follower.

    `covers` is the last step that `plan.digest` covers. `barred` rows take no part: they failed in
    the step before, or the lead refused their admission.
    """

    plan: StepPlan
    covers: int
    barred: tuple[RowId, ...] = ()


@dataclass(slots=True)
class Lockstep:
    """The state with which a follower checks the lead's plans. `hears` False: tokens do not reach
    this rank, and only the numbers of plans are checked. `read` is the last step whose tokens are
    known."""

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
        """Check the lead's next plan and accept it. This rank must have read every step up to
        `shared.covers`. Raises OutOfStep."""
        step = shared.plan.step
        if step != self.issued + 1:
            raise OutOfStep(f"plan {step} came after plan {self.issued}, out of order")
        if not self._covered <= shared.covers <= self.read:
            raise OutOfStep(
                f"plan {step} covers the tokens up to step {shared.covers}; this rank checked "
                f"them up to step {self._covered} and knows them up to step {self.read}"
            )
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
                f"this rank's tokens differ from the lead's up to step {shared.covers} "
                f"(digest {self._digest:08x}, the lead's is {shared.plan.digest:08x})"
            )

    def add_tokens(self, step: int, tokens: Sequence[SampledToken]) -> None:
        """Add the tokens of `step`, which must follow the last step with known tokens. Raises
        OutOfStep."""
        if step != self.read + 1:
            raise OutOfStep(f"step {step} was read after step {self.read}, out of order")
        self.read = step
        self._made[step] = tuple(tokens)


class RankFacts(ArrayFrame, tag="facts", frozen=True):
    """Facts about one rank's part of the model after loading.

    `config` is the SHA-256 of its config.json, `precision` its compute dtype. `groups`: chunks of
    several rows can be one batch. `slabs`: all of its layers keep ordinary KV. `adapters` are
    (name, digest) of its adapters; the frame omits the field if it is empty.
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
        """Return the memory that remains after the weights."""
        return max(self.memory_limit_bytes - self.weights_bytes, 0)


class Agreement(ArrayFrame, tag="agreed", frozen=True):
    """The common settings of all ranks. Bytes are those of the rank with the least memory.
    `adapters` are the adapters that every rank has; the frame omits the field if it is empty."""

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
        """Return a rank's own facts, with the values that the ranks agreed on in place of its
        own."""
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
    """Return what all ranks agree on, from their facts in rank order. Raises Disagreement if they
    cannot be one group.

    Rank r has p_r KV bytes per token, f_r fixed bytes per row and s_r spare bytes. It has room for
    n rows of L tokens if n (L p_r + f_r) <= s_r. With P and F the largest p_r / s_r and f_r / s_r,
    n (L P + F) <= 1 suffices for all. The result is in bytes of the rank whose p / s is P.
    """
    lead = ranks[0]
    for rank in ranks[1:]:
        if rank.config != lead.config:
            raise Disagreement(
                f"rank {rank.rank} and rank 0 have different config.json files; copy the "
                "same model to both nodes"
            )
        if rank.precision != lead.precision:
            raise Disagreement(
                f"rank {rank.rank} computes in {rank.precision}, rank 0 in "
                f"{lead.precision}; choose one dtype for the model"
            )
    for rank in ranks:
        if rank.spare_bytes == 0:
            raise Disagreement(
                f"rank {rank.rank} has no memory left for KV after loading its weights"
            )
    tightest = max(ranks, key=lambda rank: rank.kv_bytes_per_token / rank.spare_bytes)
    fixed = max(rank.kv_bytes_fixed / rank.spare_bytes for rank in ranks)
    return Agreement(
        weights_bytes=tightest.weights_bytes,
        memory_limit_bytes=tightest.memory_limit_bytes,
        kv_bytes_per_token=tightest.kv_bytes_per_token,
        kv_bytes_fixed=ceil(fixed * tightest.spare_bytes),
        context_tokens=min(rank.context_tokens for rank in ranks),
        vocabulary=lead.vocabulary,
        batches_ragged=all(rank.batches_ragged for rank in ranks),
        groups=all(rank.groups for rank in ranks),
        slabs=all(rank.slabs for rank in ranks),
        adapters=tuple(
            name
            for name, digest in lead.adapters
            if all((name, digest) in rank.adapters for rank in ranks)
        ),
    )


class CountsBytes(Protocol):
    """Counts the bytes between this rank and another."""

    def add_sent(self, count: int) -> None:
        """Add bytes sent to the other rank."""
        ...

    def add_received(self, count: int) -> None:
        """Add bytes received from the other rank."""
        ...


@dataclass(frozen=True, slots=True)
class RankContext:
    """One rank's place in its group, and its engine's connection to the others.

    Its layers are `first_layer` up to (not including) `last_layer`. `agree` waits until every rank
    has sent its facts and the lead has answered. `tell` (the lead's) sends a plan to all followers
    and does not wait. `met` records that all ranks have proved their identity. `spans` has this
    rank's work for traced requests. `ways` maps ranks on other nodes to counters of the bytes that
    pipeline stages exchange with them. All are called from the engine's thread.
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
