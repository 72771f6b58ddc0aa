"""NVIDIA's GPUs through a stand-in for `pynvml` with the names, units and errors of NVML."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bus.process.installation.evidence import command_to_add
from telemetry.hardware.nvidia import AGAIN_S, NvidiaCards
from telemetry.hardware.sensed import Sensed
from tests.harness.sensor_files import RADEON, add_card

H200 = {
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:1B:06.0"),
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=98, memory=25),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150_754_820_096, free=147_244_318_720,
                                               used=3_510_501_376),
    "nvmlDeviceGetPowerUsage": 690_833,
    "nvmlDeviceGetTemperature": 58,
    "nvmlDeviceGetClockInfo": 1_455,
}  # fmt: skip
"""What `nvidia-ml-py` gave for one under load (its bus made up, so that it has a letter)."""
SPARE = {**RADEON, "vendor": "0x10de", "class": "0x030200"}


class NVMLError(Exception):
    """An error of NVML, with its number."""

    def __init__(self, value: int, words: str = "") -> None:
        super().__init__(value)
        self.value, self.words = value, words

    def __str__(self) -> str:
        return self.words


class Nvml:
    """A stand-in for the module `pynvml`. An answer that is an error is raised."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION = 3, 4
    NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_NO_DATA = 13, 21
    NVML_TEMPERATURE_GPU = NVML_CLOCK_GRAPHICS = 0

    def __init__(self, *gpus: dict[str, Any]) -> None:
        self.gpus = list(gpus)
        self.opened = self.shut = 0
        self.fault: NVMLError | None = None

    def nvmlInit(self) -> None:
        self.opened += 1
        if self.fault is not None:
            raise self.fault

    def nvmlShutdown(self) -> None:
        self.shut += 1

    def nvmlDeviceGetCount(self) -> int:
        if self.fault is not None:
            raise self.fault
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self.gpus[index]

    def __getattr__(self, name: str) -> Any:
        def answer(gpu: dict[str, Any], *_what: int) -> Any:
            if isinstance(gpu[name], NVMLError):
                raise gpu[name]
            return gpu[name]

        return answer


def test_a_gpu_is_told_in_ratios_bytes_watts_celsius_and_megahertz(tmp_path: Path) -> None:
    (found,) = NvidiaCards(tmp_path, lambda: Nvml(H200)).read(0.0).accelerators
    assert found.model_dump(exclude_none=True) == {
        "vendor": "nvidia",
        "device": "00000000:1b:06.0",
        "name": "NVIDIA H200",
        "utilisation_ratio": 0.98,
        "vram_total_bytes": 150_754_820_096,
        "vram_used_bytes": 3_510_501_376,
        "power_w": 690.833,
        "temperature_c": 58.0,
        "clock_mhz": 1455.0,
    }


def test_what_a_gpu_has_no_figure_for_is_none_and_never_zero(tmp_path: Path) -> None:
    lacking = {
        "nvmlDeviceGetUtilizationRates": NVMLError(3),
        "nvmlDeviceGetMemoryInfo": NVMLError(3),
        "nvmlDeviceGetPowerUsage": NVMLError(4),
        "nvmlDeviceGetTemperature": NVMLError(21),
        "nvmlDeviceGetClockInfo": NVMLError(13),
    }
    idle = {**H200, "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0)}
    told = NvidiaCards(tmp_path, lambda: Nvml({**H200, **lacking}, idle)).read(0.0)
    first, second = told.accelerators
    assert set(first.model_dump(exclude_none=True)) == {"vendor", "device", "name"}
    assert second.utilisation_ratio == 0.0, "an idle one is not unknown"


def test_names_that_older_packages_give_as_bytes_are_read(tmp_path: Path) -> None:
    old = {
        **H200,
        "nvmlDeviceGetName": b"Tesla T4",
        "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:00:1E.0"),
    }
    (found,) = NvidiaCards(tmp_path, lambda: Nvml(old)).read(0.0).accelerators
    assert (found.name, found.device) == ("Tesla T4", "00000000:00:1e.0")


def test_a_gpu_that_is_lost_is_named_and_the_others_are_told(tmp_path: Path) -> None:
    lost = {**H200, "nvmlDeviceGetPowerUsage": NVMLError(15, "GPU is lost")}
    told = NvidiaCards(tmp_path, lambda: Nvml(lost, H200)).read(0.0)
    assert [one.power_w for one in told.accelerators] == [690.833]
    assert [(one.source, one.why) for one in told.untold] == [("nvidia", "GPU 0: GPU is lost")]


def test_without_the_package_it_is_said_where_a_gpu_of_nvidias_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert NvidiaCards(tmp_path).read(0.0) == Sensed()
    add_card(tmp_path, "card0", SPARE)
    (untold,) = NvidiaCards(tmp_path).read(0.0).untold
    assert untold.source == "nvidia" and "`nvidia-ml-py` is not installed" in untold.why
    assert f"run `{command_to_add('nvidia-ml-py')}`" in untold.why


def test_nvml_that_does_not_open_is_said_and_tried_again_after_a_minute(tmp_path: Path) -> None:
    add_card(tmp_path, "card0", SPARE)
    nvml = Nvml(H200)
    nvml.fault = NVMLError(12, "NVML Shared Library Not Found")
    cards = NvidiaCards(tmp_path, lambda: nvml)
    (untold,) = cards.read(100.0).untold
    assert untold.why == "cannot open NVML: NVML Shared Library Not Found"
    nvml.fault = None
    assert cards.read(100.0 + AGAIN_S - 1.0).untold == (untold,)
    assert nvml.opened == 1
    (found,) = cards.read(100.0 + AGAIN_S).accelerators
    assert found.name == "NVIDIA H200"


def test_a_driver_that_fails_whole_is_an_error_and_opened_anew_at_the_next_look(
    tmp_path: Path,
) -> None:
    nvml = Nvml(H200)
    cards = NvidiaCards(tmp_path, lambda: nvml)
    cards.read(0.0)
    nvml.fault = NVMLError(999, "Unknown Error")
    with pytest.raises(NVMLError, match="Unknown Error"):
        cards.read(2.0)
    nvml.fault = None
    assert len(cards.read(4.0).accelerators) == 1
    assert (nvml.opened, nvml.shut) == (2, 1)
