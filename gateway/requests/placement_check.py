"""Talks to the leader: asks whether the cluster can ever load a model that requests wait for.

The question is a dry run of `PlaceModel`. It is sent when the first request begins to wait, and
again while the model has no instance. If the leader refuses for a reason that waiting cannot
change, the waiting requests are refused immediately, with the leader's message. Any other reply has
no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bus.client import BusClient
from bus.process.identity import new_name
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, ModelId
from bus.wire.messages.commands import Acknowledged, CommandRefused, PlaceModel

FINAL = frozenset({"insufficient_memory", "unsupported", "unknown_model", "bad_request"})
"""Reasons of a refusal that waiting cannot change."""
ANSWER_S = 10.0


def is_final(refusal: Refusal) -> bool:
    """Return whether it is useless to wait after this refusal. Examples: the model is unknown,
    pinned models fill the memory, or no node with enough memory can start a runner now."""
    if refusal.facts.get("given_up"):
        return True
    in_vain = refusal.reason == "no_capacity" and refusal.retry_after_s is None
    return refusal.reason in FINAL or in_vain


class PlacementCheck:
    """Asks the leader whether a model can be placed, with at most one open question per model. If
    waiting is hopeless, `on_never` is called with the model and the refusal."""

    def __init__(self, bus: BusClient, on_never: Callable[[ModelId, Refusal], None]) -> None:
        self._bus = bus
        self._on_never = on_never
        self._open: set[ModelId] = set()

    def ask(self, model: ModelId) -> None:
        """Ask the leader whether `model` can be placed, unless the same question is still
        unanswered."""
        if model in self._open:
            return
        self._open.add(model)
        command = PlaceModel(
            command_id=CommandId(new_name("cmd")), model=model, if_absent=False, dry_run=True
        )
        self._bus.command(command, partial(self._receive, model), deadline_s=ANSWER_S)

    def _receive(self, model: ModelId, answer: Acknowledged | CommandRefused) -> None:
        self._open.discard(model)
        if isinstance(answer, CommandRefused) and is_final(answer.refusal):
            self._on_never(model, answer.refusal)
