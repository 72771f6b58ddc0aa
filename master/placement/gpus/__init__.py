"""Models on the GPUs of a node: the memory of each GPU, the division over several, and the texts of
refusals.

Pure. On each GPU 512 MiB stay free, for the driver's context and for buffers. A GPU can give

    usable = min(free, total - reserved) - 512 MiB

where the free memory is measured, less the reservations of ranks that are still loading.
"""

from master.placement.gpus.division import divided, shares_of, usable_in
from master.placement.gpus.rooms import (
    APU_SYSTEM_BYTES,
    KEPT_BYTES,
    DeviceRoom,
    Home,
    device_rooms,
    home_of,
)
from master.placement.gpus.texts import ceiling_text, facts, rooms_text

__all__ = [
    "APU_SYSTEM_BYTES",
    "KEPT_BYTES",
    "DeviceRoom",
    "Home",
    "ceiling_text",
    "device_rooms",
    "divided",
    "facts",
    "home_of",
    "rooms_text",
    "shares_of",
    "usable_in",
]
