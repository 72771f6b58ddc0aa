"""GPUs of Macs, from `ioreg`'s property lists as they were published from such machines."""

from __future__ import annotations

import plistlib
from typing import Any

import pytest

from telemetry.hardware.mac import POWERMETRICS, MacAccelerators, accelerators_in

M4: dict[str, Any] = {
    "CFBundleIdentifier": "com.apple.AGXG16G",
    "IOClass": "AGXAcceleratorG16G",
    "IORegistryEntryName": "AGXAcceleratorG16G",
    "gpu-core-count": 10,
    "model": "Apple M4",
    "PerformanceStatistics": {
        "Alloc system memory": 1_574_862_848,
        "Device Utilization %": 21,
        "In use system memory": 351_141_888,
        "In use system memory (driver)": 0,
        "Renderer Utilization %": 19,
        "SplitSceneCount": 0,
        "TiledSceneBytes": 1_605_632,
        "Tiler Utilization %": 20,
        "recoveryCount": 0,
    },
}
NAVI: dict[str, Any] = {
    "IOClass": "AMDRadeonX6000_AMDNaviGraphicsAccelerator",
    "model": b"AMD Radeon Pro 5500M\0",
    "PerformanceStatistics": {
        "Core Clock(MHz)": 300,
        "Device Utilization %": 5,
        "Temperature(C)": 52,
        "Total Power(W)": 9,
        "vramFreeBytes": 7_516_192_768,
        "vramUsedBytes": 1_073_741_824,
    },
}


def printed(*entries: dict[str, Any]) -> str:
    return plistlib.dumps(list(entries)).decode()


def test_an_apple_gpu_tells_load_and_the_machines_memory_that_it_uses() -> None:
    told = MacAccelerators(lambda: printed(M4)).read(0.0)
    (found,) = told.accelerators
    assert found.model_dump(exclude_none=True) == {
        "vendor": "apple",
        "device": "AGXAcceleratorG16G",
        "name": "Apple M4",
        "utilisation_ratio": 0.21,
        "gtt_used_bytes": 351_141_888,
    }


def test_an_idle_gpu_is_not_unknown() -> None:
    idle = {"Device Utilization %": 0, "In use system memory": 0}
    (found,) = accelerators_in(printed({**M4, "PerformanceStatistics": idle}).encode())
    assert (found.utilisation_ratio, found.gtt_used_bytes) == (0.0, 0)


def test_what_takes_root_is_named_with_the_tool_that_tells_it() -> None:
    (untold,) = MacAccelerators(lambda: printed(M4)).read(0.0).untold
    assert (untold.source, untold.why) == ("macos", POWERMETRICS)
    assert "powermetrics" in untold.why and "root" in untold.why


def test_an_amd_gpu_in_a_mac_tells_memory_of_its_own_power_and_temperature() -> None:
    found = accelerators_in(printed(M4, NAVI).encode())[1]
    assert (found.vendor, found.name) == ("amd", "AMD Radeon Pro 5500M")
    assert (found.vram_used_bytes, found.vram_total_bytes) == (1_073_741_824, 8_589_934_592)
    assert (found.power_w, found.temperature_c, found.clock_mhz) == (9.0, 52.0, 300.0)
    assert found.gtt_used_bytes is None


def test_entries_that_measure_nothing_or_are_of_no_maker_are_no_gpus() -> None:
    strange = {"IOClass": "SomeAccelerator", "PerformanceStatistics": {}}
    assert accelerators_in(printed({"IOClass": "IOAcceleratorBridge"}, strange).encode()) == ()


def test_figures_of_another_kind_are_not_told() -> None:
    odd = {"Device Utilization %": 137, "In use system memory": "much"}
    (found,) = accelerators_in(printed({**M4, "PerformanceStatistics": odd}).encode())
    assert (found.utilisation_ratio, found.gtt_used_bytes) == (None, None)


def test_a_tool_that_prints_nothing_is_an_error_with_its_command() -> None:
    with pytest.raises(RuntimeError, match="ioreg -r -d 1 -w 0 -c IOAccelerator -a"):
        MacAccelerators(lambda: "").read(0.0)
