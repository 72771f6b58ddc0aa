"""Talks to the holder: whether a model that requests wait for can be placed at all.

Asked when waiting for a model begins, and again while it is placed nowhere, as a dry run. A 'no'
that time will not change ends the waiting at once with the holder's own arithmetic; any other
answer leaves it be.
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
"""Reasons for which waiting has no sense."""
ANSWER_S = 10.0


def is_final(refusal: Refusal) -> bool:
    """Return whether waiting has no sense: what is missing is pinned, there is none, or no node on
    which the model could be can start a runner now."""
    if refusal.facts.get("given_up"):
        return True
    in_vain = refusal.reason == "no_capacity" and refusal.retry_after_s is None
    return refusal.reason in FINAL or in_vain


class PlacementCheck:
    """One open question per model."""

    def __init__(self, bus: BusClient, on_never: Callable[[ModelId, Refusal], None]) -> None:
        self._bus = bus
        self._on_never = on_never
        self._asked: set[ModelId] = set()

    def ask(self, model: ModelId) -> None:
        """Ask unless that is being asked already."""
        if model in self._asked:
            return
        self._asked.add(model)
        command = PlaceModel(
            command_id=CommandId(new_name("cmd")), model=model, if_absent=False, dry_run=True
        )
        self._bus.command(command, partial(self._answered, model), deadline_s=ANSWER_S)

    def _answered(self, model: ModelId, answer: Acknowledged | CommandRefused) -> None:
        self._asked.discard(model)
        if isinstance(answer, CommandRefused) and is_final(answer.refusal):
            self._on_never(model, answer.refusal)
