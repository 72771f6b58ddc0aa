"""Talks to the tools of GPUs and to Linux's `/sys`: the GPUs of this node, and which of them
llama-server uses.

A thread of its own looks every few seconds, and each half second for a while after a runner has
started or ended. A GPU that the operator hides with `CUDA_VISIBLE_DEVICES` or `HIP_VISIBLE_DEVICES`
is not listed.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

import psutil

from bus.hardware.graphics_cards import PCI_VENDORS, Card, cards_of, pci_name
from bus.hardware.sysfs import number_of, text_of
from bus.models.gguf import LLAMA_TAG
from bus.process.tools import asked
from bus.wire.accelerators import COMPUTED_BY, VISIBLE, Device, Vendor, shares_memory

NVIDIA = (
    "nvidia-smi",
    "--query-gpu=index,uuid,pci.bus_id,name,driver_version,memory.total,memory.free",
    "--format=csv,noheader,nounits",
)
LIST_S = 30.0
"""Seconds that llama-server may take to list its devices: it starts the GPUs' drivers."""
EVERY_S, NONE_S, HURRIED_S, HURRY_FOR_S = 5.0, 60.0, 0.5, 6.0
"""Seconds between two looks: usually, without a GPU, and for `HURRY_FOR_S` after a change."""
CLOSE_S = 2.0
STEADY_BYTES = 256 << 20
"""A change of free memory by fewer bytes is not announced."""
_LISTED = re.compile(r"^\s+([A-Za-z]+)\d+: ", re.MULTILINE)
Ask = Callable[..., str]


def devices_here(
    root: Path = Path("/"), ask: Ask = asked, variables: Mapping[str, str] = os.environ
) -> tuple[Device, ...]:
    """Return the GPUs of this machine, except those of Macs. `root` is the root of its file system.
    May block for seconds."""
    if not sys.platform.startswith("linux"):
        return ()
    nvidia = nvidia_in(ask(*NVIDIA), variables.get(VISIBLE["nvidia"]))
    memory_bytes = psutil.virtual_memory().total
    amd = amd_in(root, memory_bytes, variables.get(VISIBLE["amd"]))
    return (*nvidia, *amd, *intel_in(root))


def nvidia_in(output: str, visible: str | None = None) -> tuple[Device, ...]:
    """Return the GPUs in `nvidia-smi`'s output, with one line for each GPU; memory is in MiB.
    `visible`: the value of `CUDA_VISIBLE_DEVICES`; None: all."""
    devices: list[Device] = []
    for line in output.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) < 7 or not fields[0].isdecimal():
            continue
        index, uuid, address, *name, driver, total, free = fields
        if _is_visible(visible, int(index), uuid):
            devices.append(
                Device(
                    vendor="nvidia",
                    index=int(index),
                    name=", ".join(name),
                    address=address.lower(),
                    driver=driver,
                    total_bytes=_mebibytes(total) or 0,
                    free_bytes=_mebibytes(free),
                )
            )
    return tuple(devices)


def amd_in(root: Path, memory_bytes: int, visible: str | None = None) -> tuple[Device, ...]:
    """Return the AMD GPUs in amdgpu's files. `memory_bytes` is the machine's memory; `visible`: the
    value of `HIP_VISIBLE_DEVICES`. The memory in use of a sleeping GPU is not read."""
    devices: list[Device] = []
    for index, card in enumerate(_by_address(root, "amd")):
        folder = card.device
        total = number_of(folder / "mem_info_vram_total") or 0
        gtt = number_of(folder / "mem_info_gtt_total") or 0
        used = None if card.is_asleep else number_of(folder / "mem_info_vram_used")
        if _is_visible(visible, index):
            devices.append(
                Device(
                    vendor="amd",
                    index=index,
                    name=_name(root, card, text_of(folder / "product_name")),
                    address=card.address,
                    driver=_driver(root, card),
                    total_bytes=total,
                    free_bytes=None if used is None else max(0, total - used),
                    gtt_bytes=gtt,
                    unified=shares_memory(total, gtt, memory_bytes),
                )
            )
    return tuple(devices)


def intel_in(root: Path) -> tuple[Device, ...]:
    """Return the Intel GPUs in i915's and xe's files, which do not say how much memory is in use. A
    GPU without memory of its own is unified."""
    devices: list[Device] = []
    for index, card in enumerate(_by_address(root, "intel")):
        total = number_of(card.folder / "lmem_total_bytes") or 0
        devices.append(
            Device(
                vendor="intel",
                index=index,
                name=_name(root, card, None),
                address=card.address,
                driver=_driver(root, card),
                total_bytes=total,
                unified=not total,
            )
        )
    return tuple(devices)


def llama_tags(output: str, devices: Sequence[Device]) -> tuple[str, ...]:
    """Return the tags of the GPU backends of a llama-server that prints `output` for
    `--list-devices`. Backends without a GPU on this node are left out. A line of `output` begins
    like `CUDA0: NVIDIA`."""
    vendors = {device.vendor for device in devices}
    listed = dict.fromkeys(match[1].lower() for match in _LISTED.finditer(output))
    there = [compute for compute in listed if COMPUTED_BY.get(compute) in vendors]
    return tuple(f"{LLAMA_TAG}{compute}" for compute in there)


class DeviceWatch:
    """Reads the GPUs periodically, until it is closed. `devices` and `tags` (of llama-server's GPU
    backends) are the latest result. `program` is the command that starts llama-server. It is asked
    for its devices only if it is a single program, because the llama-server of the Python extra
    computes on the processor."""

    def __init__(
        self,
        program: Sequence[str],
        look: Callable[[], tuple[Device, ...]] = devices_here,
        ask: Ask = asked,
    ) -> None:
        self.devices: tuple[Device, ...] = ()
        self.tags: tuple[str, ...] = ()
        self._program = program
        self._look = look
        self._ask = ask
        self._listed_for: frozenset[Vendor] = frozenset()
        self._lives: Sequence[str] = ()
        self._hurries_until = 0.0
        self._is_closed = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="devices-look", daemon=True)
        self._thread.start()

    def hurry_after(self, lives: Sequence[str]) -> None:
        """Read the GPUs at once, and often for a while, if the states of the runners (`lives`) have
        changed."""
        if lives == self._lives:
            return
        self._lives, self._hurries_until = lives, monotonic() + HURRY_FOR_S
        self._wake.set()

    def close(self) -> None:
        """Stop reading the GPUs. A read that hangs is abandoned."""
        self._is_closed = True
        self._wake.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.clear()
            self._look_once()
            hurries = bool(self.devices) and monotonic() < self._hurries_until
            self._wake.wait(HURRIED_S if hurries else EVERY_S if self.devices else NONE_S)

    def _look_once(self) -> None:
        devices = self._look()
        vendors: frozenset[Vendor] = frozenset(device.vendor for device in devices)
        if vendors != self._listed_for:
            self._listed_for = vendors
            asks = len(self._program) == 1 and bool(vendors & set(COMPUTED_BY.values()))
            printed = self._ask(*self._program, "--list-devices", timeout_s=LIST_S) if asks else ""
            self.tags = llama_tags(printed, devices)
        self.devices = steady(self.devices, devices)


def steady(before: tuple[Device, ...], after: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the GPUs as they were announced (`before`) if only their free memory has changed, by
    less than `STEADY_BYTES`; else as they are now (`after`)."""

    def still(old: Device, new: Device) -> bool:
        if old.free_bytes is None or new.free_bytes is None:
            return old == new
        little = abs(old.free_bytes - new.free_bytes) < STEADY_BYTES
        return little and old == new.model_copy(update={"free_bytes": old.free_bytes})

    is_same = len(before) == len(after)
    is_same = is_same and all(still(old, new) for old, new in zip(before, after, strict=True))
    return before if is_same else after


def _is_visible(visible: str | None, index: int, uuid: str = "") -> bool:
    """Return whether a variable such as `CUDA_VISIBLE_DEVICES` lists a GPU, by index or by the
    beginning of its UUID."""
    if visible is None:
        return True
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return any(
        name == str(index) or (not name.isdecimal() and bool(uuid) and uuid.startswith(name))
        for name in names
    )


def _mebibytes(text: str) -> int | None:
    return int(text) << 20 if text.isdecimal() else None


def _by_address(root: Path, vendor: Vendor) -> list[Card]:
    return sorted(cards_of(root, PCI_VENDORS[vendor]), key=lambda card: card.address)


def _name(root: Path, card: Card, product: str | None) -> str:
    vendor = text_of(card.device / "vendor") or ""
    return product or pci_name(root, vendor, card.device_id) or ""


def _driver(root: Path, card: Card) -> str:
    """Return the name of a graphics card's driver, with the driver's version if the system states
    it."""
    lines = (text_of(card.device / "uevent") or "").splitlines()
    names = (line.removeprefix("DRIVER=") for line in lines if line.startswith("DRIVER="))
    driver = next(names, "")
    version = text_of(root / "sys/module" / driver / "version") if driver else None
    return f"{driver} {version}" if version else driver
