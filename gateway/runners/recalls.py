"""Which requests are taken back from copies that make way for something urgent.

Pure: time arrives as `now`. A copy has a moment to end what is nearly done; then what waits there,
and what of the batch class runs, goes back to where it waited before. More urgent rows that run
finish, for a turn is given up by what is not in a hurry alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from bus.wire.ids import InstanceId
from bus.wire.instances import Instance
from bus.wire.messages.requests import GenerationRequest
from bus.wire.messages.tokens import Recall

URGENT = 1
"""Requests of this class or a smaller number are not taken back."""
BATCH = 50
"""Those of this class or a greater one are, though they run."""
RECALL_S = 1.0
"""How long a copy that makes way has before anything is taken back."""


class Recalls:
    """Since when each copy has been making way for something urgent, as this process heard."""

    def __init__(self) -> None:
        self._since: dict[InstanceId, float] = {}

    def follow(self, instances: Mapping[str, Instance], now: float) -> None:
        """Follow the cluster's instances as they are now."""
        self._since = {
            instance.instance: self._since.get(instance.instance, now)
            for instance in instances.values()
            if instance.yields_to and instance.yields_urgently
        }

    def due(
        self, instance: InstanceId | None, request: GenerationRequest, now: float
    ) -> Recall | None:
        """Return what asks for a request back that is at an instance; None where it stays there for
        now."""
        since_at = None if instance is None else self._since.get(instance)
        if since_at is None or request.priority <= URGENT or now - since_at < RECALL_S:
            return None
        return Recall(request.request_id, request.priority >= BATCH)
