"""Talks to sensors: reads the figures of this node's accelerators and processor.

There is one source for each driver or tool. A source whose read fails or hangs loses only its own
figures. Each figure is converted to our units where it is read. A missing figure is None, never 0.
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
