"""Talks to a proposer in another runner: asks for drafts, and notices when they cannot come.

Runs in the main thread. The socket is a DEALER to the proposer's data ROUTER, with the cluster's
keys. Nothing waits for an answer: a lost proposer costs its drafts alone. A question that the
socket does not take is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, assert_never

from bus.links.transport import Change, Link
from bus.service import Shell
from bus.wire.data_frames import pack_to_runner, unpack_ids, unpack_to_verifier
from bus.wire.errors import BadMessage
from bus.wire.ids import TokenId
from bus.wire.messages.control import ProposerPlace, RunnerSpec
from bus.wire.messages.requests import ProposerUse
from bus.wire.messages.tokens import (
    DATA_PROTOCOL_MAX,
    DATA_PROTOCOL_MIN,
    Goodbye,
    Hello,
    Ping,
    Pong,
    Welcome,
)
from bus.wire.proposals import (
    PROPOSALS_PROTOCOL,
    Attach,
    Attached,
    FromVerifier,
    ProposalRefused,
    Propose,
    Proposed,
    ToVerifier,
    Withdraw,
)
from runner.serving.proposer_life import ProposerLife, ProposerTrouble

QUEUED = 64
"""The most messages that wait in the socket for a proposer that does not read."""
REFUSED = "the proposer refused: "


class DraftTaker(Protocol):
    """The part of this runner (a verifier) that gets the drafts. Its methods are called in the main
    thread."""

    def usable(self, why_not: str) -> None:
        """Request drafts from now on if `why_not` is empty; otherwise stop, for the reason
        `why_not`."""
        ...

    def drafted(self, number: int, tokens: Sequence[TokenId]) -> None:
        """Take the draft with this number."""
        ...

    def undrafted(self, number: int, has: int | None) -> None:
        """Record that the draft with this number will not come. `has`: if the proposer refused only
        because it lacks tokens of the row, how many it has."""
        ...


class ProposerLink:
    """The connection to the proposer of a lead runner. `vocabulary`: the digest of its own model's
    tokens; empty until it is loaded."""

    def __init__(self, spec: RunnerSpec, shell: Shell, taker: DraftTaker) -> None:
        assert spec.draft is not None, "the card names no draft model"
        self.vocabulary = ""
        self._shell = shell
        self._reactor = shell.reactor
        self._log = shell.log
        self._taker = taker
        self._place = ProposerPlace(
            instance=spec.instance, generation=spec.generation, model=spec.draft.model
        )
        self._life = ProposerLife(ProposerUse(model=spec.draft.model, state="none"))
        self._link: Link | None = None
        self._lengths: dict[int, int] = {}
        self._sockets = 0

    @property
    def use(self) -> ProposerUse:
        return self._life.use

    @property
    def why_not(self) -> str:
        """Return why no drafts can be requested; empty if they can."""
        return self._life.why_not

    def go_to(self, place: ProposerPlace) -> None:
        """Use the proposer at this place from now on."""
        if place == self._place:
            return
        old, self._place = self._place, place
        where = ("address", "proposer", "proposer_generation", "why")
        if all(getattr(old, name) == getattr(place, name) for name in where):
            return
        self._hang_up()
        now = self._reactor.now()
        self._life.begin(place, now)
        self._log.info("the proposer's place", node=place.node, model=place.model, why=place.why)
        self._taker.usable(self._life.why_not)
        self.watch(now)

    def watch(self, now: float) -> None:
        """Connect to the proposer, ping it, and detect its loss; called a few times a second."""
        if (trouble := self._life.look(now)) is not None:
            self._trouble(trouble, now)
        if self.vocabulary and self._life.may_connect(now):
            self._dial(now)
        if self._link is not None and self._life.pings(now):
            self._send(Ping(self._shell.speaker.boot))

    def ask(self, question: Propose, now: float) -> bool:
        """Send a question; return False if it was dropped."""
        if self._life.state != "ready" or not self._send(question):
            return False
        self._life.note_question(question.number, now)
        self._lengths[question.number] = question.length
        return True

    def withdraw(self, row: int) -> None:
        """Let the proposer forget a row that has ended."""
        if self._life.state == "ready":
            self._send(Withdraw(row))

    def close(self) -> None:
        self._hang_up()

    # --- from the proposer -----------------------------------------------------------------

    def _received(self, frames: list[bytes]) -> None:
        now = self._reactor.now()
        try:
            message = unpack_to_verifier(frames[-1])
            self._life.note_alive(now)
            self._act_on(message, now)
        except (BadMessage, ValueError) as error:
            why = f"{self._place.model} sent an invalid message: {error}"[:200]
            self._trouble(ProposerTrouble("protocol", why), now)

    def _act_on(self, message: ToVerifier, now: float) -> None:
        match message:
            case Welcome():
                self._welcomed(message, now)
            case Pong():
                if (trouble := self._life.ponged(now)) is not None:
                    self._trouble(trouble, now)
                elif self._life.state == "connecting" and self._life.is_near:
                    place = self._place
                    attach = Attach(place.model, place.proposer_generation, self.vocabulary)
                    self._send(attach)
                elif self._life.pings(now):
                    self._send(Ping(self._shell.speaker.boot))
            case Goodbye():
                self._trouble(ProposerTrouble("model_unavailable", message.message[:200]), now)
            case Attached():
                self._life.attached()
                self._log.info(
                    "a proposer in another runner now drafts for this one",
                    node=self._place.node,
                    model=self._place.model,
                )
                self._taker.usable("")
            case Proposed():
                self._proposed(message)
            case ProposalRefused():
                self._refused(message, now)
            case _:
                assert_never(message)

    def _welcomed(self, message: Welcome, now: float) -> None:
        if message.protocol < PROPOSALS_PROTOCOL:
            why = f"the runner of {self._place.model} belongs to an older version of shoal"
            self._trouble(ProposerTrouble("protocol", why), now)
        elif message.instance != self._place.proposer:
            why = f"another runner answers at the address of {self._place.model}"
            self._trouble(ProposerTrouble("unknown_instance", why), now)
        elif self._life.pings(now):
            self._send(Ping(self._shell.speaker.boot))

    def _proposed(self, message: Proposed) -> None:
        """Pass a draft on to the scheduler. A draft of another length than was requested is an
        error."""
        length = self._lengths.pop(message.number, None)
        if length is None:
            return
        tokens = tuple(map(TokenId, unpack_ids(message.tokens)))
        if len(tokens) != length:
            raise ValueError(f"a draft has {len(tokens)} tokens, not {length}")
        self._life.note_answer(message.number, is_draft=True)
        self._taker.drafted(message.number, tokens)

    def _refused(self, message: ProposalRefused, now: float) -> None:
        refusal, number = message.refusal, message.number
        if not number or self._life.state == "connecting":
            self._trouble(ProposerTrouble(refusal.reason, REFUSED + refusal.message[:200]), now)
            return
        self._life.note_answer(number, is_draft=False)
        if self._lengths.pop(number, None) is not None:
            lacks = refusal.reason == "conflict"
            self._taker.undrafted(number, message.has if lacks else None)

    def _changed(self, change: Change) -> None:
        if change == "lost" and self._link is not None:
            why = f"the process of {self._place.model} is gone"
            self._trouble(ProposerTrouble("runner_lost", why), self._reactor.now())

    # --- below -----------------------------------------------------------------------------

    def _dial(self, now: float) -> None:
        place, speaker = self._place, self._shell.speaker
        self._sockets += 1
        name = f"pr:{speaker.node}:{speaker.process}/{speaker.boot}/{self._sockets}"
        link = Link("dealer", identity=name, high_water=QUEUED, security=self._shell.security)
        link.tally = None if place.node is None else self._shell.traffic.way(place.node, "data")
        self._link = link
        self._reactor.watch_changes(link, self._changed)
        self._reactor.watch(link, self._received)
        link.connect(place.address, peer=place.node)
        self._life.connecting(now)
        self._send(Hello(name, speaker.boot, DATA_PROTOCOL_MIN, DATA_PROTOCOL_MAX))

    def _send(self, message: FromVerifier) -> bool:
        return self._link is not None and self._link.send(pack_to_runner(message))

    def _trouble(self, trouble: ProposerTrouble, now: float) -> None:
        """Close the connection, and try the proposer again after a pause. Rows continue without
        drafts."""
        self._hang_up()
        self._life.troubled(trouble, now)
        self._log.warning(
            "the proposer cannot be used",
            node=self._place.node,
            model=self._place.model,
            reason=trouble.reason,
            why=trouble.why,
        )
        self._taker.usable(self._life.why_not)

    def _hang_up(self) -> None:
        self._lengths.clear()
        link, self._link = self._link, None
        if link is not None:
            self._reactor.hang_up(link)
