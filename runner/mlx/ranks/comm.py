# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `async_eval` and its kin untyped)
"""Talks to MLX: joins MLX's group, and exchanges arrays with the other ranks.

Two rules keep the order of exchanges. First, all exchanges of a rank run on one stream, in the
order of the plans, which is the same on every rank (`exchange_order`). Second, a receive is
submitted to the device only after all work that must precede it. It has no inputs, and the device
may run independent parts of one graph in any order. The first stage of a ring submits the receive
of tokens only when it needs them (`await_tokens`), and computes other work until then. On a CPU, a
receive is submitted when bytes have arrived, because the device would spin until then
(`ring_wait`). After an exchange fails, no other is allowed, because it could wait forever.

While a request is traced, a stage on a CPU submits receives, computation and sends one by one, and
waits for each, to record its time. The exchanges and their order do not change.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

import mlx.core as mx

from bus.process.tools import in_words
from bus.wire.messages.control import GroupSpec
from bus.wire.messages.traces import Crosses
from runner.engine import RowId, StepPlan
from runner.group import group_config
from runner.group.group_config import CannotForm
from runner.group.lockstep import RankContext, SharedPlan
from runner.group.rank_recorder import RankRecorder
from runner.group.ring_sockets import ring_sockets
from runner.mlx.ranks.exchange_order import ExchangeOrder, OutOfOrder, Submission
from runner.mlx.ranks.ring_wait import RingWait

AGAIN_S = 0.25
PATIENCE_S = 0.5
"""How long the thread waits for bytes at a socket. After that it lets the device wait."""

LISTENS_S = 0.1
"""How long the last rank of a ring waits before it connects to rank 0, which may not listen yet.
After a failed attempt, MLX tries again only after a second."""

MARK_BYTES = 16
"""Length in bytes of the marks that `on_all_ranks` compares."""

_sockets: list[int] = []
"""The sockets of MLX's ring, which stay open for the life of the process."""


def form(group: GroupSpec, rank: int, deadline_s: float) -> None:
    """Join MLX's group. Must be called in the main thread, before any other use of MLX.

    The call holds the GIL until the group has formed. So only a timer's signal, which arrives in
    the main thread, can end it after `deadline_s`. Raises CannotForm with the reason.
    """
    if not mx.distributed.is_available(group.backend):
        raise CannotForm(f"this machine's MLX has no {group.backend!r} backend")
    with tempfile.TemporaryDirectory(prefix="shoal-ring-") as folder:
        os.environ.update(_environment(group, rank, Path(folder)))
        if group.backend == "ring" and rank == len(group.ranks) - 1:
            time.sleep(LISTENS_S)
        previous = signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, deadline_s, AGAIN_S)
        try:
            joined = mx.distributed.init(strict=True, backend=group.backend)
        except RuntimeError as error:
            raise CannotForm(
                f"rank {rank} could not join the {group.backend} within {deadline_s:.0f} s: "
                + in_words(str(error))
            ) from error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, previous)
    if group.backend == "ring":
        ports = {int(address.partition(":")[2]) for rank in group.ranks for address in rank.ring}
        _sockets[:] = ring_sockets(ports)
    if (joined.rank(), joined.size()) != (rank, len(group.ranks)):
        raise CannotForm(f"rank {rank} of {len(group.ranks)} joined as rank {joined.rank()}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Do nothing. The signal itself ends the system call in which MLX waits."""


def _environment(group: GroupSpec, rank: int, folder: Path) -> Mapping[str, str]:
    if group.backend == "ring":
        path = folder / "hosts.json"
        path.write_text(group_config.ring_hostfile(group))
        return group_config.ring_environment(rank, str(path))
    path = folder / "devices.json"
    path.write_text(group_config.jaccl_devices(group))
    return group_config.jaccl_environment(rank, str(path), group.coordinator)


def meet(context: RankContext) -> GroupComm:
    """Return this rank's exchanges, after `form`. Must be called in the engine's thread. In the
    first exchange, every rank proves that it belongs to the group. Raises CannotForm, which names a
    rank that does not."""
    comm = GroupComm(context)
    mine = mx.array(
        list(group_config.greeting(context.secret, context.generation, context.rank)), mx.uint8
    )
    proofs: list[int] = mx.distributed.all_gather(mine, group=comm.group).tolist()  # pyright: ignore[reportAssignmentType]
    greetings = [
        bytes(proofs[at : at + group_config.GREETING_BYTES])
        for at in range(0, len(proofs), group_config.GREETING_BYTES)
    ]
    rank = group_config.stranger(context.secret, context.generation, greetings)
    if rank is not None:
        raise CannotForm(f"the process that joined as rank {rank} does not belong to the group")
    context.met()
    return comm


class Comm:
    """An engine's exchanges with the other ranks of its group, in the engine's thread.

    This class is for an engine without a group: it exchanges nothing, and submits all work at once;
    `GroupComm` is for a group. Arrays reach the device only through `submit`, `submit_or_hold` and
    `submit_prompt`, which do not wait for it (but see `GroupComm`). The host waits only for arrays
    that were submitted. OutOfOrder means that the caller made an error.
    """

    size = 1
    """The number of ranks in the group, this one included."""
    leads = True
    """Whether this rank makes plans and samples tokens."""
    hears = True
    """Whether sampled tokens reach this rank."""
    microbatches = 1
    """How many microbatches a step has. Pipeline stages compute them at the same time."""

    def tell(self, plan: StepPlan, covers: int, barred: tuple[RowId, ...]) -> None:
        """Send a plan as a `SharedPlan`, without waiting; then submit all held arrays."""

    def least(self, mine: int) -> int:
        """Return the smallest of all ranks' values. All ranks must call this between the same two
        steps. Waits for all submitted work. Raises OutOfOrder while a submission is being built."""
        return mine

    def submit(self, arrays: list[mx.array]) -> None:
        """Submit the held arrays, then `arrays` with the exchanges that they consume."""
        mx.async_eval(arrays)

    def submit_or_hold(self, arrays: list[mx.array]) -> None:
        """Submit the end of a step. A lead on a CPU holds it until `flush` instead, because its
        followers would otherwise wait for their next plan."""
        mx.async_eval(arrays)

    def submit_prompt(self, drawn: list[mx.array], caches: list[mx.array]) -> list[mx.array]:
        """Submit or hold a part of a prompt. Return arrays that are ready when it is computed."""
        everything = [*drawn, *caches]
        mx.async_eval(everything)
        return everything

    def flush(self) -> None:
        """Submit all held arrays, in the order in which they were held."""

    def await_tokens(self, tokens: mx.array) -> None:
        """Submit all deferred receives up to that of `tokens`, which the caller will wait for."""

    def settle(self) -> None:
        """Submit all held or deferred work. Raises OutOfOrder while a submission is being built."""

    def wait_for(self, arrays: list[mx.array]) -> None:
        """Wait until these submitted arrays are computed."""
        mx.eval(arrays)

    def must_evaluate(self, out: mx.array) -> list[mx.array]:
        """Return the arrays of a forward pass's output `out` that must be evaluated although no
        token of this rank depends on them."""
        return []

    def send_tokens(self, tokens: mx.array) -> mx.array:
        """Return the (rows,) int32 tokens; evaluating the result sends them to the other ranks."""
        return tokens

    def recv_tokens(self, count: int, out: mx.array) -> mx.array:
        """Return the tokens that the lead sampled after the forward pass with the output `out`:
        (count,) int32. On a rank that tokens do not reach, return zeros, ready when `out` is."""
        raise OutOfOrder("a rank without a group cannot receive tokens from a lead")


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """A send or a receive in the submission that is being built. `array` is ready when the exchange
    is done. `sends` is the array to send, which is ready before; None for a receive."""

    what: Crosses
    peer: int
    numbered: tuple[int, int]
    array: mx.array
    sends: mx.array | None

    def tell(self, spans: RankRecorder, *, at: float) -> None:
        """Record in `spans` that the data of this exchange was sent, or has arrived, at `at`."""
        spans.crossed(
            self.what,
            self.peer,
            sent=self.sends is not None,
            bytes_=self.array.nbytes,
            at=at,
            numbered=self.numbered,
        )


class GroupComm(Comm):
    """The exchanges of one rank in a group. Must be made in the engine's thread, after `form`.

    Without Metal, the device's queue is short, so submitting a step blocks until most of it is
    computed. Meanwhile the lead could not send the next plan, and the followers would wait for it.
    So the lead holds the end of a step, sends the next plan, and then submits what it held.
    """

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.group: Any = mx.distributed.init(strict=True, backend=context.backend)
        self.size = context.size
        self.leads = context.rank == 0
        self.pipes = context.sharding == "pipeline"
        self.is_first_stage = self.pipes and context.rank == context.size - 1
        self.hears = self.leads or not self.pipes or self.is_first_stage
        buffered = self.pipes and context.backend == "ring"
        # A stage must be able to send tokens before the receiver takes them. The sockets of a ring
        # have buffers for that; it is not known if JACCL has.
        self.microbatches = context.size if buffered else 1
        self._defers = self.is_first_stage and buffered
        on_cpu = not mx.metal.is_available()
        self._order = ExchangeOrder[mx.array, Crossing](holds=self.leads and on_cpu)
        self._ring = RingWait(_sockets) if self.pipes and on_cpu and _sockets else None
        self._spans = context.spans
        self._ways = context.ways
        self._received: mx.array | None = None

    def tell(self, plan: StepPlan, covers: int, barred: tuple[RowId, ...]) -> None:
        """Send a plan to the followers. Only the lead calls this."""
        self.context.tell(SharedPlan(plan, covers, barred))
        self.flush()

    def least(self, mine: int) -> int:
        """Return the smallest of all ranks' values. This is an exchange, and waits for its
        result."""
        self.settle()
        least: list[int] = mx.distributed.all_min(mx.array([mine]), group=self.group).tolist()  # pyright: ignore[reportAssignmentType]
        return least[0]

    def on_all_ranks(self, marks: Sequence[bytes], most: int) -> list[bool]:
        """Return for each mark (`MARK_BYTES` bytes) whether every rank passed it too. A rank may
        pass at most `most` marks. All ranks must call this exchange, which waits for its result."""
        self.settle()
        mine = mx.array(list(b"".join(marks).ljust(most * MARK_BYTES, b"\0")), mx.uint8)
        gathered: list[list[int]] = (
            mx.distributed.all_gather(mine, group=self.group).reshape(self.size, -1).tolist()
        )  # pyright: ignore[reportAssignmentType]
        ranks = [bytes(row) for row in gathered]
        starts = range(0, most * MARK_BYTES, MARK_BYTES)
        held = [{rank[at : at + MARK_BYTES] for at in starts} for rank in ranks]
        return [all(mark in rank for rank in held) for mark in marks]

    def recv_hidden(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        """Return the hidden states from the previous stage, (rows, tokens, width), which may not
        have arrived yet. Before the next receive, submit all arrays that depend on them, and no
        others."""
        arriving = mx.distributed.recv(shape, dtype, self.context.rank + 1, group=self.group)
        self._order.take_in(arriving)
        self._note("hidden", self.context.rank + 1, arriving)
        return arriving

    def send_hidden(self, hidden: mx.array) -> mx.array:
        """Return `hidden`; evaluating the result sends it to the next stage."""
        sent = mx.distributed.send(hidden, self.context.rank - 1, group=self.group)
        self._note("hidden", self.context.rank - 1, sent, hidden)
        return sent

    def wait_for(self, arrays: list[mx.array]) -> None:
        """Wait until these arrays are computed, which may need work by other ranks."""
        before = self._spans.part
        self._spans.enter("compute")
        mx.eval(arrays)
        self._spans.enter(before)

    def must_evaluate(self, out: mx.array) -> list[mx.array]:
        """Return `out` if it is sent to the next stage."""
        return [out] if self.pipes and not self.leads else []

    def send_tokens(self, tokens: mx.array) -> mx.array:
        """Return the tokens. Evaluating the result sends them to the first stage of a pipeline, or
        to all ranks of a tensor group (as a sum)."""
        if self.pipes:
            sent = mx.distributed.send(tokens, self.context.size - 1, group=self.group)
            self._note("tokens", self.context.size - 1, sent, tokens)
            return sent
        return mx.distributed.all_sum(tokens, group=self.group)

    def recv_tokens(self, count: int, out: mx.array) -> mx.array:
        """Return the lead's tokens on a follower. The first stage submits `out` first, because the
        lead's tokens depend on it. In a ring, the receive is deferred until the tokens are
        awaited."""
        none = mx.zeros((count,), mx.int32)
        if self.is_first_stage:
            self.submit([out])
            tokens = mx.distributed.recv((count,), mx.int32, 0, group=self.group)
            self._note("tokens", 0, tokens)
            if self._defers:
                self._order.defer(tokens)
            return tokens
        after = cast(mx.array, mx.depends([none], [out])[0])
        return after if self.pipes else mx.distributed.all_sum(after, group=self.group)

    def submit(self, arrays: list[mx.array]) -> None:
        """Submit the held arrays, and then `arrays`, each when the data that it needs arrives."""
        self._give(self._order.submit(arrays))

    def submit_or_hold(self, arrays: list[mx.array]) -> None:
        """Hold `arrays` if this rank is a lead that computes on a CPU; otherwise submit them."""
        self._give(self._order.submit_or_hold(arrays))

    def submit_prompt(self, drawn: list[mx.array], caches: list[mx.array]) -> list[mx.array]:
        """Submit a part of a prompt; in a pipeline, hold it if `submit_or_hold` would. Return the
        arrays to wait for. If this rank holds submissions, the caches are not among them, because a
        held step may change the caches in place."""
        everything = [*drawn, *caches]
        if not self.pipes:
            self.submit(everything)
            return everything
        awaited = (drawn or self._order.arriving) if self._order.holds else everything
        self.submit_or_hold(everything)
        return awaited

    def flush(self) -> None:
        self._give(self._order.flush())

    def await_tokens(self, tokens: mx.array) -> None:
        self._give(self._order.awaited(tokens))

    def settle(self) -> None:
        self._give(self._order.settled())

    def _note(
        self, what: Crosses, peer: int, crossing: mx.array, sends: mx.array | None = None
    ) -> None:
        """Count the bytes of an exchange. While a request is traced, also note the exchange, so
        that its time is recorded when it is submitted."""
        if (way := self._ways.get(peer)) is not None:
            (way.add_received if sends is None else way.add_sent)(crossing.nbytes)
        if self._ring is not None and self._spans.notes:
            numbered = self._spans.numbered(what, peer, sent=sends is not None)
            self._order.note(Crossing(what, peer, numbered, crossing, sends))

    def _give(self, submissions: Sequence[Submission[mx.array, Crossing]]) -> None:
        spans = self._spans
        if spans.notes:
            self._give_noted(submissions)
            return
        before = spans.part
        spans.enter("compute")
        for submission in submissions:
            if submission.arrival is not None:
                self._await_bytes(submission.arrival)
            mx.async_eval(submission.arrays)
        spans.enter(before)

    def _await_bytes(self, arrival: mx.array) -> None:
        if self._ring is not None:
            if self._received is not None:
                mx.eval(self._received)
            self._ring.wait(PATIENCE_S)
            self._received = arrival

    def _give_noted(self, submissions: Sequence[Submission[mx.array, Crossing]]) -> None:
        """Give MLX the submissions in order while a request is traced. Wait for each send and
        receive before the next, so that its recorded time is when its data was sent or arrived."""
        spans = self._spans
        before = spans.part
        for submission in submissions:
            if submission.arrival is not None:
                spans.enter("wait")
                self._await_bytes(submission.arrival)
            for crossing in submission.notes:
                if crossing.sends is None:
                    spans.enter("receive")
                    mx.eval(crossing.array)
                    crossing.tell(spans, at=spans.enter("compute"))
                else:
                    spans.enter("compute")
                    mx.eval(crossing.sends)
                    at = spans.enter("send")
                    mx.eval(crossing.array)
                    crossing.tell(spans, at=at)
            spans.enter("compute")
            mx.async_eval(submission.arrays)
        spans.enter(before)
