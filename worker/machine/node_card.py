"""Talks to the operating system: collects the facts about this node for its node card, and measures
its free memory."""

from __future__ import annotations

import functools
import platform
import re
import sys
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from bus.models.gguf import LLAMA_TAG
from bus.process.installation import command_to_add, running_code
from bus.process.interfaces import addresses_up
from bus.process.tools import asked
from bus.wire.accelerators import Device
from bus.wire.topology import NodeAddress
from worker.machine import gpu

_VIRTUAL = ("docker", "veth", "br-", "virbr", "cni", "flannel", "awdl", "llw", "gif", "stf", "anpi")
"""Beginnings of the names of network interfaces that lead to no other machine."""


FRESH_READING_S = 3.0


def free_bytes() -> int:
    """Return the bytes of memory that are available without swapping."""
    return psutil.virtual_memory().available


class FreeMemory:
    """The free memory of this node: the figure of telemetry if it is recent, because telemetry
    applies the rules of macOS; otherwise the measurement of the worker itself."""

    def __init__(self) -> None:
        self._measured: tuple[int, float] | None = None

    def take(self, measured_bytes: int, now: float) -> None:
        """Store the free bytes that telemetry measured."""
        self._measured = (measured_bytes, now)

    def free_bytes(self, now: float) -> int:
        """Return what telemetry measured last, in bytes; if that is old, measure it here."""
        if self._measured is not None and now - self._measured[1] < FRESH_READING_S:
            return self._measured[0]
        return free_bytes()


def memory_bytes(limit_bytes: int) -> int:
    """Return the memory of the machine, at most `limit_bytes` (0: all), that shoal may use."""
    total = psutil.virtual_memory().total
    return min(total, limit_bytes) if limit_bytes else total


def machine_facts(
    limit_bytes: int,
    *,
    has_llama_server: bool = False,
    devices: tuple[Device, ...] = (),
    llama_tags: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the fields of this node's card that describe its machine and its software.
    `limit_bytes` is the most memory that shoal may use; 0: all of the machine's. With llama-server,
    this node also runs GGUF models: on its processor, and on GPUs by `llama_tags`. `devices`: its
    GPUs; a Mac's is added."""
    version, _, tree = running_code().partition("/")
    return {
        "platform": f"{sys.platform}-{platform.machine()}",
        "cores": psutil.cpu_count() or 1,
        "memory_bytes": memory_bytes(limit_bytes),
        "backends": (
            *gpu.backends(),
            *llama_tags,
            *((f"{LLAMA_TAG}cpu",) if has_llama_server else ()),
        ),
        "devices": (*apple_devices(gpu.has_metal()), *devices),
        "cannot_run": cannot_run(gpu.missing()),
        "mlx_version": _version("mlx"),
        "shoal_version": version,
        "tree": tree,
        "chip": chip(),
        "working_set_bytes": gpu.working_set_bytes(),
        "vram_bytes": gpu.nvidia_bytes(),
        "machine": machine(),
        "ips": addresses(),
        "os_version": os_version(),
        "python_version": platform.python_version(),
        "mlx_lm_version": _version("mlx-lm"),
    }


def apple_devices(has_metal: bool) -> tuple[Device, ...]:
    """Return the GPU of a Mac with Apple's chip, which uses the memory of the machine."""
    if not has_metal:
        return ()
    total = gpu.working_set_bytes()
    return (
        Device(
            vendor="apple",
            index=0,
            name=chip(),
            driver=os_version(),
            total_bytes=total,
            unified=True,
        ),
    )


def cannot_run(missing: str) -> str:
    """Return why no runner can start if the package `missing` is not installed; empty if no package
    is missing."""
    if not missing:
        return ""
    return (
        f"cannot run models: {missing} is not installed there "
        f"(`{command_to_add(missing)}`); run `shoal doctor` there"
    )


@functools.cache
def os_version() -> str:
    """Return the operating system and its version: `macOS 26.2`, `Debian GNU/Linux 12
    (bookworm)`."""
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()}"


@functools.cache
def chip() -> str:
    """Return the name of the processor, according to the operating system; empty if unknown."""
    if sys.platform == "darwin":
        return asked("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
    try:
        return chip_in(Path("/proc/cpuinfo").read_text())
    except OSError:
        return ""


def chip_in(cpuinfo: str) -> str:
    """Return the processor's name in Linux's `/proc/cpuinfo`."""
    match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", cpuinfo, flags=re.MULTILINE)
    return match.group(1).strip() if match else ""


def machine() -> str:
    """Return a name for this machine, the same for all of its nodes. On a Mac it is a digest of its
    id, because its network addresses change with docks and private Wi-Fi. Elsewhere it is the
    lowest hardware address (MAC); "" without one."""
    return (mac_id() if sys.platform == "darwin" else "") or lowest_address()


@functools.cache
def mac_id() -> str:
    """Return a digest of this Mac's hardware id; empty if unknown."""
    return mac_id_in(asked("/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice"))


def mac_id_in(ioreg: str) -> str:
    """Return a digest of the hardware id in the output of `ioreg`; empty if it contains none."""
    match = re.search(r'"IOPlatformUUID"\s*=\s*"([0-9A-Fa-f-]+)"', ioreg)
    return sha256(match.group(1).upper().encode()).hexdigest()[:16] if match else ""


def lowest_address() -> str:
    """Return the lowest hardware address (MAC) of this machine; empty without one."""
    hardware_addresses = [
        address.address
        for name, some in psutil.net_if_addrs().items()
        for address in some
        if address.family == psutil.AF_LINK and not name.startswith(_VIRTUAL)
    ]
    return min(
        (candidate for candidate in hardware_addresses if candidate.strip("0:-")), default=""
    )


def addresses() -> tuple[NodeAddress, ...]:
    """Return the addresses of active interfaces that may lead to other machines, with the medium of
    each. Leaves out link-local IPv6, which is meaningless without the interface's name."""
    return tuple(
        address
        for address in addresses_up()
        if not address.interface.startswith(_VIRTUAL) and not address.ip.startswith("fe80")
    )


@functools.cache
def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
