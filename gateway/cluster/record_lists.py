"""Talks to the gateways of all nodes: lists of what each of them keeps, and whose are missing.

Every node that the cluster has is asked at once. One that is not there, does not answer in its time
or refuses is named with the reason, and the list is made without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bus.wire.ids import NodeId
from gateway.cluster.record_questions import RecordQuestions, RecordsElsewhere


@dataclass(frozen=True, slots=True)
class Gathered:
    """What nodes have answered, each once, and the names of those that have not, with why."""

    answers: tuple[Any, ...]
    missing: tuple[str, ...]


class RecordLists:
    """Questions to one node (`questions`) and to all; `everyone` says which there are, `own` is
    among them."""

    def __init__(
        self, questions: RecordQuestions, own: NodeId, everyone: Callable[[], Iterable[NodeId]]
    ) -> None:
        self.questions = questions
        self._own = own
        self._everyone = everyone

    def nodes(self) -> list[NodeId]:
        """Return the nodes that the cluster has, ours among them, in order."""
        return sorted({self._own, *self._everyone()})

    async def ask(self, verb: str, arguments: Sequence[Any]) -> Gathered:
        """Return what each node says. Raises what our own node's verb raises."""
        found = await asyncio.gather(*(self._asked(node, verb, arguments) for node in self.nodes()))
        return Gathered(
            tuple(one for one in found if not isinstance(one, RecordsElsewhere)),
            tuple(
                missing_of(one)
                for one in found
                if isinstance(one, RecordsElsewhere) and one.why != "unknown"
            ),
        )

    async def _asked(self, node: NodeId, verb: str, arguments: Sequence[Any]) -> Any:
        try:
            return await self.questions.ask(node, verb, arguments)
        except RecordsElsewhere as error:
            return error


def missing_of(error: RecordsElsewhere) -> str:
    """Return the name of a node that has not answered, and why not."""
    return f"{error.node} ({error.why})"
