"""Talks to this node's records, and to the gateways of other nodes: answers that are kept.

An answer is in the records of the node whose gateway made it, which its id names; every gateway
asks that node. The HTTP processes of a node share one file; only what stops an answer that is
being made is asked of the process that makes it.
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
    """The HTTP process that makes an answer did not say within `waited_s` whether it stops."""

    def __init__(self, number: int) -> None:
        super().__init__(f"HTTP process {number} of this node did not answer within {ANSWER_S:g} s")
        self.waited_s = ANSWER_S


@dataclass(frozen=True, slots=True)
class AnswersListed:
    """Answers in a list, by the requests that made them, and the nodes whose are missing, with
    why."""

    requests: tuple[RequestId, ...]
    missing: tuple[str, ...]


def _nothing() -> Sequence[Statement]:
    """Return no statements."""
    return ()


@dataclass(frozen=True, slots=True)
class HowKept:
    """What makes the statements that keep an answer; or `why` nothing does."""

    make: Make = _nothing
    why: str = ""


class AnswerRecords:
    """The answers that are kept, by the requests that made them.

    `stop` stops a request of this process; `processes` is how many this node has.
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

    # --- an answer of this process ---------------------------------------------------------------

    def begin(self, owner: str, request: RequestId) -> None:
        """Note that an answer is being made which is to be kept."""
        self._open[request] = owner

    def end(self, request: RequestId) -> None:
        """Note that an answer is made no longer, whether it was kept or not."""
        self._open.pop(request, None)

    @property
    def keeps_any(self) -> bool:
        """Return whether this node keeps answers at all."""
        return self._bounds.rows > 0

    async def keep(self, owner: str, request: RequestId, kept: KeptAnswer) -> str:
        """Keep an answer: it is on the disk when this returns. Return why it is not; empty: it
        is."""
        how = self.kept_by(owner, request, kept)
        why = how.why
        if not why:
            try:
                await self._records.write_made(how.make)
            except RecordsUnavailable as error:
                why = str(error)
        return why and self.tell_lost(request, why)

    def kept_by(self, owner: str, request: RequestId, kept: KeptAnswer | None) -> HowKept:
        """Return how an answer is kept, or why it is not; neither for none."""
        if kept is None:
            return HowKept()
        size_bytes = kept_answers.size_of(kept)
        if size_bytes > LARGEST_BYTES:
            return HowKept(why=f"it has {size_bytes} bytes; the limit is {LARGEST_BYTES}")
        if not self.keeps_any:
            return HowKept(why="this node stores no answers")
        return HowKept(partial(kept_answers.added, owner, request, kept, wall()))

    def tell_lost(self, request: RequestId, why: str) -> str:
        """Say in the log why something of an answer is not kept, and return that."""
        self._lost.add(request=request, why=why)
        return why

    def stop_here(self, request: RequestId, owner: str) -> bool:
        """Stop the making of an answer in this process; return False where there is none."""
        return self._open.get(request) == owner and self._stop(request)

    # --- an answer of any node -------------------------------------------------------------------

    async def find(self, owner: str, request: RequestId) -> KeptAnswer | None:
        """Return an answer of this owner's, None where none is kept. Raises RecordsUnavailable,
        RecordsElsewhere."""
        found = await self._asked("find", request, owner)
        if found is None:
            return None
        answer, items, listed, labels = cast(tuple[bytes, list[bytes], bytes, bytes], found)
        return KeptAnswer(answer, tuple(items), listed, labels)

    async def label(self, owner: str, request: RequestId, labels: bytes) -> bool:
        """Give an answer of this owner's other labels; False where there is none. Raises as
        `find`."""
        return await self._asked("label", request, owner, labels) is True

    async def remove(self, owner: str, request: RequestId) -> bool:
        """Remove an answer of this owner's; False where there is none. Raises as `find`."""
        return await self._asked("remove", request, owner) is True

    async def stop(self, owner: str, request: RequestId) -> bool:
        """Stop the making of an answer of this owner's that is to be kept; False where none is
        being made. Raises AnswersSilent, RecordsElsewhere."""
        return await self._asked("stop", request, owner) is True

    async def listed(self, owner: str, asked: ListedQuery) -> AnswersListed:
        """Return the answers of this owner that are in lists, of all nodes, in their order. Raises
        RecordsUnavailable."""
        found = await self._far.ask(_LIST, [owner, *astuple(asked)])
        rows = [tuple(one) for answer in found.answers for one in answer]
        rows.sort(key=lambda row: (row[1], row[2]), reverse=asked.descends)
        requests = tuple(RequestId(row[0]) for row in rows[: asked.limit])
        return AnswersListed(requests, found.missing)

    # --- below -----------------------------------------------------------------------------------

    async def _asked(self, verb: str, request: RequestId, owner: str, given: bytes = b"") -> Any:
        """Return what the node says that a request names; None where there is no such node."""
        return await ask_home(
            self._far.questions, request, f"answer.{verb}", [request, owner, given]
        )

    def _answered(self, verb: str) -> Callable[[Any], Any]:
        async def answered(arguments: Any) -> Any:
            """Answer one of the verbs, whichever gateway asks."""
            match arguments:
                case [str(request), str(owner), bytes(given)]:
                    return await self._here(verb, RequestId(request), owner, given)
                case _:
                    return None

        return answered

    async def _list(self, arguments: Any) -> list[list[Any]]:
        owner, limit, descends, after, model, labels = arguments
        asked = ListedQuery(
            int(limit),
            bool(descends),
            after,
            model,
            tuple((str(name), str(text)) for name, text in labels),
        )
        question = kept_answers.listed(str(owner), asked)
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
    kept = kept_answers.told(file.read(kept_answers.found(owner, request)))
    return kept and [kept.answer, list(kept.items), kept.listed, kept.labels]
