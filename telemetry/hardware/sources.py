"""Talks to the system: chooses the sensor sources of this machine by its operating system."""

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
    """Return the sensor sources for a platform; none for other systems than macOS and Linux.
    `root` is the root of the machine's files."""
    if platform == "darwin":
        return (MacAccelerators(),)
    if platform.startswith("linux"):
        return NvidiaCards(root), AmdCards(root), IntelCards(root), ProcessorSensors(root)
    return ()
