"""Talks to sensors: what accelerators and processor of this node do, and what is not told of them.

One source for each way to ask: a look may fail or never end, which costs its own figures alone.
Units are made the same where a figure is read. What is not told is None, never 0.
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
