"""Format the GPUs of a node, and the memory that a rank reserves on them.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from bus.wire.accelerators import Device, DeviceShare, device_title
from gateway.cli.output.amounts import size


def device_text(device: Device) -> str:
    """Return a GPU with its memory: `NVIDIA GPU 0 (RTX 3090, driver 550.54): 22 GB of 24 GB free`.
    A GPU without memory of its own uses the memory of the machine."""
    known = [device.name, f"driver {device.driver}" if device.driver else ""]
    named = ", ".join(word for word in known if word)
    title = f"{device_title(device.key)} ({named})" if named else device_title(device.key)
    if device.unified and not device.gtt_bytes:
        total = f", at most {size(device.total_bytes)}" if device.total_bytes else ""
        return f"{title}: memory of the machine{total}"
    free = "free memory unknown" if device.free_bytes is None else f"{size(device.free_bytes)} free"
    mapped = f", maps {size(device.gtt_bytes)} of the machine" if device.unified else ""
    return f"{title}: {size(device.total_bytes)}, {free}{mapped}"


def shares_text(shares: Iterable[DeviceShare]) -> str:
    """Return what a rank reserves on each GPU: `NVIDIA GPU 0 21 GB (20 layers), NVIDIA GPU 1 9 GB
    (13 layers)`; empty if it reserves nothing there."""
    return ", ".join(
        f"{device_title(share.key)} {size(share.bytes_reserved)}"
        + (f" ({share.layers} layers)" if share.layers else "")
        for share in shares
    )
