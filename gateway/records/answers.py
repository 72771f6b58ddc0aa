"""Talks to the other HTTP processes of this node: answers that are kept, whichever of them has
them.

An answer stays in the process that made it, which its id names. A process asks the one that an id
names; answers that other nodes made are not found here, and a process that has been started anew
has forgotten its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from bus.wire.errors import ShoalError
from bus.wire.ids import NodeId, RequestId, owner_of
from gateway.cluster.http_processes import ANSWER_S, HttpProcesses
from gateway.dialects.dialect import KeptAnswer
from gateway.records.store import AnswerStore


class AnswersSilent(ShoalError):
    """The HTTP process that made an answer did not say within `waited_s` whether it has it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"HTTP process {number} of this node did not answer within {ANSWER_S:g} s")
        self.waited_s = ANSWER_S


@dataclass(frozen=True, slots=True)
class ListedAnswer:
    """An answer in a list: the request that made it, the rest as in `KeptAnswer`."""

    request: RequestId
    listed: bytes
    labels: bytes


class AnswerRecords:
    """The kept answers of this node. An answer is named by its id and by the request's in it.

    `stop` stops a request of this process; `processes` is how many this node has.
    """

    def __init__(
        self,
        *,
        node: NodeId,
        processes: int,
        near: HttpProcesses,
        stop: Callable[[RequestId], bool],
    ) -> None:
        self._node = node
        self._processes = processes
        self._near = near
        self._stop = stop
        self._store = AnswerStore()
        self._open: dict[RequestId, str] = {}

    # --- of this process -----------------------------------------------------------------------

    def begin(self, owner: str, request: RequestId) -> None:
        """Note that an answer is being made which is to be kept."""
        self._open[request] = owner

    def end(self, request: RequestId) -> None:
        """Note that an answer is made no longer, whether it was kept or not."""
        self._open.pop(request, None)

    def keep(self, owner: str, request: RequestId, kept: KeptAnswer) -> bool:
        """Keep an answer of this process; return False for one that is too large."""
        return self._store.keep(owner, request, kept)

    def here(self, verb: str, request: RequestId, owner: str, given: bytes = b"") -> Any:
        """Return what this process says about an answer of its own, as plain data: `find` gives
        the answer and its items, `remove`, `label` and `stop` whether there was something to do,
        `list` all answers of the owner that are in lists."""
        match verb:
            case "find":
                kept = self._store.find(owner, request)
                return None if kept is None else _plain(kept)
            case "label":
                return self._store.label(owner, request, given)
            case "list":
                found = self._store.listed(owner)
                return [[answer_id, kept.listed, kept.labels] for answer_id, kept in found]
            case "remove":
                return self._store.remove(owner, request)
            case "stop":
                return self._open.get(request) == owner and self._stop(request)
            case _:
                return None

    # --- of any process of this node -------------------------------------------------------------

    async def find(self, owner: str, request: RequestId) -> KeptAnswer | None:
        """Return an answer of this owner's, None where none is kept. Raises AnswersSilent."""
        found = await self._asked("find", request, owner)
        if found is None:
            return None
        answer, items, listed, labels = cast(tuple[bytes, list[bytes], bytes, bytes], found)
        return KeptAnswer(answer, tuple(items), listed, labels)

    async def label(self, owner: str, request: RequestId, labels: bytes) -> bool:
        """Give an answer of this owner's other labels; False where there is none. Raises
        AnswersSilent."""
        return await self._asked("label", request, owner, labels) is True

    async def listed(self, owner: str) -> list[ListedAnswer]:
        """Return the answers of this owner that are in lists, of all processes of this node. Raises
        AnswersSilent."""
        numbers = range(self._processes)
        found = await asyncio.gather(*(self._listed(number, owner) for number in numbers))
        return [
            ListedAnswer(RequestId(request), listed, labels)
            for one in found
            for request, listed, labels in one
        ]

    async def _listed(self, number: int, owner: str) -> list[tuple[str, bytes, bytes]]:
        if number == self._near.number:
            return self.here("list", RequestId(""), owner)
        found = await self._near.about_answer(number, "list", RequestId(""), owner)
        if found is None:
            raise AnswersSilent(number)
        return found[0]

    async def remove(self, owner: str, request: RequestId) -> bool:
        """Remove an answer of this owner's; False where there is none. Raises AnswersSilent."""
        return await self._asked("remove", request, owner) is True

    async def stop(self, owner: str, request: RequestId) -> bool:
        """Stop the making of an answer of this owner's that is to be kept; False where none is
        being made. Raises AnswersSilent."""
        return await self._asked("stop", request, owner) is True

    async def _asked(self, verb: str, request: RequestId, owner: str, given: bytes = b"") -> Any:
        """Return what the process says that a request names, None where there is no such process
        on this node."""
        made_by = owner_of(request)
        if made_by is None or made_by[0] != self._node:
            return None
        digits = made_by[1][1:]
        if not (digits.isascii() and digits.isdigit() and len(digits) < 4):
            return None
        number = int(digits)
        if number == self._near.number:
            return self.here(verb, request, owner, given)
        if number >= self._processes:
            return None
        found = await self._near.about_answer(number, verb, request, owner, given)
        if found is None:
            raise AnswersSilent(number)
        return found[0]


def _plain(kept: KeptAnswer) -> list[Any]:
    return [kept.answer, list(kept.items), kept.listed, kept.labels]
