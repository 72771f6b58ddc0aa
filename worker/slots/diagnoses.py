"""Questions to runners that pass through the worker: who asked what, and until when.

Pure. A runner's report answers everybody who asked about its instance; who is not answered in
time is told so.
"""

from __future__ import annotations

from bus.wire.ids import InstanceId

PATIENCE_S = 3.0


class OpenQuestions:
    """Askers (as the ROUTER names them) by instance, with their deadlines."""

    def __init__(self) -> None:
        self.waiting: dict[InstanceId, list[tuple[bytes, float]]] = {}

    def ask(self, instance: InstanceId, asker: bytes, now: float) -> None:
        """Note that an asker waits for a report of this instance."""
        self.waiting.setdefault(instance, []).append((asker, now + PATIENCE_S))

    def answered(self, instance: InstanceId) -> list[bytes]:
        """Return the askers whom a report of this instance answers; they wait no longer."""
        return [asker for asker, _ in self.waiting.pop(instance, [])]

    def expired(self, now: float) -> list[bytes]:
        """Return the askers whose patience is over; they wait no longer."""
        late: list[bytes] = []
        for instance, askers in list(self.waiting.items()):
            late += [asker for asker, deadline_at in askers if now >= deadline_at]
            self.waiting[instance] = [one for one in askers if now < one[1]]
        self.waiting = {instance: askers for instance, askers in self.waiting.items() if askers}
        return late
