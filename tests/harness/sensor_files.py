"""Files of `/sys` as Linux lays them out: devices in their place, classes as links to them.

The formats are those of the kernel's drivers (amdgpu, i915, xe, coretemp, k10temp, RAPL); the
figures are made up.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PCI = "sys/devices/pci0000:00"
RADEON: Mapping[str, str] = {
    "vendor": "0x1002",
    "device": "0x744c",
    "class": "0x030000",
    "uevent": "DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_ID=1002:744C\nPCI_SLOT_NAME=0000:03:00.0\n",
    "power/runtime_status": "active",
    "gpu_busy_percent": "37",
    "mem_info_vram_total": "25753026560",
    "mem_info_vram_used": "1234567168",
    "mem_info_gtt_total": "33585799168",
    "mem_info_gtt_used": "68288512",
    "pp_dpm_sclk": "0: 500Mhz \n1: 1823Mhz *\n2: 2526Mhz \n",
    "product_name": "",
    "hwmon/hwmon4/name": "amdgpu",
    "hwmon/hwmon4/power1_average": "97000000",
    "hwmon/hwmon4/power1_label": "PPT",
    "hwmon/hwmon4/temp1_input": "54000",
    "hwmon/hwmon4/temp1_label": "edge",
    "hwmon/hwmon4/temp2_input": "61000",
    "hwmon/hwmon4/temp2_label": "junction",
    "hwmon/hwmon4/freq1_input": "1823000000",
    "hwmon/hwmon4/freq1_label": "sclk",
}
ARC: Mapping[str, str] = {
    "vendor": "0x8086",
    "device": "0x56a0",
    "class": "0x030000",
    "uevent": "DRIVER=xe\nPCI_CLASS=30000\nPCI_ID=8086:56A0\nPCI_SLOT_NAME=0000:04:00.0\n",
    "tile0/gt0/freq0/act_freq": "2050",
    "hwmon/hwmon5/name": "xe",
    "hwmon/hwmon5/energy1_input": "5000000",
    "hwmon/hwmon5/energy1_label": "card",
    "hwmon/hwmon5/temp2_input": "48000",
    "hwmon/hwmon5/temp2_label": "pkg",
}
IRIS: Mapping[str, str] = {
    "vendor": "0x8086",
    "device": "0x46a6",
    "class": "0x030000",
    "uevent": "DRIVER=i915\nPCI_CLASS=30000\nPCI_ID=8086:46A6\nPCI_SLOT_NAME=0000:00:02.0\n",
    "drm/{card}/gt_act_freq_mhz": "0",
}
PCI_IDS = """\
#\tList of PCI ID's
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t744b  Navi 31 [Radeon Pro W7900]
\t744c  Navi 31 [Radeon RX 7900 XT/7900 XTX]
\t\t1eae 7901  RX-79XMERCB9 [SPEEDSTER MERC 310 RX 7900 XTX]
8086  Intel Corporation
\t46a6  Alder Lake-P GT2 [Iris Xe Graphics]
\t744c  No Radeon
C 03  Display controller
"""


def write(root: Path, files: Mapping[str, str]) -> None:
    """Write files under a root, each with a line break at its end as `/sys` has it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.rstrip("\n") + "\n")


def add_card(root: Path, card: str, files: Mapping[str, str]) -> Path:
    """Put a PCI device with its card (`card1`) and one of its connectors where the kernel has them;
    return the device's folder."""
    address = files["uevent"].split("PCI_SLOT_NAME=")[1].split()[0]
    device = root / PCI / address
    write(device, {name.format(card=card): text for name, text in files.items()})
    folder = device / "drm" / card
    (folder / f"{card}-DP-1").mkdir(parents=True)
    (folder / "device").symlink_to(Path("../.."))
    _link(root / "sys/class/drm" / card, folder)
    _link(root / "sys/class/drm" / f"{card}-DP-1", folder / f"{card}-DP-1")
    _link(root / "sys/bus/pci/devices" / address, device)
    return device


def add_hwmon(root: Path, hwmon: str, files: Mapping[str, str]) -> Path:
    """Put the sensors of a driver where the kernel has them; return their folder."""
    folder = root / "sys/devices/platform" / hwmon
    write(folder, files)
    _link(root / "sys/class/hwmon" / hwmon, folder)
    return folder


def add_rapl(root: Path, domain: str, name: str, energy_uj: int) -> Path:
    """Put a domain of RAPL where the kernel has them; return its counter."""
    folder = root / "sys/devices/virtual/powercap" / domain
    write(folder, {"name": name, "energy_uj": str(energy_uj)})
    _link(root / "sys/class/powercap" / domain, folder)
    return folder / "energy_uj"


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
