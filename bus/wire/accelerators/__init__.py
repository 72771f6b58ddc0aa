"""A node's accelerators and processor over the wire, as their sensors report them.

Pure: messages alone.
"""

from bus.wire.accelerators.messages import (
    VENDORS,
    AcceleratorReading,
    HardwareReading,
    UntoldFigures,
    Vendor,
)

__all__ = ["VENDORS", "AcceleratorReading", "HardwareReading", "UntoldFigures", "Vendor"]
