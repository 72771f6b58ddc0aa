"""Talks to the bus: publishes the reading of the sensors if it has changed, or if the regular
interval has passed."""

from __future__ import annotations

from bus.client import BusClient
from bus.service import Shell
from bus.wire.accelerators import HardwareReading
from bus.wire.topics import reading_topic
from telemetry.hardware.watch import HardwareWatch

EVERY_S = 2.0
DUE_S = 5.0


class HardwarePublisher:
    """Publishes the readings of a `HardwareWatch`, and logs each fault of a sensor source once
    until it changes."""

    def __init__(self, shell: Shell, client: BusClient, watch: HardwareWatch) -> None:
        self._shell = shell
        self._client = client
        self._watch = watch
        self._last: HardwareReading | None = None
        self._last_at = 0.0
        self._logged: dict[str, str] = {}
        self._timer = shell.reactor.every(EVERY_S, self._report)

    def close(self) -> None:
        """Stop publishing readings and reading sensors."""
        self._timer.cancel()
        self._watch.close()

    def _report(self) -> None:
        for source, why in self._watch.troubles().items():
            if self._logged.get(source) != why:
                self._logged[source] = why
                self._shell.log.warning("cannot read sensors", source=source, why=why)
        reading, at = self._watch.reading(), self._shell.reactor.now()
        if self._last is not None and at - self._last_at < DUE_S:
            same_moment = {"measured_at_s": self._last.measured_at_s}
            if reading.model_copy(update=same_moment) == self._last:
                return
        self._last, self._last_at = reading, at
        self._client.publish(reading_topic("hardware", reading.node), reading)
