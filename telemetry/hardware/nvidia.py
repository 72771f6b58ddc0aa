"""Talks to NVIDIA's driver through NVML, which the package `nvidia-ml-py` calls.

The package is an optional dependency, shoal's extra `nvidia`. It is imported at the first read, in
the thread that reads the sensors. If the package or the driver's library is missing, the reading
says so, but only on machines with an NVIDIA GPU.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bus.hardware.graphics_cards import PCI_VENDORS, has_pci_display
from bus.process.installation import command_to_add
from bus.wire.accelerators import AcceleratorReading, UntoldFigures
from telemetry.hardware.sensed import Sensed, celsius_of, ratio_of, scaled, watts_of

MODULE = "pynvml"
AGAIN_S = 60.0
"""Seconds before the next attempt to open NVML."""
PACKAGE = "nvidia-ml-py"


class NvidiaCards:
    """The GPUs that NVML reports. `root` is the root of the file system, where `/sys` lists the
    machine's GPUs even without NVML. `load` imports the package; it raises ImportError if the
    package is missing."""

    name = "nvidia"
    period_s = 2.0

    def __init__(self, root: Path, load: Callable[[], Any] | None = None) -> None:
        self._root = root
        self._load = load or (lambda: importlib.import_module(MODULE))
        self._nvml: Any = None
        self._retry_at = 0.0
        self._unable = Sensed()

    def read(self, at: float) -> Sensed:
        """Return the figures of every GPU; `untold` names the GPUs that NVML cannot read. Raises
        NVML's error if NVML itself fails; the next read opens it again."""
        if self._nvml is None:
            if at < self._retry_at:
                return self._unable
            why = self._open()
            if why:
                self._retry_at, self._unable = at + AGAIN_S, self._lacking(why)
                return self._unable
        nvml: Any = self._nvml
        try:
            return self._all(nvml)
        except nvml.NVMLError:
            self._close()  # the driver may have been reloaded
            raise

    def _open(self) -> str:
        """Open NVML; return why it cannot be opened, or ""."""
        try:
            nvml = self._load()
        except ImportError:
            return (
                f"this machine has an NVIDIA GPU, but `{PACKAGE}` is not installed in shoal's "
                f"environment: run `{command_to_add(PACKAGE)}`"
            )
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            return f"cannot open NVML: {error}"
        self._nvml = nvml
        return ""

    def _close(self) -> None:
        nvml, self._nvml = self._nvml, None
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

    def _lacking(self, why: str) -> Sensed:
        if not has_pci_display(self._root, PCI_VENDORS["nvidia"]):
            return Sensed()
        return Sensed(untold=(UntoldFigures(source=self.name, why=why),))

    def _all(self, nvml: Any) -> Sensed:
        readings: list[AcceleratorReading] = []
        untold: list[UntoldFigures] = []
        for count in range(nvml.nvmlDeviceGetCount()):
            try:
                readings.append(_card(nvml, nvml.nvmlDeviceGetHandleByIndex(count)))
            except nvml.NVMLError as error:
                untold.append(UntoldFigures(source=self.name, why=f"GPU {count}: {error}"))
        return Sensed(tuple(readings), untold=tuple(untold))


def _card(nvml: Any, gpu: Any) -> AcceleratorReading:
    silent = (
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_NO_PERMISSION,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        nvml.NVML_ERROR_NO_DATA,
    )

    def query(ask: Callable[..., Any], *what: Any) -> Any:
        """Call an NVML function for this GPU; return None if the GPU or this user does not get the
        figure."""
        try:
            return ask(gpu, *what)
        except nvml.NVMLError as error:
            if error.value in silent:
                return None
            raise

    load, memory = query(nvml.nvmlDeviceGetUtilizationRates), query(nvml.nvmlDeviceGetMemoryInfo)
    heat = query(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
    return AcceleratorReading(
        vendor="nvidia",
        device=_text(nvml.nvmlDeviceGetPciInfo(gpu).busId).lower(),
        name=_text(query(nvml.nvmlDeviceGetName)) or None,
        utilisation_ratio=ratio_of(load and load.gpu),
        vram_total_bytes=memory and memory.total,
        vram_used_bytes=memory and memory.used,
        power_w=watts_of(scaled(query(nvml.nvmlDeviceGetPowerUsage), 1e-3)),
        temperature_c=celsius_of(scaled(heat, 1.0)),
        clock_mhz=scaled(query(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_GRAPHICS), 1.0),
    )


def _text(value: str | bytes | None) -> str:
    """Return a text of NVML as a string; some versions of the package return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
