"""Talks to the system: which sources of sensors there are on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

from telemetry.hardware.amd import AmdCards
from telemetry.hardware.intel import IntelCards
from telemetry.hardware.mac import MacAccelerators
from telemetry.hardware.nvidia import NvidiaCards
from telemetry.hardware.processor import ProcessorSensors
from telemetry.hardware.sensed import SensorSource


def sources_here(platform: str = sys.platform, root: Path = Path("/")) -> tuple[SensorSource, ...]:
    """Return the sources of a machine of that system whose files lie under `root`; none for a
    system of which no sensors are read."""
    if platform == "darwin":
        return (MacAccelerators(),)
    if platform.startswith("linux"):
        return NvidiaCards(root), AmdCards(root), IntelCards(root), ProcessorSensors(root)
    return ()
