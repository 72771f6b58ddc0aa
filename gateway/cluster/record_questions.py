"""Talks to the gateways of other nodes: asks one node about its records.

Each kind of question has a verb as its name. A question goes over the control plane as
`record.asked.<node>`. The control plane may drop messages, so the question is repeated. Each HTTP
process of the node receives it and one of them answers; if that one stays silent, the next answers.
The asker fetches the answer piece by piece and names the first byte of each piece. The answering
process computes an answer once and keeps it until `HELD_S` after the last request for a piece. A
second process may run the same verb again, so each verb must be safe to run twice.
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
"""Longest wait for the first byte of an answer, and for each further piece."""
WHOLE_S = 30.0
REPEAT_S = 0.4
ATTEMPTS_EACH = 4
"""Attempts at one process before the next process is asked."""
HELD_S = 10.0
HELD_ANSWERS = 256
HELD_BYTES = 64 << 20
LOOK_S = 1.0

Verb = Callable[[Any], Awaitable[Any]]
"""Answers a question about this node's records: plain data in, plain data out. The asker receives
any ShoalError that it raises."""


class RecordsElsewhere(ShoalError):
    """Another node has no answer.

    `why` is `unknown` (the cluster has no such node), `down` (the node is not connected), `silent`
    (no answer within `waited_s`) or `refused` (the node gave a reason).
    """

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
    """The state of another node, as this node sees it. `down` says why the node is not connected;
    it is empty if the node may be connected."""

    name: str
    down: str = ""


class Questions(Protocol):
    """Asks nodes about their records, and answers their questions."""

    def answer(self, verb: str, by: Verb) -> None:
        """Answer questions with this verb by calling `by`."""
        ...

    async def ask(self, node: NodeId, verb: str, arguments: Any, *, within_s: float = 0.0) -> Any:
        """Return a node's answer. `within_s`: how long the node may take to compute the answer.
        Raises RecordsElsewhere; if the question is for this node, raises the errors of its verb."""
        ...


async def ask_home(
    questions: Questions, request: RequestId, verb: str, arguments: Sequence[Any]
) -> Any:
    """Ask the node that a request id names; None if the cluster has no such node. Raises the errors
    of `Questions.ask`."""
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
    """Return a node's state, from the switchboard's reading of this node; None for an unknown node.
    `names` has the nodes of the cluster."""
    for reading in peers:
        if reading.node != own:
            continue
        for peer in reading.peers:
            if peer.node == node:
                down = "" if peer.status == "linked" else (peer.why or peer.status)
                return Standing(peer.name or names.get(node) or node, down)
    return Standing(names[node] or node) if node in names else None


@dataclass(slots=True)
class _OpenQuestion:
    """A question of this node that has no answer yet. `heard` is set by each message about the
    question."""

    heard: asyncio.Event
    answer: RecordAnswered | None = None
    works: bool = False
    """Whether the asked node says that it is computing the answer."""
    is_slow: bool = False
    """Whether the answer may take longer than `ANSWER_S`."""


@dataclass(slots=True)
class _Held:
    """An answer of this node, kept for further requests for its pieces."""

    edition: str
    asked_at: float
    task: asyncio.Task[None] | None = None
    content: bytes | None = None
    refused: str = ""


class RecordQuestions:
    """Asks other nodes about their records, and answers their questions about the records of this
    node.

    `number` is the number of this HTTP process among the `processes` of this node.
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
        self._open: dict[str, _OpenQuestion] = {}
        self._held: dict[tuple[NodeId, str], _Held] = {}
        bus.hear(f"record.asked.{self._node}", self._heard_question)
        bus.hear(f"record.answered.{self._node}", self._heard_answer)
        bus.reactor.every(LOOK_S, self._forget)

    def answer(self, verb: str, by: Verb) -> None:
        """Answer questions with this verb by calling `by`, also for questions of this process."""
        assert verb not in self._verbs, verb
        self._verbs[verb] = by

    @property
    def verbs(self) -> frozenset[str]:
        """Return the verbs that this process answers."""
        return frozenset(self._verbs)

    async def ask(self, node: NodeId, verb: str, arguments: Any, *, within_s: float = 0.0) -> Any:
        """Return a node's answer, as plain data.

        `within_s`: how long the node may take to compute the answer, while it reports that it is
        computing. Raises RecordsElsewhere; if the question is for this node, raises the errors of
        its verb.
        """
        if node == self._node:
            return await self._verbs[verb](arguments)
        standing = self._standing(node)
        if standing is None:
            raise RecordsElsewhere(node, "unknown", f"the cluster has no node '{node}'")
        if standing.down:
            message = f"node {standing.name} is not connected: {standing.down}"
            raise RecordsElsewhere(standing.name, "down", message)
        packed = pack(arguments)
        if len(packed) > RECORD_ARGUMENTS_BYTES:
            raise ValueError(f"the arguments of a record request have {len(packed)} bytes")
        question = RecordAsked(
            question=new_name("ask"), asker=self._node, verb=verb, arguments=packed
        )
        self._open[question.question] = _OpenQuestion(asyncio.Event(), is_slow=within_s > 0)
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
        """Cancel the answers that are still being computed."""
        for held in self._held.values():
            if held.task is not None:
                held.task.cancel()

    # --- to ask ----------------------------------------------------------------------------------

    async def _fetched(self, node: NodeId, name: str, question: RecordAsked) -> bytes:
        """Return the whole answer. Raises RecordsElsewhere."""
        content, edition, attempt = bytearray(), "", 0
        while True:
            wanted = question.model_copy(update={"offset": len(content), "attempt": attempt})
            piece, attempt = await self._piece(node, name, wanted)
            if piece.refused:
                raise RecordsElsewhere(name, "refused", f"node {name}: {piece.refused}")
            if piece.edition != edition:
                edition = piece.edition
                content.clear()  # another process answers: its bytes may differ
            if piece.offset != len(content):
                continue
            content += piece.content
            if len(content) >= piece.total_bytes:
                return bytes(content)

    async def _piece(
        self, node: NodeId, name: str, wanted: RecordAsked
    ) -> tuple[RecordAnswered, int]:
        """Return a piece and the number of its attempt. Raises RecordsElsewhere."""
        open_question = self._open[wanted.question]
        open_question.answer = None
        try:
            async with asyncio.timeout(ANSWER_S) as patience:
                while True:
                    open_question.heard.clear()
                    self._bus.publish(f"record.asked.{node}", wanted)
                    try:
                        async with asyncio.timeout(REPEAT_S):
                            piece = await self._next(open_question, wanted.offset)
                    except TimeoutError:
                        if open_question.works and open_question.is_slow:
                            patience.reschedule(asyncio.get_running_loop().time() + ANSWER_S)
                        if not open_question.works:
                            wanted = wanted.model_copy(update={"attempt": wanted.attempt + 1})
                        open_question.works = False
                        continue
                    return piece, wanted.attempt
        except TimeoutError:
            raise _silent(name, ANSWER_S) from None

    @staticmethod
    async def _next(open_question: _OpenQuestion, offset: int) -> RecordAnswered:
        """Return the next message that refuses or has the piece at `offset`."""
        while True:
            await open_question.heard.wait()
            open_question.heard.clear()
            answer, open_question.answer = open_question.answer, None
            if answer is not None and (answer.refused or answer.offset == offset):
                return answer

    def _heard_answer(self, _topic: str, envelope: Envelope) -> None:
        answer = envelope.message
        if not isinstance(answer, RecordAnswered):
            return
        open_question = self._open.get(answer.question)
        if open_question is None:
            return
        if answer.edition or answer.refused:
            open_question.answer = answer
            open_question.heard.set()
        else:
            open_question.works = True

    # --- to answer -------------------------------------------------------------------------------

    def _heard_question(self, topic: str, envelope: Envelope) -> None:
        question = envelope.message
        if not isinstance(question, RecordAsked) or topic != f"record.asked.{self._node}":
            return
        turn = crc32(question.question.encode()) + question.attempt // ATTEMPTS_EACH
        if turn % self._processes != self._number:
            return
        now = self._bus.reactor.now()
        key = question.asker, question.question
        held = self._held.get(key)
        if held is None:
            held = _Held(new_name("edition"), now)
            if self._full:
                held.refused = "too many record requests are open"
            else:
                self._held[key] = held
                held.task = asyncio.ensure_future(self._find(question, held))
        held.asked_at = now
        self._say(question, held)

    @property
    def _full(self) -> bool:
        size_bytes = sum(len(held.content) for held in self._held.values() if held.content)
        return len(self._held) >= HELD_ANSWERS or size_bytes >= HELD_BYTES

    async def _find(self, question: RecordAsked, held: _Held) -> None:
        """Compute an answer, then send its first piece."""
        try:
            verb = self._verbs.get(question.verb)
            if verb is None:
                held.refused = f"unknown request '{question.verb}'"
            else:
                arguments = unpack(question.arguments, limit_bytes=RECORD_ARGUMENTS_BYTES)
                content = pack(await verb(arguments))
                if len(content) > RECORD_ANSWER_BYTES:
                    held.refused = f"its answer is too large: {len(content)} bytes"
                else:
                    held.content = content
        except ShoalError as error:
            held.refused = str(error) or type(error).__name__
        except Exception as error:
            self._bus.log.error("a record request failed", error=story_of(error))
            held.refused = "the request failed there; see its log"
        held.task = None
        self._say(question, held)

    def _say(self, question: RecordAsked, held: _Held) -> None:
        answer = RecordAnswered(question=question.question, refused=held.refused)
        if held.content is not None and not held.refused:
            piece = held.content[question.offset : question.offset + RECORD_PIECE_BYTES]
            answer = RecordAnswered(
                question=question.question,
                edition=held.edition,
                offset=question.offset,
                total_bytes=len(held.content),
                content=piece,
            )
        self._bus.publish(f"record.answered.{question.asker}", answer)

    def _forget(self) -> None:
        oldest_at = self._bus.reactor.now() - HELD_S
        done = [key for key, held in self._held.items() if held.asked_at < oldest_at]
        for key in done:
            if self._held[key].task is None:
                del self._held[key]


def _silent(name: str, waited_s: float) -> RecordsElsewhere:
    message = f"node {name} did not answer within {waited_s:g} s"
    return RecordsElsewhere(name, "silent", message, waited_s)
