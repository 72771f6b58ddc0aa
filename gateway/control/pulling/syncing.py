"""Talks to the workers: copies several models to nodes, a few at a time for each node.

If a copy fails, the other copies continue. If the caller stops early, finished copies remain.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass

from bus.wire.errors import OwnerSilent
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import PullState
from gateway.control.pulling.sync_plan import CopyAt

AT_ONCE = 2
"""Copies that a node makes at a time; its worker accepts no more."""

AskForCopy = Callable[[NodeId, ModelId], AsyncGenerator[PullState]]
"""Has a node copy a model until the generator is closed. Raises OwnerSilent."""


@dataclass(frozen=True, slots=True)
class CopyState:
    """The state of a copy."""

    copy: CopyAt
    state: PullState


async def copied(ask: AskForCopy, wanted: Iterable[CopyAt]) -> AsyncGenerator[CopyState]:
    """Make the copies and yield their states until all have ended. Closing the generator early
    stops the unfinished copies."""
    states: asyncio.Queue[CopyState | None] = asyncio.Queue()
    left: dict[NodeId, deque[CopyAt]] = {}
    for copy in wanted:
        left.setdefault(copy.node, deque()).append(copy)
    tasks = [
        asyncio.ensure_future(_some(ask, copies, states))
        for copies in left.values()
        for _ in range(min(AT_ONCE, len(copies)))
    ]
    try:
        going = len(tasks)
        while going:
            state = await states.get()
            if state is None:
                going -= 1
            else:
                yield state
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _some(
    ask: AskForCopy, copies: deque[CopyAt], states: asyncio.Queue[CopyState | None]
) -> None:
    """Make one copy after another until none is left."""
    try:
        while copies:
            copy = copies.popleft()
            async for state in _states_of(ask, copy):
                states.put_nowait(CopyState(copy, state))
    finally:
        states.put_nowait(None)


async def _states_of(ask: AskForCopy, copy: CopyAt) -> AsyncGenerator[PullState]:
    try:
        async with contextlib.aclosing(ask(copy.node, copy.model)) as states:
            async for state in states:
                yield state
    except OwnerSilent as silent:
        yield PullState(model=copy.model, phase="failed", reason="broken", message=str(silent))
