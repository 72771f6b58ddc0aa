"""The GPUs of a node's card, and sensor readings of a node's accelerators and processor, as
messages.

Pure: this package contains only messages.
"""

from bus.wire.accelerators.devices import (
    COMPUTED_BY,
    IN_ORDER,
    VISIBLE,
    Device,
    DeviceKey,
    DeviceShare,
    bytes_on,
    device_title,
    shares_memory,
)
from bus.wire.accelerators.messages import (
    VENDORS,
    AcceleratorReading,
    HardwareReading,
    UntoldFigures,
    Vendor,
)

__all__ = [
    "COMPUTED_BY",
    "IN_ORDER",
    "VENDORS",
    "VISIBLE",
    "AcceleratorReading",
    "Device",
    "DeviceKey",
    "DeviceShare",
    "HardwareReading",
    "UntoldFigures",
    "Vendor",
    "bytes_on",
    "device_title",
    "shares_memory",
]
