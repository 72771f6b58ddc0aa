"""Selects the requests to recall (to take back from their runner) when an instance is evicted for
an urgent request.

Pure: time arrives as `now`. During the first `RECALL_S` no request is recalled, so that short
requests can end. After that, requests that wait at the instance are requeued, and so are running
requests of batch priority (`BATCH`). Other running requests finish.
"""

from __future__ import annotations

from collections.abc import Mapping

from bus.wire.ids import InstanceId
from bus.wire.instances import Instance
from bus.wire.messages.requests import GenerationRequest
from bus.wire.messages.tokens import Recall

URGENT = 1
"""Requests of this priority or a smaller number are never recalled."""
BATCH = 50
"""Requests of this priority or a greater number are recalled even while they run."""
RECALL_S = 1.0
"""How long, in seconds, an evicted instance may continue before its requests are recalled."""


class Recalls:
    """For each instance that is evicted for an urgent request: when this process first saw that."""

    def __init__(self) -> None:
        self._since: dict[InstanceId, float] = {}

    def follow(self, instances: Mapping[str, Instance], now: float) -> None:
        """Record which of the cluster's current instances are being evicted for an urgent
        request."""
        self._since = {
            instance.instance: self._since.get(instance.instance, now)
            for instance in instances.values()
            if instance.yields_to and instance.yields_urgently
        }

    def due(
        self, instance: InstanceId | None, request: GenerationRequest, now: float
    ) -> Recall | None:
        """Return the message that recalls a request from an instance; None if the request stays at
        the instance for now."""
        since_at = None if instance is None else self._since.get(instance)
        if since_at is None or request.priority <= URGENT or now - since_at < RECALL_S:
            return None
        return Recall(request.request_id, request.priority >= BATCH)
