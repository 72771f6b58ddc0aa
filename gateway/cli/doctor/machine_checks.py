"""Talks to the system's tools: the checks of sleep, clock, RDMA, Thunderbolt and GPUs.

If a tool is missing, fails or takes too long, the check that needs it reports nothing.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from bus.hardware.graphics_cards import PCI_VENDORS, cards_of, has_pci_display
from bus.hardware.rdma_ports import rdma_enabled, rdma_ports
from bus.hardware.thunderbolt import bridge_loops, bridge_service, ports_in
from bus.wire.accelerators import Vendor
from conf.paths import llama_server
from conf.settings import Settings
from gateway.cli.doctor.check import Finding
from gateway.cli.doctor.machine_findings import (
    SLEEP_TARGETS,
    bridge_check,
    clock_source_check,
    gpus,
    linux_sleep_check,
    llama,
    logind_settings,
    mac_sleep,
    mac_sleep_check,
    parse_units,
    rdma_check,
)
from gateway.cli.node.node_state import NodeState
from gateway.cli.node.processes import last_words, run_tool, tool_says

LOGIND = (
    Path("/usr/lib/systemd/logind.conf.d"),
    Path("/etc/systemd/logind.conf"),
    Path("/etc/systemd/logind.conf.d"),
)
BATTERIES = Path("/sys/class/power_supply")
NVIDIA = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
ASK_S = 20.0
DRIVERS: Mapping[Vendor, str] = {"amd": "amdgpu", "intel": "i915 or xe"}


def machine_checks(state: NodeState | None) -> Iterator[Finding]:
    """Yield the findings about this machine, and about the cluster's bridges if `state` is
    given."""
    if sys.platform == "darwin":
        yield mac_sleep_check(mac_sleep(tool_says("/usr/bin/pmset", "-g")))
        yield rdma_finding()
    else:
        yield linux_sleep()
        synchronized = parse_units(tool_says("timedatectl", "show", "-p", "NTPSynchronized"))
        source = clock_source_check(synchronized[0]["NTPSynchronized"] if synchronized else "")
        if source is not None:
            yield source
    if state is not None and state.thunderbolt:
        yield bridge_check(bridge_loops(state.thunderbolt), state.names)


def rdma_finding() -> Finding:
    """Check whether this Mac can use JACCL."""
    status = tool_says("rdma_ctl", "status")
    if not status:
        return rdma_check(None, (), (), None)
    profile = tool_says("/usr/sbin/system_profiler", "SPThunderboltDataType", "-json")
    services = tool_says("/usr/sbin/networksetup", "-listnetworkserviceorder")
    return rdma_check(
        rdma_enabled(status),
        rdma_ports(tool_says("ibv_devinfo")),
        ports_in(profile),
        bridge_service(services),
        addressed_interfaces(),
    )


def addressed_interfaces() -> frozenset[str]:
    """Return the names of the interfaces that have an IPv4 address."""
    return frozenset(
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(address.family == socket.AF_INET for address in addresses)
    )


def linux_sleep() -> Finding:
    """Check whether this machine goes to sleep by itself."""
    properties = "Id,LoadState,UnitFileState"
    targets = parse_units(tool_says("systemctl", "show", "-p", properties, *SLEEP_TARGETS))
    files = [
        file
        for path in LOGIND
        for file in (sorted(path.glob("*.conf")) if path.is_dir() else [path])
    ]
    texts = [file.read_text(errors="replace") for file in files if file.is_file()]
    has_battery = any(BATTERIES.glob("BAT*"))
    return linux_sleep_check(targets, logind_settings(*texts), has_battery=has_battery)


def gpu_checks(settings: Settings, state: NodeState | None) -> Iterator[Finding]:
    """Yield the findings about GPUs and llama-server. Without a running node, the machine alone is
    checked."""
    card = next((card for card in state.cards if card.node == state.node), None) if state else None
    root, lacks = Path("/"), dict[Vendor, str]()
    if sys.platform.startswith("linux"):
        lacks = _drivers_lacking(root)
    yield gpus(lacks, card, os.environ)
    if sys.platform.startswith("linux"):
        yield llama(llama_server(settings.runner.llama_server), settings.runner.llama_server, card)


def nvidia_trouble() -> str:
    """Return why `nvidia-smi` lists no GPU; empty if it lists one."""
    try:
        done = run_tool(ASK_S, *NVIDIA)
    except FileNotFoundError:
        return "nvidia-smi is not on PATH"
    except subprocess.TimeoutExpired:
        return f"nvidia-smi did not answer within {ASK_S:g} s"
    except OSError as error:
        return f"nvidia-smi cannot be started: {error.strerror or error}"
    if done.returncode == 0 and done.stdout.strip():
        return ""
    lines = done.stdout.strip().splitlines()
    return f"nvidia-smi failed: {lines[-1] if lines else last_words(done)}"


def _drivers_lacking(root: Path) -> dict[Vendor, str]:
    """Return each maker of a GPU in this machine, with the reason why the maker's driver lists no
    GPU. The reason is empty if the driver lists one."""
    lacks: dict[Vendor, str] = {}
    for vendor, number in PCI_VENDORS.items():
        if vendor == "nvidia" and (has_pci_display(root, number) or shutil.which(NVIDIA[0])):
            lacks[vendor] = nvidia_trouble()
        elif has_pci_display(root, number):
            lacks[vendor] = "" if cards_of(root, number) else f"no driver ({DRIVERS[vendor]})"
    return lacks
