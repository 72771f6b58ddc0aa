"""Talks to the gateways of other nodes: what one asks of the records of another, by a verb.

A question goes over the control plane, `record.asked.<its node>`, and is repeated, for that plane
may drop it; every HTTP process there hears it, and one answers, the next where it stays silent. An
answer is fetched piece by piece, the asker saying from which byte on. The process that answers
makes an answer once, says it as often as it is asked for, and forgets it `HELD_S` after it was last
asked for; a verb that another process may have done before has to stand being done twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from zlib import crc32

from bus.client import BusClient
from bus.process.identity import new_name
from bus.process.logs import story_of
from bus.wire.codec import Envelope, pack, unpack
from bus.wire.errors import ShoalError
from bus.wire.ids import NodeId, RequestId, owner_of
from bus.wire.messages.gateways import (
    RECORD_ANSWER_BYTES,
    RECORD_ARGUMENTS_BYTES,
    RECORD_PIECE_BYTES,
    RecordAnswered,
    RecordAsked,
)
from bus.wire.messages.peers import PeersReading

ANSWER_S = 5.0
"""A node says the first byte of its answer within this, and each further piece."""
WHOLE_S = 30.0
REPEAT_S = 0.4
ATTEMPTS_EACH = 4
"""So often a process is asked before the next one is."""
HELD_S = 10.0
HELD_ANSWERS = 256
HELD_BYTES = 64 << 20
LOOK_S = 1.0

Verb = Callable[[Any], Awaitable[Any]]
"""Answers a question about this node's records: plain data in, plain data out. A ShoalError that
it raises is told to the asker."""


class RecordsElsewhere(ShoalError):
    """Another node has no answer. `why` is `unknown` where the cluster has no such node, `down`
    where it is known not to be there, `silent` where it did not answer within `waited_s`, and
    `refused` where it said why not."""

    def __init__(
        self,
        node: str,
        why: Literal["unknown", "down", "silent", "refused"],
        message: str,
        waited_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.node = node
        self.why = why
        self.waited_s = waited_s


@dataclass(frozen=True, slots=True)
class Standing:
    """What this node knows of another: its name, and why it is not there (empty: it may be)."""

    name: str
    down: str = ""


class Questions(Protocol):
    """What asks nodes about their records, and has theirs answered."""

    def answer(self, verb: str, by: Verb) -> None:
        """Have questions with this verb answered here."""
        ...

    async def ask(self, node: NodeId, verb: str, arguments: Any, *, within_s: float = 0.0) -> Any:
        """Return what a node says, which may take `within_s` to find where that is given. Raises
        RecordsElsewhere; of our own node what its verb raises."""
        ...


async def ask_home(
    questions: Questions, request: RequestId, verb: str, arguments: Sequence[Any]
) -> Any:
    """Return what the node says that a request names; None where it names none that the cluster
    has. Raises as `ask`."""
    home = owner_of(request)
    if home is None:
        return None
    try:
        return await questions.ask(home[0], verb, arguments)
    except RecordsElsewhere as error:
        if error.why == "unknown":
            return None
        raise


def standing_of(
    node: NodeId, *, own: NodeId, names: Mapping[NodeId, str], peers: Iterable[PeersReading]
) -> Standing | None:
    """Return how a node stands to ours by what switchboards tell; None for one that is unknown.
    `names` are those of the nodes that the cluster has."""
    for reading in peers:
        if reading.node != own:
            continue
        for peer in reading.peers:
            if peer.node == node:
                down = "" if peer.status == "linked" else (peer.why or peer.status)
                return Standing(peer.name or names.get(node) or node, down)
    return Standing(names[node] or node) if node in names else None


@dataclass(slots=True)
class _Asked:
    """A question of ours that is open; `heard` is set at every word about it."""

    heard: asyncio.Event
    answer: RecordAnswered | None = None
    works: bool = False
    """Whether its node has said that it is finding the answer."""
    is_slow: bool = False
    """Whether that may take longer than `ANSWER_S`."""


@dataclass(slots=True)
class _Held:
    """An answer of ours that may be asked for again."""

    edition: str
    asked_at: float
    task: asyncio.Task[None] | None = None
    content: bytes | None = None
    refused: str = ""


class RecordQuestions:
    """Questions to other nodes about their records, and theirs about ours.

    `number` is this HTTP process's among the `processes` of this node.
    """

    def __init__(
        self,
        bus: BusClient,
        *,
        number: int,
        processes: int,
        standing: Callable[[NodeId], Standing | None],
    ) -> None:
        self._bus = bus
        self._node = bus.speaker.node
        self._number = number
        self._processes = processes
        self._standing = standing
        self._verbs: dict[str, Verb] = {}
        self._open: dict[str, _Asked] = {}
        self._held: dict[tuple[NodeId, str], _Held] = {}
        bus.hear(f"record.asked.{self._node}", self._heard_question)
        bus.hear(f"record.answered.{self._node}", self._heard_answer)
        bus.reactor.every(LOOK_S, self._forget)

    def answer(self, verb: str, by: Verb) -> None:
        """Have questions with this verb answered here, those of this process included."""
        assert verb not in self._verbs, verb
        self._verbs[verb] = by

    @property
    def verbs(self) -> frozenset[str]:
        """Return what is answered here."""
        return frozenset(self._verbs)

    async def ask(self, node: NodeId, verb: str, arguments: Any, *, within_s: float = 0.0) -> Any:
        """Return what a node says, as plain data. Where `within_s` is given it may take so long to
        find it, as long as it says that it does. Raises RecordsElsewhere; of our own node what its
        verb raises."""
        if node == self._node:
            return await self._verbs[verb](arguments)
        standing = self._standing(node)
        if standing is None:
            raise RecordsElsewhere(node, "unknown", f"the cluster has no node '{node}'")
        if standing.down:
            said = f"node {standing.name} is not there: {standing.down}"
            raise RecordsElsewhere(standing.name, "down", said)
        packed = pack(arguments)
        if len(packed) > RECORD_ARGUMENTS_BYTES:
            raise ValueError(f"the arguments of a record request have {len(packed)} bytes")
        question = RecordAsked(
            question=new_name("ask"), asker=self._node, verb=verb, arguments=packed
        )
        self._open[question.question] = _Asked(asyncio.Event(), is_slow=within_s > 0)
        whole_s = within_s or WHOLE_S
        try:
            async with asyncio.timeout(whole_s):
                content = await self._fetched(node, standing.name, question)
        except TimeoutError:
            raise _silent(standing.name, whole_s) from None
        finally:
            del self._open[question.question]
        return unpack(content, limit_bytes=RECORD_ANSWER_BYTES)

    def close(self) -> None:
        """Let go of what is being found."""
        for held in self._held.values():
            if held.task is not None:
                held.task.cancel()

    # --- to ask ----------------------------------------------------------------------------------

    async def _fetched(self, node: NodeId, name: str, question: RecordAsked) -> bytes:
        """Return the whole answer. Raises RecordsElsewhere."""
        found, edition, attempt = bytearray(), "", 0
        while True:
            wanted = question.model_copy(update={"offset": len(found), "attempt": attempt})
            piece, attempt = await self._piece(node, name, wanted)
            if piece.refused:
                raise RecordsElsewhere(name, "refused", f"node {name}: {piece.refused}")
            if piece.edition != edition:
                edition = piece.edition
                found.clear()  # of another process: those two need not be the same
            if piece.offset != len(found):
                continue
            found += piece.content
            if len(found) >= piece.total_bytes:
                return bytes(found)

    async def _piece(
        self, node: NodeId, name: str, wanted: RecordAsked
    ) -> tuple[RecordAnswered, int]:
        """Return a piece, and the attempt at which it came. Raises RecordsElsewhere."""
        asked = self._open[wanted.question]
        asked.answer = None
        try:
            async with asyncio.timeout(ANSWER_S) as patience:
                while True:
                    asked.heard.clear()
                    self._bus.publish(f"record.asked.{node}", wanted)
                    try:
                        async with asyncio.timeout(REPEAT_S):
                            piece = await self._next(asked, wanted.offset)
                    except TimeoutError:
                        if asked.works and asked.is_slow:
                            patience.reschedule(asyncio.get_running_loop().time() + ANSWER_S)
                        if not asked.works:
                            wanted = wanted.model_copy(update={"attempt": wanted.attempt + 1})
                        asked.works = False
                        continue
                    return piece, wanted.attempt
        except TimeoutError:
            raise _silent(name, ANSWER_S) from None

    @staticmethod
    async def _next(asked: _Asked, offset: int) -> RecordAnswered:
        """Return the next word that is a piece from `offset` on, or begins another edition."""
        while True:
            await asked.heard.wait()
            asked.heard.clear()
            answer, asked.answer = asked.answer, None
            if answer is not None and (answer.refused or answer.offset == offset):
                return answer

    def _heard_answer(self, _topic: str, envelope: Envelope) -> None:
        answer = envelope.message
        if not isinstance(answer, RecordAnswered):
            return
        asked = self._open.get(answer.question)
        if asked is None:
            return
        if answer.edition or answer.refused:
            asked.answer = answer
            asked.heard.set()
        else:
            asked.works = True

    # --- to answer -------------------------------------------------------------------------------

    def _heard_question(self, topic: str, envelope: Envelope) -> None:
        asked = envelope.message
        if not isinstance(asked, RecordAsked) or topic != f"record.asked.{self._node}":
            return
        turn = crc32(asked.question.encode()) + asked.attempt // ATTEMPTS_EACH
        if turn % self._processes != self._number:
            return
        now = self._bus.reactor.now()
        key = asked.asker, asked.question
        held = self._held.get(key)
        if held is None:
            held = _Held(new_name("edition"), now)
            if self._full:
                held.refused = "too many record requests are open"
            else:
                self._held[key] = held
                held.task = asyncio.ensure_future(self._find(asked, held))
        held.asked_at = now
        self._say(asked, held)

    @property
    def _full(self) -> bool:
        size_bytes = sum(len(one.content) for one in self._held.values() if one.content)
        return len(self._held) >= HELD_ANSWERS or size_bytes >= HELD_BYTES

    async def _find(self, asked: RecordAsked, held: _Held) -> None:
        """Find an answer, and say its first piece."""
        try:
            verb = self._verbs.get(asked.verb)
            if verb is None:
                held.refused = f"unknown request '{asked.verb}'"
            else:
                arguments = unpack(asked.arguments, limit_bytes=RECORD_ARGUMENTS_BYTES)
                found = pack(await verb(arguments))
                if len(found) > RECORD_ANSWER_BYTES:
                    held.refused = f"its answer is too large: {len(found)} bytes"
                else:
                    held.content = found
        except ShoalError as error:
            held.refused = str(error) or type(error).__name__
        except Exception as error:
            self._bus.log.error("a record request failed", error=story_of(error))
            held.refused = "the request failed there; see its log"
        held.task = None
        self._say(asked, held)

    def _say(self, asked: RecordAsked, held: _Held) -> None:
        answer = RecordAnswered(question=asked.question, refused=held.refused)
        if held.content is not None and not held.refused:
            piece = held.content[asked.offset : asked.offset + RECORD_PIECE_BYTES]
            answer = RecordAnswered(
                question=asked.question,
                edition=held.edition,
                offset=asked.offset,
                total_bytes=len(held.content),
                content=piece,
            )
        self._bus.publish(f"record.answered.{asked.asker}", answer)

    def _forget(self) -> None:
        oldest_at = self._bus.reactor.now() - HELD_S
        done = [key for key, one in self._held.items() if one.asked_at < oldest_at]
        for key in done:
            if self._held[key].task is None:
                del self._held[key]


def _silent(name: str, waited_s: float) -> RecordsElsewhere:
    said = f"node {name} did not answer within {waited_s:g} s"
    return RecordsElsewhere(name, "silent", said, waited_s)
