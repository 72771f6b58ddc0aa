"""Talks to the operating system: what this node is and how much memory it has free now."""

from __future__ import annotations

import functools
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from bus.process.interfaces import addresses_up
from bus.process.tools import asked
from bus.wire.topology import NodeAddress
from worker.machine import gpu

_VIRTUAL = ("docker", "veth", "br-", "virbr", "cni", "flannel", "awdl", "llw", "gif", "stf", "anpi")
"""Interfaces that lead to no other machine."""


def free_bytes() -> int:
    """Return the bytes of memory that can be taken now without swapping."""
    return psutil.virtual_memory().available


def machine_facts(memory_bytes: int) -> dict[str, Any]:
    """Return what this node's card says of its machine and its software, by field.
    `memory_bytes` 0 stands for all that the machine has."""
    total = psutil.virtual_memory().total
    return {
        "platform": f"{sys.platform}-{platform.machine()}",
        "cores": psutil.cpu_count() or 1,
        "memory_bytes": min(total, memory_bytes) if memory_bytes else total,
        "backends": gpu.backends(),
        "mlx_version": _version("mlx"),
        "shoal_version": _version("shoal"),
        "chip": chip(),
        "working_set_bytes": gpu.working_set_bytes(),
        "vram_bytes": gpu.nvidia_bytes(),
        "machine": machine(),
        "ips": addresses(),
        "os_version": os_version(),
        "python_version": platform.python_version(),
        "mlx_lm_version": _version("mlx-lm"),
    }


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
    """Return the processor's name, as the system says it; empty when it does not."""
    if sys.platform == "darwin":
        return asked("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
    try:
        return chip_in(Path("/proc/cpuinfo").read_text())
    except OSError:
        return ""


def chip_in(cpuinfo: str) -> str:
    """Return the processor's name in Linux's `/proc/cpuinfo`."""
    found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", cpuinfo, flags=re.MULTILINE)
    return found.group(1).strip() if found else ""


def machine() -> str:
    """Return one name for all nodes of a machine, its lowest hardware address; "" without one."""
    found = [
        address.address
        for name, some in psutil.net_if_addrs().items()
        for address in some
        if address.family == psutil.AF_LINK and not name.startswith(_VIRTUAL)
    ]
    return min((one for one in found if one.strip("0:-")), default="")


def addresses() -> tuple[NodeAddress, ...]:
    """Return the addresses of interfaces that are up and may lead to other machines, and what each
    lies on. Link-local IPv6 is left out: it means nothing without the interface's name."""
    return tuple(
        one
        for one in addresses_up()
        if not one.interface.startswith(_VIRTUAL) and not one.ip.startswith("fe80")
    )


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"
