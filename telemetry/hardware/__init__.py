"""Talks to sensors: reads the load, memory and temperature of this node's accelerators and
processor.

There is one source for each driver or tool. If a read of one source fails or hangs, only its
figures are missing. Each source converts figures to our units. A missing figure is None, never 0.
"""

from telemetry.hardware.publisher import HardwarePublisher
from telemetry.hardware.sensed import Sensed, SensorSource
from telemetry.hardware.sources import sources_here
from telemetry.hardware.watch import HardwareWatch, WatchTiming

__all__ = [
    "HardwarePublisher",
    "HardwareWatch",
    "Sensed",
    "SensorSource",
    "WatchTiming",
    "sources_here",
]
