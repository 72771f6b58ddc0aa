"""Talks to this node's records and to the gateways of other nodes: stores, finds, deletes and stops
answers.

An answer is stored on the node whose gateway made it. Its id names that node, so any gateway can
ask that node for it. All HTTP processes of a node share one file, so each of them can read and
delete an answer. To stop an answer in progress, a gateway must reach the process that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, cast

from bus.process.clock import wall
from bus.process.logs import CountedWarning, Log
from bus.wire.errors import ShoalError
from bus.wire.ids import NodeId, RequestId, owner_of
from gateway.cluster.http_processes import ANSWER_S, HttpProcesses
from gateway.cluster.record_lists import RecordLists
from gateway.cluster.record_questions import ask_home
from gateway.dialects.dialect import KeptAnswer
from gateway.records import kept_answers
from gateway.records.file import RecordsFile, RecordsUnavailable
from gateway.records.kept_answers import LARGEST_BYTES, AnswerBounds, ListedQuery
from gateway.records.node_records import Make, NodeRecords
from gateway.records.statements import Statement

_LIST = "answer.list"


class AnswersSilent(ShoalError):
    """The HTTP process that makes an answer did not reply within `waited_s` to the request to
    stop."""

    def __init__(self, number: int) -> None:
        super().__init__(f"HTTP process {number} of this node did not answer within {ANSWER_S:g} s")
        self.waited_s = ANSWER_S


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
    """Either the function that makes the SQL statements that store an answer, or the reason `why`
    it is not stored."""

    make: Make = _nothing
    why: str = ""


class AnswerRecords:
    """Stores and finds answers; each is known by the id of the request that made it. `stop` stops a
    request of this process. `processes` is the number of HTTP processes of this node.
    """

    def __init__(
        self,
        *,
        records: NodeRecords,
        bounds: AnswerBounds,
        near: HttpProcesses,
        far: RecordLists,
        node: NodeId,
        processes: int,
        stop: Callable[[RequestId], bool],
        log: Log,
    ) -> None:
        self._lost = CountedWarning(log, "an answer was not stored")
        self._records = records
        self._bounds = bounds
        self._near = near
        self._far = far
        self._node = node
        self._processes = processes
        self._stop = stop
        self._open: dict[RequestId, str] = {}
        for verb in ("find", "label", "remove", "stop"):
            far.questions.answer(f"answer.{verb}", self._answered(verb))
        far.questions.answer(_LIST, self._list)

    # --- answers of this process -----------------------------------------------------------------

    def begin(self, owner: str, request: RequestId) -> None:
        """Note that the answer to a running request will be stored."""
        self._open[request] = owner

    def end(self, request: RequestId) -> None:
        """Note that the answer has ended, whether it was stored or not."""
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
        """Return how to store an answer, or the reason why it is not stored. If `answer` is None,
        there are no statements."""
        if answer is None:
            return HowKept()
        size_bytes = kept_answers.size_of(answer)
        if size_bytes > LARGEST_BYTES:
            return HowKept(why=f"it has {size_bytes} bytes; the limit is {LARGEST_BYTES}")
        if not self.keeps_any:
            return HowKept(why="this node stores no answers")
        return HowKept(partial(kept_answers.added, owner, request, answer, wall()))

    def tell_lost(self, request: RequestId, why: str) -> str:
        """Log the reason why an answer or a part of it is not stored, and return this reason."""
        self._lost.add(request=request, why=why)
        return why

    def stop_here(self, request: RequestId, owner: str) -> bool:
        """Stop an answer that this process is making. Return False if this process makes no such
        answer."""
        return self._open.get(request) == owner and self._stop(request)

    # --- answers of any node ---------------------------------------------------------------------

    async def find(self, owner: str, request: RequestId) -> KeptAnswer | None:
        """Return a stored answer of this owner, or None. Raises RecordsUnavailable,
        RecordsElsewhere."""
        reply = await self._ask_home("find", request, owner)
        if reply is None:
            return None
        answer, items, listed, labels = cast(tuple[bytes, list[bytes], bytes, bytes], reply)
        return KeptAnswer(answer, tuple(items), listed, labels)

    async def label(self, owner: str, request: RequestId, labels: bytes) -> bool:
        """Replace the labels of an answer of this owner. Return False if no such answer is stored.
        Raises RecordsUnavailable, RecordsElsewhere."""
        return await self._ask_home("label", request, owner, labels) is True

    async def remove(self, owner: str, request: RequestId) -> bool:
        """Delete an answer of this owner. Return False if no such answer is stored. Raises
        RecordsUnavailable, RecordsElsewhere."""
        return await self._ask_home("remove", request, owner) is True

    async def stop(self, owner: str, request: RequestId) -> bool:
        """Stop an answer of this owner that is being made. Return False if none is in progress.
        Raises AnswersSilent, RecordsElsewhere."""
        return await self._ask_home("stop", request, owner) is True

    async def listed(self, owner: str, query: ListedQuery) -> AnswersListed:
        """Return the listed answers of this owner on all nodes, in order. Raises
        RecordsUnavailable."""
        replies = await self._far.ask(_LIST, [owner, *astuple(query)])
        rows = [tuple(row) for answer in replies.answers for row in answer]
        rows.sort(key=lambda row: (row[1], row[2]), reverse=query.descends)
        requests = tuple(RequestId(row[0]) for row in rows[: query.limit])
        return AnswersListed(requests, replies.missing)

    # --- internals -------------------------------------------------------------------------------

    async def _ask_home(self, verb: str, request: RequestId, owner: str, given: bytes = b"") -> Any:
        """Return the reply of the node that the request id names; None if the cluster has no such
        node."""
        return await ask_home(
            self._far.questions, request, f"answer.{verb}", [request, owner, given]
        )

    def _answered(self, verb: str) -> Callable[[Any], Any]:
        async def answered(arguments: Any) -> Any:
            """Answer a call of another gateway."""
            match arguments:
                case [str(request), str(owner), bytes(given)]:
                    return await self._here(verb, RequestId(request), owner, given)
                case _:
                    return None

        return answered

    async def _list(self, arguments: Any) -> list[list[Any]]:
        owner, limit, descends, after, model, labels = arguments
        query = ListedQuery(
            int(limit),
            bool(descends),
            after,
            model,
            tuple((str(name), str(text)) for name, text in labels),
        )
        question = kept_answers.listed(str(owner), query)
        [rows] = await self._records.ask(lambda file: file.read([question]))
        return [list(row) for row in rows]

    async def _here(self, verb: str, request: RequestId, owner: str, given: bytes) -> Any:
        match verb:
            case "find":
                return await self._records.ask(lambda file: _plain(file, owner, request))
            case "label":
                changed = [kept_answers.labelled(owner, request, given)]
                return (await self._records.write(changed))[0] > 0
            case "remove":
                return (await self._records.write([kept_answers.removed(owner, request)]))[0] > 0
            case _:
                return await self._stopped(request, owner)

    async def _stopped(self, request: RequestId, owner: str) -> bool:
        made_by = owner_of(request)
        digits = "" if made_by is None or made_by[0] != self._node else made_by[1][1:]
        if not (digits.isascii() and digits.isdigit() and len(digits) < 4):
            return False
        number = int(digits)
        if number == self._near.number:
            return self.stop_here(request, owner)
        if number >= self._processes:
            return False
        stopped = await self._near.stop_answer(number, request, owner)
        if stopped is None:
            raise AnswersSilent(number)
        return stopped


def _plain(file: RecordsFile, owner: str, request: RequestId) -> list[Any] | None:
    answer = kept_answers.answer_in(file.read(kept_answers.find(owner, request)))
    return answer and [answer.answer, list(answer.items), answer.listed, answer.labels]
