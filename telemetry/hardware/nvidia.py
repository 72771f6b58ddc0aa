"""Talks to NVIDIA's driver through NVML, which the package `nvidia-ml-py` calls.

The package is an extra of shoal's (`nvidia`). It is imported at the first look, in the thread that
looks. Without the package or the driver's library that is said where there is a GPU of NVIDIA's;
where there is none, nothing is.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bus.wire.accelerators import AcceleratorReading, UntoldFigures
from telemetry.hardware.cards import PCI_VENDORS, has_pci_display
from telemetry.hardware.sensed import Sensed, celsius_of, ratio_of, scaled, watts_of

MODULE = "pynvml"
AGAIN_S = 60.0
"""How long it rests where there is no NVML to ask."""
NOT_INSTALLED = (
    "this machine has an NVIDIA GPU, but `nvidia-ml-py` is not installed in shoal's environment: "
    "run `pip install 'shoal[nvidia]'`"
)


class NvidiaCards:
    """The NVIDIA GPUs that NVML tells of. `root` has the files by which they are seen without it;
    `load` imports the package, and raises ImportError where there is none."""

    name = "nvidia"
    period_s = 2.0

    def __init__(self, root: Path, load: Callable[[], Any] | None = None) -> None:
        self._root = root
        self._load = load or (lambda: importlib.import_module(MODULE))
        self._nvml: Any = None
        self._rests_until = 0.0
        self._unable = Sensed()

    def read(self, at: float) -> Sensed:
        """Return every GPU; one that NVML cannot read is named, beside the others."""
        if self._nvml is None:
            if at < self._rests_until:
                return self._unable
            why = self._opened()
            if why:
                self._rests_until, self._unable = at + AGAIN_S, self._lacking(why)
                return self._unable
        nvml: Any = self._nvml
        try:
            return self._all(nvml)
        except nvml.NVMLError:
            self._close()  # a driver that was loaded anew is asked from the beginning
            raise

    def _opened(self) -> str:
        """Open NVML; return why that cannot be, or nothing."""
        try:
            nvml = self._load()
        except ImportError:
            return NOT_INSTALLED
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
        found: list[AcceleratorReading] = []
        untold: list[UntoldFigures] = []
        for count in range(nvml.nvmlDeviceGetCount()):
            try:
                found.append(_card(nvml, nvml.nvmlDeviceGetHandleByIndex(count)))
            except nvml.NVMLError as error:
                untold.append(UntoldFigures(source=self.name, why=f"GPU {count}: {error}"))
        return Sensed(tuple(found), untold=tuple(untold))


def _card(nvml: Any, gpu: Any) -> AcceleratorReading:
    silent = (
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_NO_PERMISSION,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        nvml.NVML_ERROR_NO_DATA,
    )

    def told(ask: Callable[..., Any], *what: Any) -> Any:
        """Return what NVML answers; None for what this GPU has no figure for."""
        try:
            return ask(gpu, *what)
        except nvml.NVMLError as error:
            if error.value in silent:
                return None
            raise

    load, memory = told(nvml.nvmlDeviceGetUtilizationRates), told(nvml.nvmlDeviceGetMemoryInfo)
    heat = told(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
    return AcceleratorReading(
        vendor="nvidia",
        device=_text(nvml.nvmlDeviceGetPciInfo(gpu).busId).lower(),
        name=_text(told(nvml.nvmlDeviceGetName)) or None,
        utilisation_ratio=ratio_of(load and load.gpu),
        vram_total_bytes=memory and memory.total,
        vram_used_bytes=memory and memory.used,
        power_w=watts_of(scaled(told(nvml.nvmlDeviceGetPowerUsage), 1e-3)),
        temperature_c=celsius_of(scaled(heat, 1.0)),
        clock_mhz=scaled(told(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_GRAPHICS), 1.0),
    )


def _text(said: str | bytes | None) -> str:
    """Return text that some versions of the package give as bytes."""
    return said.decode(errors="replace") if isinstance(said, bytes) else said or ""
