"""Talks to the gateways of all nodes: gathers a list from each node, and names the nodes that are
missing.

All nodes of the cluster are asked at the same time. If a node is down, silent or refuses, it is
named with the reason, and the list is made without it.
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
    """The answers of nodes, and the names of nodes without an answer, each with the reason."""

    answers: tuple[Any, ...]
    missing: tuple[str, ...]


class RecordLists:
    """Asks one node (`questions`) or all nodes for a list. `everyone` returns the cluster's nodes;
    `own` is this node, which is always added."""

    def __init__(
        self, questions: RecordQuestions, own: NodeId, everyone: Callable[[], Iterable[NodeId]]
    ) -> None:
        self.questions = questions
        self._own = own
        self._everyone = everyone

    def nodes(self) -> list[NodeId]:
        """Return the nodes of the cluster with this node, sorted."""
        return sorted({self._own, *self._everyone()})

    async def ask(self, verb: str, arguments: Sequence[Any]) -> Gathered:
        """Ask all nodes and return their answers. If the question fails on this node, raises that
        error."""
        answers = await asyncio.gather(
            *(self._answer_or_error(node, verb, arguments) for node in self.nodes())
        )
        return Gathered(
            tuple(answer for answer in answers if not isinstance(answer, RecordsElsewhere)),
            tuple(
                missing_of(answer)
                for answer in answers
                if isinstance(answer, RecordsElsewhere) and answer.why != "unknown"
            ),
        )

    async def _answer_or_error(self, node: NodeId, verb: str, arguments: Sequence[Any]) -> Any:
        try:
            return await self.questions.ask(node, verb, arguments)
        except RecordsElsewhere as error:
            return error


def missing_of(error: RecordsElsewhere) -> str:
    """Return the name of a node without an answer, with the reason."""
    return f"{error.node} ({error.why})"
