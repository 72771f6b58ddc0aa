"""Talks to this node's records and to the gateways of other nodes: stores, finds, deletes and stops
answers.

An answer is stored on the node whose gateway made it. Its id names that node, so any gateway can
ask that node for it. All HTTP processes of a node share one file, so each of them can read and
delete an answer. To stop an answer in progress, a gateway must reach the process that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bus.calls import PROCESS_ANSWER_S, NodeCalls, ProcessCalls, table
from bus.process.clock import wall
from bus.process.logs import CountedWarning, Log
from bus.wire.calls.answers import (
    AnswerFound,
    AnswersFound,
    Done,
    FindAnswer,
    LabelAnswer,
    ListAnswers,
    ListedAnswer,
    RemoveAnswer,
    StopAnswer,
    StoredAnswer,
)
from bus.wire.calls.processes import StopAnswerHere
from bus.wire.errors import OwnerSilent
from bus.wire.ids import NodeId, RequestId
from gateway.control.cancels import process_of
from gateway.dialects.dialect import KeptAnswer
from gateway.records import kept_answers
from gateway.records.kept_answers import LARGEST_BYTES, AnswerBounds, ListedQuery
from gateway.records.node_records import Make, NodeRecords
from gateway.records.statements import RecordsUnavailable, Statement


@dataclass(frozen=True, slots=True)
class AnswersListed:
    """A list of answers, as request ids, and the nodes whose answers are missing, each with a
    reason."""

    requests: tuple[RequestId, ...]
    missing: tuple[str, ...]


def _nothing() -> Sequence[Statement]:
    return ()


@dataclass(frozen=True, slots=True)
class HowKept:
    """How to store an answer: `make` returns the SQL statements. If the answer cannot be stored,
    `why` has the reason."""

    make: Make = _nothing
    why: str = ""


class AnswerRecords:
    """Stores and finds answers, each by the id of the request that made it. `stop` stops a request
    of this process. `processes` is the number of HTTP processes of this node."""

    def __init__(
        self,
        *,
        records: NodeRecords,
        bounds: AnswerBounds,
        near: ProcessCalls,
        calls: NodeCalls,
        node: NodeId,
        processes: int,
        stop: Callable[[RequestId], bool],
        log: Log,
    ) -> None:
        self._lost = CountedWarning(log, "an answer was not stored")
        self._records = records
        self._bounds = bounds
        self._near = near
        self._calls = calls
        self._node = node
        self._processes = processes
        self._stop = stop
        self._open: dict[RequestId, str] = {}
        calls.answer(table.FIND_ANSWER, self._find)
        calls.answer(table.LABEL_ANSWER, self._label)
        calls.answer(table.REMOVE_ANSWER, self._remove)
        calls.answer(table.STOP_ANSWER, self._stopped)
        calls.answer(table.LIST_ANSWERS, self._list)
        near.answer(table.STOP_ANSWER_HERE, self._stop_here)

    # --- answers of this process -----------------------------------------------------------------

    def begin(self, owner: str, request: RequestId) -> None:
        """Record that a running request makes an answer that will be stored."""
        self._open[request] = owner

    def end(self, request: RequestId) -> None:
        """Record that the answer has ended, whether it was stored or not."""
        self._open.pop(request, None)

    @property
    def keeps_any(self) -> bool:
        """Return whether this node stores answers."""
        return self._bounds.rows > 0

    async def keep(self, owner: str, request: RequestId, answer: KeptAnswer) -> str:
        """Store an answer durably. Return the reason if that failed, else ""."""
        how = self.how_to_keep(owner, request, answer)
        why = how.why
        if not why:
            try:
                await self._records.write_made(how.make)
            except RecordsUnavailable as error:
                why = str(error)
        return why and self.tell_lost(request, why)

    def how_to_keep(self, owner: str, request: RequestId, answer: KeptAnswer | None) -> HowKept:
        """Return how to store an answer, or the reason why it is not stored. `answer` None: there
        is nothing to store."""
        if answer is None:
            return HowKept()
        size_bytes = kept_answers.size_of(answer)
        if size_bytes > LARGEST_BYTES:
            return HowKept(why=f"the answer has {size_bytes} bytes; the limit is {LARGEST_BYTES}")
        if not self.keeps_any:
            return HowKept(why="this node stores no answers")
        return HowKept(partial(kept_answers.added, owner, request, answer, wall()))

    def tell_lost(self, request: RequestId, why: str) -> str:
        """Log why an answer or a part of it is not stored. Return that reason."""
        self._lost.add(request=request, why=why)
        return why

    # --- answers of any node ---------------------------------------------------------------------

    async def find(self, owner: str, request: RequestId) -> KeptAnswer | None:
        """Return a stored answer of this owner, or None. Raises RecordsUnavailable,
        CallFailed."""
        find = FindAnswer(owner=owner, request=request)
        reply = await self._calls.ask_owner(request, table.FIND_ANSWER, find)
        if reply is None or reply.answer is None:
            return None
        stored = reply.answer
        return KeptAnswer(stored.answer, stored.items, stored.listed, stored.labels)

    async def label(self, owner: str, request: RequestId, labels: bytes) -> bool:
        """Replace the labels of an answer of this owner. Return False if no such answer is stored.
        Raises RecordsUnavailable, CallFailed."""
        label = LabelAnswer(owner=owner, request=request, labels=labels)
        return await self._calls.have_done(request, table.LABEL_ANSWER, label)

    async def remove(self, owner: str, request: RequestId) -> bool:
        """Delete an answer of this owner. Return False if no such answer is stored. Raises
        RecordsUnavailable, CallFailed."""
        remove = RemoveAnswer(owner=owner, request=request)
        return await self._calls.have_done(request, table.REMOVE_ANSWER, remove)

    async def stop(self, owner: str, request: RequestId) -> bool:
        """Stop an answer of this owner that is being made. Return False if none is in progress.
        Raises OwnerSilent, CallFailed."""
        stop = StopAnswer(owner=owner, request=request)
        return await self._calls.have_done(request, table.STOP_ANSWER, stop)

    async def listed(self, owner: str, query: ListedQuery) -> AnswersListed:
        """Return the answers of this owner that `query` selects, from all nodes, in order. Raises
        RecordsUnavailable."""
        question = ListAnswers(
            owner=owner,
            limit=query.limit,
            descends=query.descends,
            after=query.after,
            model=query.model,
            labels=query.labels,
        )
        gathered = await self._calls.ask_each(table.LIST_ANSWERS, question)
        rows = [row for reply in gathered.replies.values() for row in reply.rows]
        rows.sort(key=lambda row: (row.created, row.name), reverse=query.descends)
        requests = tuple(row.request for row in rows[: query.limit])
        return AnswersListed(requests, gathered.missing)

    # --- internals -------------------------------------------------------------------------------

    async def _find(self, call: FindAnswer) -> AnswerFound:
        query = kept_answers.find(call.owner, call.request)
        answer = await self._records.ask(lambda file: kept_answers.answer_in(file.read(query)))
        if answer is None:
            return AnswerFound()
        return AnswerFound(
            answer=StoredAnswer(
                answer=answer.answer,
                items=answer.items,
                listed=answer.listed,
                labels=answer.labels,
            )
        )

    async def _label(self, call: LabelAnswer) -> Done:
        change = kept_answers.labelled(call.owner, call.request, call.labels)
        return Done(done=(await self._records.write([change]))[0] > 0)

    async def _remove(self, call: RemoveAnswer) -> Done:
        change = kept_answers.removed(call.owner, call.request)
        return Done(done=(await self._records.write([change]))[0] > 0)

    async def _list(self, call: ListAnswers) -> AnswersFound:
        query = ListedQuery(call.limit, call.descends, call.after, call.model, call.labels)
        question = kept_answers.listed(call.owner, query)
        [rows] = await self._records.ask(lambda file: file.read([question]))
        return AnswersFound(
            rows=tuple(
                ListedAnswer(request=request, created=created, name=name)
                for request, created, name in rows
            )
        )

    def _stop_here(self, call: StopAnswerHere) -> Done:
        is_open = self._open.get(call.request) == call.owner
        return Done(done=is_open and self._stop(call.request))

    async def _stopped(self, call: StopAnswer) -> Done:
        number = process_of(call.request, self._node)
        if number is None or number >= self._processes:
            return Done(done=False)
        stop = StopAnswerHere(owner=call.owner, request=call.request)
        reply = await self._near.ask(number, table.STOP_ANSWER_HERE, stop)
        if reply is None:
            raise OwnerSilent(f"HTTP process {number} of this node", PROCESS_ANSWER_S)
        return reply
