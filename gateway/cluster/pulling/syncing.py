"""Talks to the workers: has several models copied to nodes, a few at a time for each node.

One copy that fails ends none of the others; what came of those that are left early is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass

from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import PullState
from gateway.cluster.cancels import OwnerSilent
from gateway.cluster.pulling.sync_plan import CopyAt

AT_ONCE = 2
"""Copies that a node is asked for at a time: its worker makes no more."""

AskForCopy = Callable[[NodeId, ModelId], AsyncGenerator[PullState]]
"""Has a node copy a model, for as long as what it returns is not closed. Raises OwnerSilent."""


@dataclass(frozen=True, slots=True)
class CopyState:
    """How far a copy is."""

    copy: CopyAt
    state: PullState


async def copied(ask: AskForCopy, wanted: Iterable[CopyAt]) -> AsyncGenerator[CopyState]:
    """Have everything copied that is wanted, and yield how far each is until all have ended.
    Leaving it early stops those that have not."""
    told: asyncio.Queue[CopyState | None] = asyncio.Queue()
    left: dict[NodeId, deque[CopyAt]] = {}
    for one in wanted:
        left.setdefault(one.node, deque()).append(one)
    tasks = [
        asyncio.ensure_future(_some(ask, copies, told))
        for copies in left.values()
        for _ in range(min(AT_ONCE, len(copies)))
    ]
    try:
        going = len(tasks)
        while going:
            state = await told.get()
            if state is None:
                going -= 1
            else:
                yield state
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _some(
    ask: AskForCopy, copies: deque[CopyAt], told: asyncio.Queue[CopyState | None]
) -> None:
    """Take one copy after the other, while there are any."""
    try:
        while copies:
            one = copies.popleft()
            async for state in _one(ask, one):
                told.put_nowait(CopyState(one, state))
    finally:
        told.put_nowait(None)


async def _one(ask: AskForCopy, one: CopyAt) -> AsyncGenerator[PullState]:
    try:
        async with contextlib.aclosing(ask(one.node, one.model)) as states:
            async for state in states:
                yield state
    except OwnerSilent as silent:
        text = f"{silent.owner} did not answer within {silent.waited_s:g} s"
        yield PullState(model=one.model, phase="failed", reason="broken", message=text)
