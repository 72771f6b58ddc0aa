"""Cards and processors of Linux machines, from files laid out as the kernel lays them out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bus.wire.accelerators import AcceleratorReading
from telemetry.hardware.amd import AmdCards
from telemetry.hardware.intel import IntelCards
from telemetry.hardware.processor import ProcessorSensors
from telemetry.hardware.sensed import EnergyMeter, Sensed, celsius_of, ratio_of
from telemetry.hardware.sources import sources_here
from tests.harness.sensor_files import (
    ARC,
    IRIS,
    PCI_IDS,
    RADEON,
    add_card,
    add_hwmon,
    add_rapl,
    write,
)


def test_an_amd_gpu_is_told_in_ratios_bytes_watts_celsius_and_megahertz(tmp_path: Path) -> None:
    add_card(tmp_path, "card1", RADEON)
    write(tmp_path, {"usr/share/misc/pci.ids": PCI_IDS})
    assert AmdCards(tmp_path).read(0.0) == Sensed(
        (
            AcceleratorReading(
                vendor="amd",
                device="0000:03:00.0",
                name="Radeon RX 7900 XT/7900 XTX",
                utilisation_ratio=0.37,
                vram_total_bytes=25_753_026_560,
                vram_used_bytes=1_234_567_168,
                gtt_total_bytes=33_585_799_168,
                gtt_used_bytes=68_288_512,
                power_w=97.0,
                temperature_c=54.0,
                clock_mhz=1823.0,
            ),
        )
    )


def test_what_a_driver_does_not_tell_is_none_and_never_zero(tmp_path: Path) -> None:
    device = add_card(tmp_path, "card0", RADEON)
    for name in ("gpu_busy_percent", "mem_info_vram_used", "pp_dpm_sclk"):
        (device / name).unlink()
    for path in (device / "hwmon/hwmon4").iterdir():
        path.unlink()
    (found,) = AmdCards(tmp_path).read(0.0).accelerators
    told = found.model_dump(exclude_none=True)
    assert set(told) == {
        "vendor", "device", "vram_total_bytes", "gtt_total_bytes", "gtt_used_bytes"
    }  # fmt: skip


def test_figures_that_cannot_be_are_not_told(tmp_path: Path) -> None:
    device = add_card(tmp_path, "card0", RADEON)
    write(device, {"gpu_busy_percent": "65535", "mem_info_vram_used": "n/a"})
    write(device, {"hwmon/hwmon4/temp1_input": "4294967295", "hwmon/hwmon4/power1_average": "-1"})
    (found,) = AmdCards(tmp_path).read(0.0).accelerators
    assert (found.utilisation_ratio, found.vram_used_bytes) == (None, None)
    assert (found.temperature_c, found.power_w) == (None, None)
    assert (ratio_of(0), ratio_of(100), ratio_of(101)) == (0.0, 1.0, None)
    assert (celsius_of(-274.0), celsius_of(0.0)) == (None, 0.0)


def test_newer_drivers_files_stand_in_for_those_they_took_the_place_of(tmp_path: Path) -> None:
    device = add_card(tmp_path, "card0", RADEON)
    sensors = device / "hwmon/hwmon4"
    for path in (sensors / "power1_average", sensors / "temp1_input", device / "pp_dpm_sclk"):
        path.unlink()
    write(device, {"hwmon/hwmon4/power1_input": "8000000", "product_name": "AMD Instinct MI210"})
    (found,) = AmdCards(tmp_path).read(0.0).accelerators
    assert (found.name, found.power_w) == ("AMD Instinct MI210", 8.0)
    assert (found.temperature_c, found.clock_mhz) == (61.0, 1823.0)


def test_of_sensors_without_a_known_label_the_first_by_number_counts(tmp_path: Path) -> None:
    plain = {name: text for name, text in RADEON.items() if "/temp" not in name}
    heats = {"hwmon/hwmon4/temp10_input": "90000", "hwmon/hwmon4/temp2_input": "40000"}
    add_card(tmp_path, "card0", {**plain, **heats})
    (found,) = AmdCards(tmp_path).read(0.0).accelerators
    assert found.temperature_c == 40.0


def test_a_card_that_is_switched_off_is_not_read_and_that_is_said(tmp_path: Path) -> None:
    add_card(tmp_path, "card0", {**RADEON, "power/runtime_status": "suspended"})
    told = AmdCards(tmp_path).read(0.0)
    (found,) = told.accelerators
    assert set(found.model_dump(exclude_none=True)) == {"vendor", "device"}
    (untold,) = told.untold
    assert untold.source == "amd" and "0000:03:00.0 is powered down" in untold.why


def test_cards_are_told_in_order_each_by_the_source_of_its_vendor(tmp_path: Path) -> None:
    second = RADEON["uevent"].replace("03:00", "43:00")
    for number in (10, 2):
        other = {**RADEON, "uevent": second} if number == 10 else RADEON
        add_card(tmp_path, f"card{number}", other)
    add_card(tmp_path, "card0", IRIS)
    amd = [one.device for one in AmdCards(tmp_path).read(0.0).accelerators]
    assert amd == ["0000:03:00.0", "0000:43:00.0"]
    assert [one.device for one in IntelCards(tmp_path).read(0.0).accelerators] == ["0000:00:02.0"]


def test_an_intel_gpu_tells_power_from_its_counter_between_two_looks(tmp_path: Path) -> None:
    device, cards = add_card(tmp_path, "card1", ARC), IntelCards(tmp_path)
    (first,) = cards.read(100.0).accelerators
    assert (first.temperature_c, first.clock_mhz, first.power_w) == (48.0, 2050.0, None)
    write(device, {"hwmon/hwmon5/energy1_input": "65000000"})
    (then,) = cards.read(102.0).accelerators
    assert then.power_w == pytest.approx(30.0)
    assert (then.utilisation_ratio, then.vram_used_bytes) == (None, None)


def test_a_built_in_intel_gpu_tells_its_name_and_a_clock_that_stands(tmp_path: Path) -> None:
    add_card(tmp_path, "card0", IRIS)
    write(tmp_path, {"usr/share/hwdata/pci.ids": PCI_IDS})
    (found,) = IntelCards(tmp_path).read(0.0).accelerators
    told = found.model_dump(exclude_none=True)
    assert told == {
        "vendor": "intel", "device": "0000:00:02.0", "name": "Iris Xe Graphics", "clock_mhz": 0.0
    }  # fmt: skip


def test_the_hottest_package_counts_and_the_power_of_all(tmp_path: Path) -> None:
    add_hwmon(tmp_path, "hwmon0", {"name": "nvme", "temp1_input": "90000"})
    for number, heat in ((1, 61_000), (2, 64_000)):
        sensors = {"temp1_input": str(heat), "temp1_label": f"Package id {number - 1}"}
        cores = {"temp2_input": "99000", "temp2_label": "Core 0"}
        add_hwmon(tmp_path, f"hwmon{number}", {"name": "coretemp", **sensors, **cores})
    counters = [add_rapl(tmp_path, f"intel-rapl:{n}", f"package-{n}", 1_000_000) for n in (0, 1)]
    part = add_rapl(tmp_path, "intel-rapl:0:0", "core", 7)
    platform = add_rapl(tmp_path, "intel-rapl:2", "psys", 7)
    processor = ProcessorSensors(tmp_path)
    first = processor.read(10.0)
    assert (first.cpu_temperature_c, first.cpu_power_w) == (64.0, None)
    for counter, watts in zip(counters, (45, 40), strict=True):
        counter.write_text(f"{1_000_000 + watts * 2_000_000}\n")
    for counter in (part, platform):
        counter.write_text("99000000\n")
    assert processor.read(12.0) == Sensed(cpu_temperature_c=64.0, cpu_power_w=pytest.approx(85.0))


def test_ryzens_die_counts_before_what_its_fans_are_told(tmp_path: Path) -> None:
    labels = {"temp1_label": "Tctl", "temp3_label": "Tdie"}
    sensors = {"temp1_input": "70250", "temp3_input": "60250", **labels}
    folder = add_hwmon(tmp_path, "hwmon3", {"name": "k10temp", **sensors})
    assert ProcessorSensors(tmp_path).read(0.0).cpu_temperature_c == 60.25
    (folder / "temp3_input").unlink()
    assert ProcessorSensors(tmp_path).read(0.0).cpu_temperature_c == 70.25


def test_power_that_only_root_may_read_is_named_with_its_file(tmp_path: Path) -> None:
    counter = add_rapl(tmp_path, "intel-rapl:0", "package-0", 5)
    counter.unlink()
    counter.mkdir()  # what cannot be read as a file, by root in a container neither
    told = ProcessorSensors(tmp_path).read(0.0)
    assert told.cpu_power_w is None
    (untold,) = told.untold
    assert "/sys/class/powercap/intel-rapl:0/energy_uj cannot be read" in untold.why


def test_a_counter_that_began_anew_tells_nothing_once() -> None:
    meter = EnergyMeter()
    assert meter.watts("a", 0.0, 50) is None
    assert meter.watts("a", 1.0, 1_000_050) == pytest.approx(1.0)
    assert meter.watts("a", 2.0, 3) is None
    assert meter.watts("a", 2.0, 9) is None, "no time has passed"
    assert meter.watts("a", 4.0, 4_000_009) == pytest.approx(2.0)


def test_a_machine_without_sensors_tells_nothing_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as where it is not installed
    for source in sources_here("linux", tmp_path):
        assert source.read(0.0) == Sensed(), source.name


def test_a_system_of_which_no_sensors_are_read_has_no_sources(tmp_path: Path) -> None:
    assert sources_here("freebsd14", tmp_path) == ()
    assert [one.name for one in sources_here("darwin", tmp_path)] == ["macos"]
