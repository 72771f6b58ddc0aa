"""Sensor readings of a node's accelerators and processor, as messages.

Pure: this package contains only messages.
"""

from bus.wire.accelerators.messages import (
    VENDORS,
    AcceleratorReading,
    HardwareReading,
    UntoldFigures,
    Vendor,
)

__all__ = ["VENDORS", "AcceleratorReading", "HardwareReading", "UntoldFigures", "Vendor"]
