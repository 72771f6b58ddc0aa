"""Sensors: what this node's accelerators and its processor do, and which figures are not told.

One source for each way to ask: a look may fail or never end, which costs its own figures alone.
Units are made the same where a figure is read. What is not told is None, never 0.
"""

from telemetry.hardware.publisher import HardwarePublisher
from telemetry.hardware.sources import sources_here
from telemetry.hardware.told import Source, Told
from telemetry.hardware.watch import HardwareWatch, WatchTiming

__all__ = [
    "HardwarePublisher",
    "HardwareWatch",
    "Source",
    "Told",
    "WatchTiming",
    "sources_here",
]
