"""Talks to the other ranks of a group over the lead's plan socket, and to the clock.

Both ends belong to the main thread. `agree` and `tell` are called from the engine's thread and only
pass their message to the main thread. First every follower sends a hello with a proof that it
belongs to the group. When all followers have done so, the lead asks every rank to form the ring. So
no rank waits inside MLX's `init` for a missing one, and errors name a missing rank. From then on
both sides send a heartbeat every `RANK_BEAT_S`. Frames of one peer arrive in order. A rank that
leaves sends a message; otherwise a lost connection or silence shows that it is gone. The cluster
keys do not change during a generation.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from bus.links.reactor import Timer
from bus.links.transport import Change
from bus.process.clock import now as clock_now
from bus.service import Shell
from bus.wire.errors import AlreadyRunning, BadMessage, Exposed, PortTaken
from bus.wire.ids import RequestId
from bus.wire.messages.control import RunnerSpec
from runner.engine import MemoryLook
from runner.group import rank_frames
from runner.group.group_config import CannotForm, greeting
from runner.group.group_traces import GroupTraces, TellRank
from runner.group.lockstep import Agreement, Disagreement, RankFacts, SharedPlan, agree
from runner.group.rank_channel import PlanChannel, PlanListener

TRY_NEXT_S = 2.0
"""After this time without an answer, the follower tries the lead's next address."""
BACK_S = 1.0
"""How long a lost connection to the lead may take to return; after that the lead counts as gone."""


def open_channel(spec: RunnerSpec, shell: Shell, listener: PlanListener) -> PlanChannel:
    """Return this rank's end of the plan socket. Raises CannotForm if the spec's group is invalid,
    or rank 0 cannot listen."""
    end = LeadChannel if spec.rank == 0 else FollowerChannel
    return end(spec, shell, listener)


class LeadChannel(PlanChannel):
    """Rank 0's `PlanChannel`: waits for the other ranks, tells them to form the ring, and sends
    them its plans."""

    def __init__(self, spec: RunnerSpec, shell: Shell, listener: PlanListener) -> None:
        super().__init__(spec, shell, listener, agree=self._agree, tell=self._tell)
        self._peers: dict[int, bytes] = {}
        self._heard_at: dict[int, float] = {}
        self._facts: dict[int, RankFacts] = {}
        self._traces = GroupTraces(spec.size, self.context.spans, self._send_to)
        self._link.is_busy = lambda: True  # a group ends with its connections
        for address in self.group.ranks[0].plans:
            try:
                self._link.bind(address)
            except (AlreadyRunning, Exposed, PortTaken) as error:
                self._link.close()
                raise CannotForm(f"rank 0 cannot listen for the other ranks: {error}") from error
        self._began_at = self._reactor.now()
        self._begin(self._received, self._beat)

    def formed(self) -> None:
        """Start the time limits for silent ranks, because the ring is formed."""
        self._heard_at = dict.fromkeys(self._peers, self._reactor.now())
        super().formed()

    def ask_spans(self, request_id: RequestId, step: int, tell: TellRank) -> None:
        """Request each rank's spans of a request whose last step is `step`; `tell` is called with
        the spans of each rank that answers."""
        self._traces.ask(request_id, step, tell, self._reactor.now())

    def end(self, why: str, *, is_final: bool = False) -> None:
        """Tell the followers to leave, for the reason `why`. `is_final` is not sent to them,
        because only the worker needs it."""
        self._over = True
        self._send_all(rank_frames.RankGone(why, False))

    # --- the engine's thread ---------------------------------------------------------------

    def _agree(self, mine: RankFacts) -> Agreement:
        with self._news:
            self._news.wait_for(lambda: len(self._facts) == len(self.group.ranks) - 1)
            others = [self._facts[seat.rank] for seat in self.group.ranks[1:]]
        agreement = agree([mine, *others])
        self._reactor.call(lambda: self._send_all(agreement))
        return agreement

    def _tell(self, shared: SharedPlan) -> None:
        frame, spans = rank_frames.pack_rank(shared), self.context.spans
        if spans.notes:
            now = clock_now()
            for rank in range(1, self.context.size):
                spans.crossed("plan", rank, sent=True, bytes_=len(frame), at=now)
        self._reactor.call(lambda: self._send_frame(frame))

    # --- the main thread -------------------------------------------------------------------

    def _received(self, frames: Sequence[bytes]) -> None:
        peer = frames[0]
        try:
            message = rank_frames.unpack_to_lead(frames[-1])
        except BadMessage as error:
            self._log.warning("dropped a frame from a rank", error=str(error)[:200])
            return
        if isinstance(message, rank_frames.RankHello):
            self._welcome(peer, message)
            return
        rank = next((rank for rank, other in self._peers.items() if other == peer), None)
        if rank is None:
            return
        self._heard_at[rank] = self._reactor.now()
        if isinstance(message, rank_frames.RankGone):
            self._lose(f"{self._name(rank)} is gone: {message.why}", is_final=message.is_final)
        elif isinstance(message, RankFacts):
            with self._news:
                self._facts[rank] = message
                self._news.notify_all()
        elif isinstance(message, rank_frames.RankMemory):
            look = MemoryLook(message.step, message.used_bytes, message.limit_bytes)
            self.on_memory(rank, look)
        elif isinstance(message, rank_frames.RankPong | rank_frames.RankTrace):
            self._traces.take_answer(rank, message, self._heard_at[rank])

    def _welcome(self, peer: bytes, hello: rank_frames.RankHello) -> None:
        rank, spec = hello.rank, self.context
        expected = 0 < rank < spec.size and hello.generation == spec.generation
        if not expected or not hmac.compare_digest(
            hello.proof, greeting(spec.secret, spec.generation, rank)
        ):
            self._log.warning(
                "refused a hello from an unknown peer", rank=rank, generation=hello.generation
            )
            return
        if rank in self._peers:
            return
        self._peers[rank] = peer
        if len(self._peers) == spec.size - 1:
            self._send_all(rank_frames.FormNow())
            self._listener.form()

    def _check_here(self, now: float, lost_s: float) -> None:
        """Give up the group if a rank does not connect in time."""
        self._began_at = min(now, self._began_at + lost_s)
        missing = [seat for seat in self.group.ranks[1:] if seat.rank not in self._peers]
        if missing and now - self._began_at > self.group.form_deadline_s:
            names = " and ".join(self._name(seat.rank) for seat in missing)
            self._lose(f"{names} did not connect within {self.group.form_deadline_s:g} s")

    def _beat(self) -> None:
        now = self._reactor.now()
        lost_s = self._lost.look(now)
        if self._over:
            return
        if not self._formed:
            self._check_here(now, lost_s)
            return
        self._send_all(rank_frames.RankBeat(self.step))
        self._check_met(now, lost_s)
        limit_s = self._silence_limit_s()
        self._traces.beat(now)
        self._heard_at = {rank: min(now, at + lost_s) for rank, at in self._heard_at.items()}
        for rank, heard_at in self._heard_at.items():
            if now - heard_at > limit_s:
                self._lose(f"{self._name(rank)} was silent for {limit_s:g} s")

    def _name(self, rank: int) -> str:
        return f"rank {rank} on node {self.group.ranks[rank].node}"

    def _send_to(self, rank: int, message: rank_frames.ToRank) -> None:
        self._link.send(self._peers[rank], rank_frames.pack_rank(message))

    def _send_all(self, message: rank_frames.ToRank) -> None:
        self._send_frame(rank_frames.pack_rank(message))

    def _send_frame(self, frame: bytes) -> None:
        for rank, peer in self._peers.items():
            if not self._link.send(peer, frame):
                self._lose(f"{self._name(rank)} is unreachable")


class FollowerChannel(PlanChannel):
    """The `PlanChannel` of every rank but 0: connects to the lead and receives its plans."""

    def __init__(self, spec: RunnerSpec, shell: Shell, listener: PlanListener) -> None:
        super().__init__(spec, shell, listener, agree=self._agree, tell=self._tell)
        self._lead = self.group.ranks[0]
        self._is_forming = False
        self._cut: Timer | None = None
        self._agreement: Agreement | None = None
        self._began_at = self._heard_at = self._tried_at = self._reactor.now()
        self._addresses = self._lead.plans
        self._address = 0
        self._link.connect(self._addresses[0], peer=self._lead.node)
        self._reactor.watch_changes(self._link, self._changed)
        self._begin(self._received, self._beat)
        self._beat()

    def formed(self) -> None:
        """Start the time limit for a silent lead, because the ring is formed."""
        self._heard_at = self._reactor.now()
        super().formed()

    def tell_memory(self, look: MemoryLook) -> None:
        """Send the lead this rank's memory measurement."""
        self._send(rank_frames.RankMemory(look.step, look.used_bytes, look.limit_bytes))

    def tell_spans(self, request_id: RequestId) -> None:
        """Send the lead this rank's spans of a request."""
        self._send(rank_frames.RankTrace(request_id, self.context.spans.take(request_id)))

    def end(self, why: str, *, is_final: bool = False) -> None:
        """Tell the lead that this rank is leaving, for the reason `why`. `is_final`: retrying
        cannot help."""
        if not self._over:
            self._over = True
            self._send(rank_frames.RankGone(why, is_final))

    # --- the engine's thread ---------------------------------------------------------------

    def _agree(self, mine: RankFacts) -> Agreement:
        self._reactor.call(lambda: self._send(mine))
        with self._news:
            self._news.wait_for(lambda: self._agreement is not None)
            if self._agreement is None:
                raise Disagreement("the lead did not send the agreed settings of the group")
            return self._agreement

    def _tell(self, shared: SharedPlan) -> None:
        raise RuntimeError(f"a follower cannot send plans (plan {shared.plan.step})")

    # --- the main thread -------------------------------------------------------------------

    def _received(self, frames: Sequence[bytes]) -> None:
        try:
            message = rank_frames.unpack_to_rank(frames[-1])
        except BadMessage as error:
            self._lose(f"cannot read a message of the lead: {str(error)[:200]}")
            return
        self._heard_at = self._reactor.now()
        match message:
            case SharedPlan():
                self._listener.plan(message)
            case rank_frames.FormNow():
                if not self._is_forming:
                    self._is_forming = True
                    self._listener.form()
            case Agreement():
                with self._news:
                    self._agreement = message
                    self._news.notify_all()
            case rank_frames.RankBeat():
                pass
            case rank_frames.RankPing(sent_at):
                now = self._reactor.now()
                self._send(rank_frames.RankPong(sent_at, self._heard_at, now))
            case rank_frames.AskTrace(request_id, step):
                self.on_ask(request_id, step)
            case rank_frames.RankGone(why, _):
                if not self._over:
                    self._over = True
                    self._listener.ended(why)

    def _beat(self) -> None:
        now = self._reactor.now()
        lost_s = self._lost.look(now)
        self._heard_at = min(now, self._heard_at + lost_s)
        self._began_at = min(now, self._began_at + lost_s)
        self._check_met(now, lost_s)
        if self._over or (self._is_forming and not self._formed):
            return
        if not self._is_forming:
            self._say_hello(now)
            return
        self._send(rank_frames.RankBeat(self.step))
        limit_s = self._silence_limit_s()
        if now - self._heard_at > limit_s:
            self._lose(f"the lead on node {self._lead.node} was silent for {limit_s:g} s")

    def _changed(self, change: Change) -> None:
        if change == "connected" and self._cut is not None:
            self._cut.cancel()
            self._cut = None
        elif change == "lost" and self._cut is None and self._formed:
            self._cut = self._reactor.later(BACK_S, self._lose_lead)

    def _lose_lead(self) -> None:
        self._lose(f"the lead on node {self._lead.node} is gone")

    def _say_hello(self, now: float) -> None:
        deadline_s = self.group.form_deadline_s
        if now - self._began_at > deadline_s:
            self._lose(
                f"the lead on node {self._lead.node} did not form the group within {deadline_s:g} s"
            )
            return
        if now - self._tried_at > TRY_NEXT_S and len(self._addresses) > 1:
            self._link.disconnect(self._addresses[self._address])
            self._address = (self._address + 1) % len(self._addresses)
            self._link.connect(self._addresses[self._address], peer=self._lead.node)
            self._tried_at = now
        context = self.context
        proof = greeting(context.secret, context.generation, context.rank)
        self._send(rank_frames.RankHello(context.rank, context.generation, proof))

    def _send(self, message: rank_frames.ToLead) -> None:
        self._link.send(rank_frames.pack_rank(message))
