"""What sensors tell, as a line and as a few words."""

from __future__ import annotations

import pytest

from bus.wire.accelerators import AcceleratorReading, HardwareReading
from bus.wire.ids import NodeId
from gateway.cli.output.sensors import in_a_line, in_short

H100 = AcceleratorReading(
    vendor="nvidia", device="00000000:1b:00.0", name="NVIDIA H100 80GB HBM3", utilisation_ratio=0.0,
    vram_total_bytes=85_520_809_984, vram_used_bytes=0, power_w=69.6, temperature_c=31.0,
    clock_mhz=345.0,
)  # fmt: skip
BARE = AcceleratorReading(vendor="intel", device="0000:00:02.0")
APU = AcceleratorReading(
    vendor="amd", device="0000:c4:00.0", vram_total_bytes=512_000_000, vram_used_bytes=400_000_000,
    gtt_total_bytes=60_000_000_000, gtt_used_bytes=41_000_000_000,
)  # fmt: skip


def told(*cards: AcceleratorReading, heat: float | None = None) -> HardwareReading:
    return HardwareReading(
        node=NodeId("n1"), accelerators=cards, cpu_temperature_c=heat, measured_at_s=0.0
    )


@pytest.mark.parametrize(
    ("reading", "line", "short"),
    [
        (None, "unknown", "unknown"),
        (told(), "unknown", "unknown"),
        (told(heat=61.4), "processor: 61 °C", "unknown"),
        (
            told(H100),
            "NVIDIA H100 80GB HBM3: 0% busy, 0 B of 85.5 GB, 70 W, 31 °C, 345 MHz",
            "0% busy, 0 B of 85.5 GB, 70 W, 31 °C",
        ),
        (
            told(BARE, heat=0.0),
            "Intel GPU: load, memory, power, temperature unknown; processor: 0 °C",
            "unknown",
        ),
        (
            told(APU, BARE),
            "AMD GPU: 41.0 GB of 60.0 GB, load, power, temperature unknown; "
            "Intel GPU: load, memory, power, temperature unknown",
            "41.0 GB of 60.0 GB; unknown",
        ),
    ],
)
def test_what_is_told_stands_there_and_what_is_not_is_unknown(
    reading: HardwareReading | None, line: str, short: str
) -> None:
    assert (in_a_line(reading), in_short(reading)) == (line, short)
