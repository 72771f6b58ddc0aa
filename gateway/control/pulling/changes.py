"""Talks to the workers: cancels, pauses and resumes pulls on the nodes that have them.

A node's gateway passes the change to its own worker; other nodes send a call to that gateway.
"""

from __future__ import annotations

from typing import Literal

from bus.calls import Gathered, NodeCalls, ask_service, table
from bus.client import BusClient
from bus.wire.calls.models import CancelPull, PausePull, PullResult, ResumePull
from bus.wire.errors import BadMessage, OwnerSilent, Unavailable
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.gateways import ChangePull, PullChanged
from bus.wire.messages.readings import PullReading, PullState

ANSWER_S = 25.0
"""Time for the worker's answer. It answers a cancellation once the partial files are deleted."""
ENDED = ("done", "failed")
Pulling = tuple[NodeId, PullState]


Change = Literal["cancel", "pause", "resume"]


def answer_pull_changes(calls: NodeCalls, bus: BusClient) -> None:
    """Let the gateways of all nodes change the pulls of this node."""

    async def ask_worker(model: ModelId, change: Change) -> PullResult:
        """Return the worker's answer. Raises OwnerSilent."""
        question = ChangePull(model=model, change=change)
        try:
            answer = await ask_service(bus, bus.endpoints.worker, question, ANSWER_S)
        except Unavailable:
            owner = f"the worker of node {calls.node}"
            raise OwnerSilent(owner, ANSWER_S, "see `shoal nodes`") from None
        except BadMessage as error:
            return PullResult(deleted_bytes=0, why=f"the worker sent an unknown answer: {error}")
        if not isinstance(answer, PullChanged):
            why = "the worker sent an unknown answer; check that it runs the same version of shoal"
            return PullResult(deleted_bytes=0, why=why)
        return PullResult(deleted_bytes=answer.deleted_bytes, why=answer.why)

    calls.answer(table.CANCEL_PULL, lambda call: ask_worker(call.model, "cancel"))
    calls.answer(table.PAUSE_PULL, lambda call: ask_worker(call.model, "pause"))
    calls.answer(table.RESUME_PULL, lambda call: ask_worker(call.model, "resume"))


async def change_pulls(
    calls: NodeCalls, nodes: list[NodeId], model: ModelId, change: Change, *, key: str
) -> Gathered[PullResult]:
    """Change the pulls of a model on these nodes. `key` is the API key of the client
    (`NodeCalls.ask`). Raises OwnerSilent if this node's own worker does not answer."""
    match change:
        case "cancel":
            call = CancelPull(model=model)
            return await calls.ask_each(table.CANCEL_PULL, call, nodes=nodes, key=key)
        case "pause":
            call = PausePull(model=model)
            return await calls.ask_each(table.PAUSE_PULL, call, nodes=nodes, key=key)
        case "resume":
            call = ResumePull(model=model)
            return await calls.ask_each(table.RESUME_PULL, call, nodes=nodes, key=key)


def can_change(state: PullState) -> bool:
    """Return whether a pull runs, or can be resumed."""
    return state.phase != "done" and (state.phase != "failed" or state.background)


def pulls_of(readings: list[PullReading]) -> list[Pulling]:
    """Return the pulls of all nodes, by model and node. If a node has several of a model, return
    the running pull, else the last one."""
    pulls = {
        (pull.model, reading.node): pull
        for reading in readings
        for pull in sorted(reading.pulls, key=lambda pull: pull.phase not in ENDED)
    }
    return [(node, pull) for (_, node), pull in sorted(pulls.items(), key=lambda row: row[0])]


def nodes_pulling(model: ModelId, pulls: list[Pulling]) -> list[NodeId]:
    """Return the nodes whose pulls of a model can be changed."""
    return sorted({node for node, pull in pulls if pull.model == model and can_change(pull)})
